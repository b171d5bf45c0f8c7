// Where a model's tensors come from: a set of names, each with a view into memory it owns.
//
// find() and release() are thread-safe. A view lives as long as the source; release(view) says that the caller
// has copied what it needs, so that mapped pages leave resident memory.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/fp8_matrix.h"
#include "ops/random_matrix.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

// A made-up matrix that is rounded to `dtype`, then to e4m3 with scales of such blocks (ops/fp8_matrix.h).
struct RandomFp8 {
  RandomMatrix matrix = {};
  DType dtype = DType::bf16;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // Whether a bias that the configuration speaks of may be missing: made-up weights have none, and the configuration of
  // a GGUF file is read from the tensors that it has.
  virtual bool may_lack_biases() const { return false; }
  virtual DType dtype(std::string_view name) const = 0;  // f32 when there is no such tensor
  // `data_loss`, naming the tensor, when it is missing or has another shape.
  virtual Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const = 0;
  // As find(), for dtype and shape alone: the tensor counts as found, nothing is converted, `data` is not to be read.
  virtual Result<TensorView> look(std::string_view name, std::span<const int64_t> shape) const {
    return find(name, shape);
  }
  // Whether find_fp8() gives the matrix in 8 bits (find() gives it widened). Codes are e4m3; release()
  // takes their view.
  virtual bool has_fp8(std::string_view) const { return false; }
  virtual Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t>) const {
    return Status::internal("tensor " + std::string(name) + " is not in 8 bits");
  }
  // The rule that makes the matrix find() gives, where there is one: it may be made anywhere.
  virtual std::optional<RandomMatrix> random(std::string_view, std::span<const int64_t>) const { return std::nullopt; }
  // The rule that makes the matrix find_fp8() gives, where there is one.
  virtual std::optional<RandomFp8> random_fp8(std::string_view, std::span<const int64_t>) const { return std::nullopt; }
  virtual void release(const TensorView&) const {}
  // The tensors, by their names in the files, that find() and find_fp8() have given to nobody. Sorted by name.
  virtual std::vector<std::string> unread() const { return {}; }
  // `data_loss` when a file behind the tensors changed while it was read (base/mapped_file.h): what was found
  // in it is not to be trusted.
  virtual Status intact() const { return {}; }
  // intact(), once all is read: files that stay in use are not asked again.
  virtual Status seal() const { return {}; }
};

// `inner` with release() in a thread of its own: taking mapped pages out of memory costs as much time as reading
// them does. That thread goes on when the source is destroyed, and then lets go of `inner`.
std::shared_ptr<WeightSource> release_in_background(std::shared_ptr<WeightSource> inner);

// The check that every source of files makes: `data_loss` names both shapes.
Status check_shape(std::string_view name, const TensorView& view, std::span<const int64_t> shape);

// model.safetensors, or the shards that model.safetensors.index.json lists, in `folder`.
// Format: https://github.com/huggingface/safetensors
Result<std::shared_ptr<WeightSource>> open_safetensors(const std::string& folder);

// The tensors of one safetensors file in memory: checks every offset before any is used.
struct NamedTensor {
  std::string name;
  TensorView view;
  // Why it cannot be read (a dtype or more dimensions than are known here); `view` is then its bytes. A model may hold
  // such tensors beside those that are used, a vision tower's say.
  Status readable = {};
};
Result<std::vector<NamedTensor>> parse_safetensors(std::string_view file, const std::string& file_name);

// Random weights for any name, of the shape asked for: --load-format dummy. `dtype` is f32, bf16
// or f16; the same seed gives the same weights on every machine. Matrices are scaled by
// 1/sqrt(columns), norms are near 1. Optional tensors are absent (no biases).
std::shared_ptr<WeightSource> make_dummy_weights(DType dtype, uint64_t seed);

}  // namespace warpweave
