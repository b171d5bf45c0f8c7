// Latent attention (MLA) on a GPU over shuffled pages: microseconds, TB/s of KV, TFLOP/s.
//
//   mla_bench [--family auto|wgmma|mma] [--random N] [--seed S] [--only TEXT]
//             [--shape HEADS,Q_LEN,REQUESTS,TOKENS,PAGE[,e4m3|ds_mla|fp4]]...  (TOKENS: one number, or LEAST-MOST)
//
// Every figure is a graph of launches (attention and merge; the plan is made before, as once a step for all layers) that
// walk over enough copies of the pool to miss the L2 cache; the median of nine. TFLOP/s count visible scores only.
// --family auto (default): the one that backends choose. --random: so many shapes drawn from the seed instead.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attention/cuda/mla/mla_decode.h"
#include "cuda_bench.h"
#include "device/cuda/stream.h"

using namespace warpweave;
using namespace warpweave::cuda;
using bench::check;
using bench::take;

namespace {

constexpr size_t kUncachedBytes = size_t{400} << 20;
constexpr int kMinLaunches = 8;

struct Shape {
  int heads, q_len;
  std::vector<int> kv_lens;
  int page_size = 64;
  MlaFormat format = MlaFormat::same16;
  std::string name;
};

const char* name_of(MlaFormat format) {
  switch (format) {
    case MlaFormat::same16: return "bf16";
    case MlaFormat::e4m3: return "fp8_e4m3";
    case MlaFormat::ds_mla: return "fp8_ds_mla";
    case MlaFormat::fp4: return "fp4_mla";
  }
  return "";
}

template <class T>
DeviceBuffer to_device(const std::vector<T>& values) {
  DeviceBuffer out = take(DeviceBuffer::allocate(values.size() * sizeof(T), "a benchmark"));
  check(cudaMemcpy(out.as<char>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}

class Bench {
 public:
  // family: none: the one that backends choose for each shape.
  explicit Bench(std::optional<MlaFamily> family) : family_(family), stream_(take(create_stream())) {
    int device = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, device));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device));
    const char* const name = !family ? "auto" : *family == MlaFamily::wgmma ? "wgmma" : "mma";
    fmt::print("{}, {}\n{:<44}{:>10}{:>9}{:>10}\n", properties.name, name, "shape", "us", "TB/s", "TFLOP/s");
  }

  // Says nothing of a shape that the family does not take.
  void run(const Shape& s) {
    const int requests = static_cast<int>(s.kv_lens.size());
    const auto pages_of = [&](int kv_len) { return (kv_len + s.page_size - 1) / s.page_size; };
    int stride = 1, pages = 0;
    for (const int kv_len : s.kv_lens) {
      stride = std::max(stride, pages_of(kv_len));
      pages += pages_of(kv_len);
    }
    const size_t pool_bytes = static_cast<size_t>(pages) * s.page_size * mla_token_bytes(s.format);
    const int copies = static_cast<int>(std::max<size_t>(1, (kUncachedBytes + pool_bytes - 1) / pool_bytes));
    const int launches = std::max(copies, kMinLaunches);
    make_tables(s, stride, pages);
    make_pool(s, pool_bytes * copies);
    const int tokens = requests * s.q_len;
    q_ = bench::random_matrix(static_cast<size_t>(tokens) * s.heads * kMlaDim, 1.0f);
    out_ = take(DeviceBuffer::allocate(static_cast<size_t>(tokens) * s.heads * kMlaLatentDim * 2, "a benchmark"));
    lse_ = take(DeviceBuffer::allocate(static_cast<size_t>(tokens) * s.heads * 4, "a benchmark"));

    const MlaParams p = params(s, stride);
    const MlaShape shape = {MlaElement::bf16, s.format, family_.value_or(faster_mla_family(s.format, p))};
    const MlaLayout layout = mla_layout(shape, p, num_sms_);
    if (layout.tile_rows == 0) return;
    const DeviceBuffer workspace = take(DeviceBuffer::allocate(layout.workspace_bytes, "a benchmark"));
    check(launch_mla_plan(layout, p, workspace.as<char>(), stream_.get()));
    const double us = bench::time_us(stream_.get(), launches, [&] {
      for (int i = 0; i < launches; ++i) {
        MlaParams copy = p;
        copy.kv = pool_.as<char>() + pool_bytes * (i % copies);
        check(launch_mla_decode(shape, layout, copy, workspace.as<char>(), i > 0, stream_.get()));
      }
    });
    report(s, us);
  }

 private:
  void make_tables(const Shape& s, int stride, int pages) {
    std::vector<int32_t> order(pages), table(stride * s.kv_lens.size()), indptr = {0};
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(7);
    std::shuffle(order.begin(), order.end(), random);
    size_t next = 0;
    for (size_t r = 0; r < s.kv_lens.size(); ++r) {
      for (int i = 0; i * s.page_size < s.kv_lens[r]; ++i) table[r * stride + i] = order[next++];
      indptr.push_back(indptr.back() + s.q_len);
    }
    table_ = to_device(table);
    indptr_ = to_device(indptr);
    kv_lens_ = to_device(s.kv_lens);
  }

  // Normal numbers as bf16; as codes, bytes of which few are large, and scales of 1 in 656-byte tokens,
  // of up to 1.5 in those of 416 bytes.
  void make_pool(const Shape& s, size_t bytes) {
    if (s.format == MlaFormat::same16) {
      pool_ = std::move(bench::random_matrix(bytes / 2, 1.0f).memory);
      return;
    }
    const size_t token = mla_token_bytes(s.format);
    std::vector<uint8_t> block(token * 4099);
    std::mt19937 random(11);
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>((random() & 0x80) | (0x20 + random() % 0x1c));
    for (size_t t = 0; t < block.size() && mla_is_packed(s.format); t += token) {
      for (int b = 0; b < 4 && s.format == MlaFormat::ds_mla; ++b) {
        const float one = 1;
        std::copy_n(reinterpret_cast<const uint8_t*>(&one), 4, &block[t + kDsMlaScaleAt + b * 4]);
      }
      for (int b = kFp4MlaScaleAt; b < kFp4MlaRopeAt && s.format == MlaFormat::fp4; ++b) block[t + b] &= 0x7f;
      for (int d = 0; d < kMlaRopeDim; ++d)
        block[t + mla_rope_at(s.format) + d * 2 + 1] = static_cast<uint8_t>(0x3f | (random() & 0x80));
    }
    pool_ = take(DeviceBuffer::allocate(bytes, "a benchmark"));
    for (size_t at = 0; at < bytes; at += block.size()) {
      check(cudaMemcpy(pool_.as<char>() + at, block.data(), std::min(block.size(), bytes - at), cudaMemcpyHostToDevice));
    }
  }

  MlaParams params(const Shape& s, int stride) const {
    MlaParams p;
    p.q = q_.memory.as<char>();
    p.q_token_stride = int64_t{s.heads} * kMlaDim;
    p.out = out_.as<char>();
    p.out_token_stride = int64_t{s.heads} * kMlaLatentDim;
    p.lse = lse_.as<float>();
    p.kv = pool_.as<char>();
    p.token_stride_bytes = mla_token_bytes(s.format);
    p.page_stride_bytes = p.token_stride_bytes * s.page_size;
    p.page_table = table_.as<int32_t>();
    p.page_table_stride = stride;
    p.kv_lens = kv_lens_.as<int32_t>();
    p.q_indptr = indptr_.as<int32_t>();
    p.num_requests = static_cast<int>(s.kv_lens.size());
    p.num_heads = s.heads;
    p.max_q_len = s.q_len;
    p.page_size = s.page_size;
    p.page_shift = -1;
    for (int shift = 0; shift < 20; ++shift) {
      if (1 << shift == s.page_size) p.page_shift = shift;
    }
    p.scale = 0.0722f;
    p.earlier_kv_settled = true;  // as in the server
    return p;
  }

  void report(const Shape& s, double us) const {
    double tokens = 0, scores = 0;
    for (const int kv_len : s.kv_lens) {
      tokens += kv_len;
      for (int i = 0; i < s.q_len; ++i) scores += kv_len - s.q_len + 1 + i;
    }
    const double bytes = tokens * mla_token_bytes(s.format), flops = 2.0 * scores * s.heads * (kMlaDim + kMlaLatentDim);
    fmt::print("{:<44}{:>10.1f}{:>9.3f}{:>10.1f}\n", s.name, us, bytes / us * 1e-6, flops / us * 1e-6);
    std::fflush(stdout);
  }

  std::optional<MlaFamily> family_;
  CudaStream stream_;
  int num_sms_ = 0;
  DeviceBuffer pool_, out_, lse_, table_, indptr_, kv_lens_;
  bench::Matrix q_;
};

struct Pages {
  int size = 64;
  MlaFormat format = MlaFormat::same16;
};

Shape even(int heads, int q_len, int batch, int kv_len, Pages pages = {}) {
  Shape s = {heads, q_len, std::vector<int>(batch, kv_len), pages.size, pages.format, {}};
  s.name = fmt::format("h{} q{} {}x{} page {} {}", heads, q_len, batch, kv_len, pages.size, name_of(pages.format));
  return s;
}

std::vector<Shape> usual_shapes() {
  std::vector<Shape> out;
  for (const int heads : {16, 128}) {
    for (const int q_len : {1, 2}) {
      for (const int kv_len : {4096, 16384}) {
        for (const int batch : {32, 128}) out.push_back(even(heads, q_len, batch, kv_len));
      }
    }
  }
  for (const int heads : {16, 128}) {
    for (const int page_size : {1, 16, 32}) out.push_back(even(heads, 1, 128, 4096, {page_size}));
  }
  for (const MlaFormat format : {MlaFormat::e4m3, MlaFormat::ds_mla, MlaFormat::fp4}) {
    for (const int page_size : {64, 1}) {
      out.push_back(even(16, 1, 128, 16384, {page_size, format}));
      out.push_back(even(128, 2, 128, 16384, {page_size, format}));
    }
    for (const int heads : {32, 64}) out.push_back(even(heads, 1, 128, 4096, {64, format}));
  }
  out.push_back(even(32, 1, 128, 4096));
  out.push_back(even(32, 1, 128, 4096, {1}));
  for (const int heads : {16, 128}) {
    out.push_back(even(heads, 1, 1, 1024));
    out.push_back(even(heads, 1, 1, 32768));
    out.push_back(even(heads, 1, 8, 8192));
  }
  return out;
}

std::vector<Shape> random_shapes(int count, unsigned seed) {
  std::vector<Shape> out;
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(seed + static_cast<unsigned>(i));
    Shape s = {8 << random() % 5, 1 + static_cast<int>(random() % 3), {}, 64, MlaFormat::same16, {}};
    if (random() % 4 == 0) s.heads = 1 + static_cast<int>(random() % 128);
    if (random() % 4 == 0) s.page_size = 1 << random() % 7;
    const int batch = 1 << random() % 8, longest = 256 << random() % 8;
    for (int r = 0; r < batch; ++r) s.kv_lens.push_back(longest / 4 + static_cast<int>(random() % (3 * longest / 4)));
    s.name = fmt::format("random {} h{} q{} {} requests to {} page {}", seed + i, s.heads, s.q_len, batch, longest, s.page_size);
    out.push_back(s);
  }
  return out;
}

std::optional<Shape> one_shape(const std::string& text) {
  int heads = 0, q_len = 0, requests = 0, page = 0, least = 0, most = 0;
  char tokens[24] = "", format[8] = "";
  const int found = std::sscanf(text.c_str(), "%d,%d,%d,%23[0-9-],%d,%7s", &heads, &q_len, &requests, tokens, &page, format);
  const int lengths = found < 5 ? 0 : std::sscanf(tokens, "%d-%d", &least, &most);
  if (lengths == 0) return std::nullopt;
  const std::string_view name = format;
  const MlaFormat stored = name == "e4m3"     ? MlaFormat::e4m3
                           : name == "ds_mla" ? MlaFormat::ds_mla
                           : name == "fp4"    ? MlaFormat::fp4
                                              : MlaFormat::same16;
  Shape out = even(heads, q_len, requests, least, {page, stored});
  if (lengths == 1) return out;
  std::mt19937 random(1);
  for (int& kv_len : out.kv_lens) kv_len = least + static_cast<int>(random() % (std::max(least, most) - least + 1u));
  out.name = fmt::format("h{} q{} {}x{} page {} {}", heads, q_len, requests, tokens, page, name_of(out.format));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<MlaFamily> family;
  int random = 0;
  unsigned seed = 1;
  std::string only;
  std::vector<Shape> shapes;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--family" && value == "mma") family = MlaFamily::mma;
    else if (flag == "--family" && value == "wgmma") family = MlaFamily::wgmma;
    else if (flag == "--family" && value == "auto") family.reset();
    else if (flag == "--random") random = std::atoi(value.c_str());
    else if (flag == "--seed") seed = static_cast<unsigned>(std::atoi(value.c_str()));
    else if (flag == "--only") only = value;
    else if (flag == "--shape" && one_shape(value)) shapes.push_back(*one_shape(value));
    else return fmt::print(stderr, "unknown: {} {}\n", flag, value), 1;
  }
  if (shapes.empty()) shapes = random > 0 ? random_shapes(random, seed) : usual_shapes();
  Bench bench(family);
  for (const Shape& s : shapes) {
    if (s.name.find(only) != std::string::npos) bench.run(s);
  }
}
