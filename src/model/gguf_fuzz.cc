// Any bytes as a GGUF file: refused, or every tensor lies inside them; then the whole way to a model
// configuration and tokenizer fields.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "model/gguf.h"
#include "model/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto contents = warpweave::parse_gguf(file, "fuzz.gguf");
  if (!contents.ok()) return 0;
  for (const auto& [name, view] : contents->tensors) {
    const auto* begin = static_cast<const char*>(view.data);
    if (begin < file.data() || view.size_bytes() > size_t(file.data() + size - begin)) std::abort();
  }
  const int fd = memfd_create("fuzz", 0);
  if (fd < 0) return 0;
  if (write(fd, data, size) == static_cast<ssize_t>(size)) {
    const auto model = warpweave::load_gguf_model("/proc/self/fd/" + std::to_string(fd));
    if (model.ok()) {
      const int64_t shape[] = {model->config.vocab_size, model->config.hidden_size};
      const auto view = model->weights->find("model.embed_tokens.weight", shape);
      if (view.ok()) model->weights->release(*view);
      (void)model->weights->has("model.layers.0.mlp.experts.0.gate_proj.weight");
      const int64_t q_shape[] = {int64_t{model->config.num_q_heads} * model->config.head_dim,
                                 model->config.hidden_size};
      (void)model->weights->find("model.layers.0.self_attn.q_proj.weight", q_shape).ok();
      const int64_t norm_shape[] = {model->config.hidden_size};
      (void)model->weights->find("model.norm.weight", norm_shape).ok();
      const int64_t fc_shape[] = {model->config.hidden_size, int64_t{2} * model->config.hidden_size};
      const std::string behind = "model.layers." + std::to_string(model->config.num_layers);
      (void)model->weights->find(behind + ".eh_proj.weight", fc_shape).ok();
      if (!model->weights->seal().ok()) std::abort();
      const auto tokenizer = warpweave::build_gguf_tokenizer(model->tokenizer);
      if (tokenizer.ok()) (void)(*tokenizer)->encode("Hello  world \xF0\x9F\x98\x80", true).ok();
    }
  }
  close(fd);
  return 0;
}
