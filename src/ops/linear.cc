#include "ops/linear.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/float16.h"
#include "ops/elementwise.h"
#include "ops/kernels/linear_kernels.h"
#include "ops/linear_input.h"
#include "ops/linear_pack.h"

namespace warpweave {
namespace {

constexpr int64_t kMaxFeatures = int64_t{1} << 24;
constexpr int64_t kBf16KUnit = 32;
// Below this many multiply-adds a GEMM costs less than waking the team for it.
constexpr int64_t kSerialWork = 96 * 1024;
// One block of a panel group (k range x 64 columns of f32) stays in L1/L2 while rows go by.
constexpr int64_t kBlockBytesPerPanel = 16 * 1024;
constexpr int64_t kBlockRows = 512;     // rows of one job: its f32 tile stays in L2
constexpr int64_t kStreamedRows = 8;    // up to here one pass over the weights serves all rows

const LinearKernels& kernels_of(CpuTier tier) {
#if defined(__x86_64__)
  switch (tier) {
    case CpuTier::amx_bf16: return cpu_info().amx_int8 ? kLinearAmxInt8 : kLinearAmxBf16;
    case CpuTier::avx512_bf16: return kLinearAvx512Bf16;
    case CpuTier::avx512: {  // a better CPU that was asked for this tier shows what one without VNNI does
      const bool own_tier = cpu_info().tier == CpuTier::avx512;
      return own_tier && cpu_info().avx512_vnni ? kLinearAvx512Vnni : kLinearAvx512;
    }
    case CpuTier::avx2: return kLinearAvx2;
    case CpuTier::scalar: break;
  }
#endif
  return kLinearScalar;
}

bool can_pack(DType dtype) {
  switch (dtype) {
    case DType::f32: case DType::bf16: case DType::f16: case DType::q8_0: case DType::q4_0:
    case DType::q4_1: case DType::q4_k: case DType::q5_k: case DType::q6_k:
    case DType::iq4_nl: case DType::iq4_xs: return true;
    default: return false;
  }
}

int64_t part_rows(const LinearPart& part) {
  if (part.rows >= 0) return part.rows;
  return (part.weight.shape[0] - part.first_row + part.row_step - 1) / part.row_step;
}

Status check_part(const LinearPart& part, const LinearPart& first) {
  const TensorView& w = part.weight;
  if (w.rank != 2 || w.shape[0] < 1 || w.shape[1] < 1 || w.shape[0] > kMaxFeatures ||
      w.shape[1] > kMaxFeatures) {
    return Status::invalid_argument("a linear weight must be [out, in] with 1 to 2^24 of each");
  }
  if (!w.data || !can_pack(w.dtype)) {
    return Status::unsupported(
        "a linear weight of dtype " + std::string(dtype_info(w.dtype).name) +
        " has no kernel; use f32, bf16, f16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, iq4_nl or iq4_xs");
  }
  if (w.dtype != first.weight.dtype || w.shape[1] != first.weight.shape[1]) {
    return Status::invalid_argument("stacked linear weights must agree in dtype and in_features");
  }
  if (w.shape[1] % dtype_info(w.dtype).block_elements != 0) {
    return Status::invalid_argument("in_features " + std::to_string(w.shape[1]) +
                                    " is not a multiple of the block of dtype " +
                                    std::string(dtype_info(w.dtype).name));
  }
  const int64_t rows = part_rows(part);
  if (part.first_row < 0 || part.row_step < 1 || rows < 1 || part.row_step > kMaxFeatures ||
      rows > w.shape[0] || part.first_row + (rows - 1) * part.row_step >= w.shape[0]) {
    return Status::invalid_argument("a linear part reaches outside its weight's " +
                                    std::to_string(w.shape[0]) + " rows");
  }
  if (part.bias.data && (part.bias.rank != 1 || part.bias.shape[0] != w.shape[0] ||
                         is_quantized(part.bias.dtype))) {
    return Status::invalid_argument("a linear bias must be a plain vector of out_features values");
  }
  return {};
}

// Of all parts, which must go together; `glu`: as a gate and what it gates.
Result<int64_t> rows_of(std::span<const LinearPart> parts, bool glu) {
  if (parts.empty()) return Status::invalid_argument("a linear needs at least one weight");
  int64_t rows = 0;
  for (const LinearPart& part : parts) {
    WW_RETURN_IF_ERROR(check_part(part, parts[0]));
    rows += part_rows(part);
  }
  if (glu && (parts.size() != 2 || part_rows(parts[0]) != part_rows(parts[1]))) {
    return Status::invalid_argument("a gated linear needs a gate and an up weight of equal rows");
  }
  return rows;
}

// Where a weight row comes from: row `index` counted over all parts.
struct RowSource {
  std::span<const LinearPart> parts;
  int64_t row_bytes;

  const void* weight(int64_t index, const LinearPart** part_out, int64_t* row_out) const {
    for (const LinearPart& part : parts) {
      const int64_t rows = part_rows(part);
      if (index < rows) {
        *part_out = &part;
        *row_out = part.first_row + index * part.row_step;
        return static_cast<const char*>(part.weight.data) + *row_out * row_bytes;
      }
      index -= rows;
    }
    return nullptr;
  }
};

}  // namespace

struct PackedLinear::Plan {
  const LinearKernels* kernels;
  const void* x;           // for integers rows of int8_row_bytes(), dense
  bool integers;
  bool x_is_bf16;
  int64_t x_stride;
  int64_t k;               // of the kernel: padded for bf16 GEMMs
  int64_t rows;
  int64_t tile_panels;
  int64_t row_blocks;
  int64_t jobs;
  LinearOutput y;
};

bool multiplies_bytes() { return kernels_of(cpu_info().tier).int8 != nullptr; }

int64_t fastest_widen_from_rows(DType dtype) {
  // Only AMX's bf16 GEMMs are faster than integers, whose sums leave the tiles at every scale; sooner in K formats,
  // of more scales. docs/benchmarks.md.
  const bool has_both = cpu_info().tier == CpuTier::amx_bf16 && cpu_info().amx_int8;
  if (!has_both || !is_quantized(dtype)) return kNeverWiden;
  const bool is_k_format = dtype == DType::q4_k || dtype == DType::q5_k || dtype == DType::q6_k;
  return is_k_format ? 64 : 128;
}

// ---- packing ----

Result<PackedLinear> PackedLinear::pack(std::span<const LinearPart> parts,
                                        const LinearOptions& options, ThreadTeam& team) {
  const bool glu = options.glu != GluActivation::none;
  WW_ASSIGN_OR_RETURN(const int64_t rows, rows_of(parts, glu));
  PackedLinear linear;
  linear.dtype_ = parts[0].weight.dtype;
  linear.tier_ = std::min(options.tier, cpu_info().tier);
  linear.glu_ = options.glu;
  linear.in_features_ = parts[0].weight.shape[1];
  linear.part_rows_ = glu ? rows / 2 : rows;
  linear.out_features_ = linear.part_rows_;
  linear.panels_ = (linear.part_rows_ + kPanelCols - 1) / kPanelCols * (glu ? 2 : 1);
  linear.panel_bytes_ = panel_size_bytes(linear.dtype_, linear.in_features_);
  linear.uses_bf16_ = options.compute == ComputeMode::bf16 &&
                      (linear.dtype_ == DType::bf16 || is_quantized(linear.dtype_)) &&
                      kernels_of(linear.tier_).bf16_dot != nullptr;
  if (options.compute == ComputeMode::bf16 && is_quantized(linear.dtype_) && kernels_of(linear.tier_).int8 != nullptr) {
    linear.uses_int8_ = true;
    linear.uses_bf16_ = false;
    if (kernels_of(linear.tier_).bf16_dot != nullptr) linear.widen_from_rows_ = options.widen_from_rows;
  }
  linear.weights_ = AlignedBuffer::allocate(linear.panel_bytes_ * linear.panels_);
  const bool has_bias =
      std::any_of(parts.begin(), parts.end(), [](const LinearPart& p) { return p.bias.data; });
  if (has_bias) linear.bias_ = AlignedBuffer::allocate(linear.panels_ * kPanelCols * sizeof(float));
  if (!linear.weights_.data() || (has_bias && !linear.bias_.data())) {
    return Status::resource_exhausted("no memory for " +
                                      std::to_string(linear.panel_bytes_ * linear.panels_) +
                                      " bytes of packed weights");
  }
  const RowSource source{parts, static_cast<int64_t>(linear.in_features_ /
                                                     dtype_info(linear.dtype_).block_elements *
                                                     dtype_info(linear.dtype_).block_bytes)};
  float* const bias = reinterpret_cast<float*>(linear.bias_.data());
  team.parallel_for(linear.panels_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      std::array<const void*, kPanelCols> sources{};
      for (int lane = 0; lane < kPanelCols; ++lane) {
        const int64_t row = (glu ? panel / 2 : panel) * kPanelCols + lane;
        if (row >= linear.part_rows_) break;
        const LinearPart* part = nullptr;
        int64_t part_row = 0;
        sources[lane] = source.weight(row + (glu && panel % 2 ? linear.part_rows_ : 0), &part,
                                      &part_row);
        if (part->bias.data) {
          const size_t element_bytes = dtype_info(part->bias.dtype).block_bytes;
          dequantize_row(part->bias.dtype,
                         static_cast<const char*>(part->bias.data) + part_row * element_bytes, 1,
                         bias + panel * kPanelCols + lane);
        }
      }
      pack_panel(linear.dtype_, sources, linear.in_features_,
                 reinterpret_cast<unsigned char*>(linear.weights_.data()) +
                     panel * linear.panel_bytes_);
    }
  });
  return linear;
}

void PackedLinear::weight_row(int64_t index, float* out) const {
  const bool glu = glu_ != GluActivation::none;
  assert(index >= 0 && index < part_rows_ * (glu ? 2 : 1));
  const int64_t row = index % part_rows_;
  const int64_t panel =
      glu ? row / kPanelCols * 2 + index / part_rows_ : row / kPanelCols;
  unpack_panel_row(dtype_,
                   reinterpret_cast<const unsigned char*>(weights_.data()) + panel * panel_bytes_,
                   static_cast<int>(row % kPanelCols), in_features_, out);
}

// ---- forward ----

namespace {

// A member of DequantizeKernels or Int8Kernels; they are called the same.
template <typename Kernels>
auto of_format(const Kernels& kernels, DType dtype) -> decltype(kernels.q8_0) {
  switch (dtype) {
    case DType::q8_0: return kernels.q8_0;
    case DType::q4_0: return kernels.q4_0;
    case DType::q4_1: return kernels.q4_1;
    case DType::q4_k: return kernels.q4_k;
    case DType::q5_k: return kernels.q5_k;
    case DType::q6_k: return kernels.q6_k;
    case DType::iq4_nl: return kernels.iq4_nl;
    case DType::iq4_xs: return kernels.iq4_xs;
    default: return nullptr;
  }
}

GemmTileFn tile_kernel(const LinearKernels& kernels, DType dtype, bool bf16_operands) {
  if (bf16_operands) return kernels.bf16_dot;
  if (dtype == DType::bf16) return kernels.bf16;
  if (dtype == DType::f16) return kernels.f16;
  return kernels.f32;
}

}  // namespace

int64_t PackedLinear::gemm_width() const {
  return uses_bf16_ ? (in_features_ + kBf16KUnit - 1) / kBf16KUnit * kBf16KUnit : in_features_;
}

// How a GEMM of prepared rows is cut into jobs, where `tiles_beside` of the widest tiles of other GEMMs
// keep the members busy, too.
PackedLinear::Plan PackedLinear::plan_tiles(const LinearInput& x, const LinearOutput& y, int64_t tiles_beside,
                                            int members) const {
  Plan plan{};
  plan.kernels = &kernels_of(tier_);
  plan.x = x.data;
  plan.integers = multiplies_integers(x.rows);
  plan.x_is_bf16 = uses_bf16_ || (uses_int8_ && !plan.integers);
  plan.x_stride = x.row_stride;
  plan.rows = x.rows;
  plan.y = y;
  plan.k = gemm_width();
  plan.row_blocks = (x.rows + kBlockRows - 1) / kBlockRows;
  // Narrower tiles when there are too few to keep every member busy to the end.
  const int64_t unit = glu_ == GluActivation::none ? 1 : 2;
  plan.tile_panels = std::max<int64_t>(unit, plan.kernels->tile_panels);
  while (plan.tile_panels > unit &&
         panels_ / plan.tile_panels * plan.row_blocks + tiles_beside < 4 * members) {
    plan.tile_panels /= 2;
  }
  plan.jobs = (panels_ + plan.tile_panels - 1) / plan.tile_panels * plan.row_blocks;
  return plan;
}

size_t PackedLinear::prepared_bytes(int64_t rows) const {
  return rows * (multiplies_integers(rows) ? int8_row_bytes(in_features_) : in_features_ * 2);
}

// Rows that meet blocks, in 8 bits or in bf16, written to `out`: dense, prepared_bytes() of them.
const void* PackedLinear::prepare_blocks_input(const LinearInput& x, std::byte* out, ThreadTeam& team) const {
  if (multiplies_integers(x.rows)) return quantize_input(x, out, team);
  convert_rows(x, {.width = in_features_, .padded_width = in_features_, .want_bf16 = true}, out, team);
  return out;
}

// The rows in 8 bits, written to `out`.
const void* PackedLinear::quantize_input(const LinearInput& x, std::byte* out, ThreadTeam& team) const {
  const auto quantize = kernels_of(tier_).int8->quantize;
  const int64_t row_bytes = int8_row_bytes(in_features_);
  const auto convert = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto* row = static_cast<const float*>(x.data) + r * x.row_stride;
      if (x.dtype == DType::bf16) {
        auto* const wide = reinterpret_cast<float*>(thread_scratch(LinearScratch::sums, in_features_ * sizeof(float)));
        bf16_to_f32_row(static_cast<const uint16_t*>(x.data) + r * x.row_stride, in_features_, wide);
        row = wide;
      }
      quantize(row, in_features_, reinterpret_cast<unsigned char*>(out + r * row_bytes));
    }
  };
  team.parallel_for(x.rows, std::max<int64_t>(1, (64 << 10) / in_features_), convert);
  return out;
}

void PackedLinear::forward(const LinearInput& x, const LinearOutput& y, ThreadTeam& team) const {
  assert(x.dtype == DType::f32 || x.dtype == DType::bf16);
  assert(y.dtype == DType::f32 || (y.dtype == DType::bf16 && !y.accumulate));
  assert(y.best == nullptr || (y.dtype == DType::f32 && !y.accumulate && y.addend.values == nullptr));
  if (x.rows == 0 || empty()) return;
  LinearInput prepared = x;
  if (uses_int8_) {
    prepared.data = prepare_blocks_input(x, thread_scratch(LinearScratch::input, prepared_bytes(x.rows)), team);
    prepared.row_stride = in_features_;
  } else {
    prepared.data = prepare_input(x, {.width = in_features_, .padded_width = gemm_width(), .want_bf16 = uses_bf16_},
                                  &prepared.row_stride, team);
  }
  const Plan plan = plan_tiles(prepared, y, 0, team.size());
  if (y.best != nullptr) return run_jobs_for_best(plan, team);
  if (x.rows * in_features_ * panels_ * kPanelCols <= kSerialWork) {
    for (int64_t job = 0; job < plan.jobs; ++job) run_job(plan, job, nullptr);
    return;
  }
  team.parallel_ranges(plan.jobs, [&](int, int64_t job) { run_job(plan, job, nullptr); });
}

void PackedLinear::forward_all(std::span<const LinearTask> tasks, ThreadTeam& team) {
  thread_local std::vector<Plan> plans;  // grow-only, as all scratch
  thread_local std::vector<int64_t> first_job;
  plans.clear();
  first_job.assign(1, 0);
  int64_t tiles = 0, work = 0;
  size_t prepared_bytes = 0;
  for (const LinearTask& task : tasks) {
    if (task.linear->uses_int8_) prepared_bytes += task.linear->prepared_bytes(task.x.rows);
    tiles += task.linear->panels_ / std::max(1, kernels_of(task.linear->tier_).tile_panels);
  }
  std::byte* prepared = prepared_bytes > 0 ? thread_scratch(LinearScratch::input, prepared_bytes) : nullptr;
  for (const LinearTask& task : tasks) {
    const PackedLinear& linear = *task.linear;
    assert(task.x.dtype == linear.preferred_input() && task.x.row_stride >= linear.gemm_width());
    assert(task.y.best == nullptr);
    const int64_t own = linear.panels_ / std::max(1, kernels_of(linear.tier_).tile_panels);
    LinearInput x = task.x;
    if (linear.uses_int8_ && x.rows > 0) {
      x.data = linear.prepare_blocks_input(task.x, prepared, team);
      x.row_stride = linear.in_features_;
      prepared += linear.prepared_bytes(x.rows);
    }
    plans.push_back(linear.plan_tiles(x, task.y, tiles - own, team.size()));
    first_job.push_back(first_job.back() + (task.x.rows > 0 ? plans.back().jobs : 0));
    work += task.x.rows * linear.in_features_ * linear.panels_ * kPanelCols;
  }
  // The members' own copies of these thread_locals are empty: they read this thread's.
  const auto run_job_of_all = [&tasks, &all = plans, &first = first_job](int, int64_t job) {
    const size_t task = std::upper_bound(first.begin(), first.end(), job) - first.begin() - 1;
    tasks[task].linear->run_job(all[task], job - first[task], nullptr);
  };
  if (work > kSerialWork) return team.parallel_ranges(first_job.back(), run_job_of_all);
  for (int64_t job = 0; job < first_job.back(); ++job) run_job_of_all(0, job);
}

void PackedLinear::run_jobs_for_best(const Plan& plan, ThreadTeam& team) const {
  const int members = team.size();
  RowBest* const partial = reinterpret_cast<RowBest*>(
      thread_scratch(LinearScratch::best, members * plan.rows * sizeof(RowBest)));
  std::fill_n(partial, members * plan.rows, RowBest{});
  team.parallel_ranges(plan.jobs,
                       [&](int member, int64_t job) { run_job(plan, job, partial + member * plan.rows); });
  for (int64_t r = 0; r < plan.rows; ++r) {
    RowBest best;
    for (int m = 0; m < members; ++m) {
      const RowBest& candidate = partial[m * plan.rows + r];
      if (candidate.value > best.value ||
          (candidate.value == best.value && candidate.column < best.column)) {
        best = candidate;
      }
    }
    plan.y.best[r] = best;
  }
}

// tile.acc = x * weights, by k ranges whose panels stay in the caches; blocks are widened range by range.
void PackedLinear::multiply_widened(const Plan& plan, GemmTile& tile, const unsigned char* weights,
                                    int64_t first_row) const {
  const int64_t x_bytes = plan.x_is_bf16 ? 2 : 4;
  const bool compressed = is_quantized(dtype_);
  const int64_t expanded_bytes = plan.x_is_bf16 || dtype_ == DType::f16 || dtype_ == DType::bf16 ? 2 : 4;
  const int64_t block_k =
      tile.rows <= kStreamedRows && !compressed
          ? plan.k
          : std::min(plan.k, kBlockBytesPerPanel / (expanded_bytes * kPanelCols));
  const DequantizeFn dequantize = of_format(plan.x_is_bf16 ? plan.kernels->to_bf16 : plan.kernels->to_f32, dtype_);
  const GemmTileFn multiply = tile_kernel(*plan.kernels, dtype_, plan.x_is_bf16);
  unsigned char* const expanded =
      compressed ? reinterpret_cast<unsigned char*>(thread_scratch(
                       LinearScratch::weights, tile.panels * block_k * kPanelCols * expanded_bytes))
                 : nullptr;

  for (int64_t k = 0; k < plan.k; k += block_k) {
    tile.k = static_cast<int>(std::min(block_k, plan.k - k));
    tile.x = static_cast<const char*>(plan.x) + (first_row * plan.x_stride + k) * x_bytes;
    tile.load_acc = k > 0;
    if (compressed) {
      tile.panel_bytes = tile.k * kPanelCols * expanded_bytes;
      tile.weights = expanded;
      for (int p = 0; p < tile.panels; ++p) {
        dequantize(weights + p * panel_bytes_, k, tile.k, expanded + p * tile.panel_bytes);
      }
    } else {
      tile.panel_bytes = static_cast<int64_t>(panel_bytes_);
      tile.weights = weights + panel_offset_bytes(dtype_, k);
    }
    multiply(tile);
  }
}

void PackedLinear::multiply_int8(const Plan& plan, const GemmTile& tile, const unsigned char* weights,
                                 int64_t first_row) const {
  const int64_t row_bytes = int8_row_bytes(in_features_);
  of_format(*plan.kernels->int8, dtype_)({.x = static_cast<const unsigned char*>(plan.x) + first_row * row_bytes,
                                          .x_stride_bytes = row_bytes,
                                          .rows = tile.rows,
                                          .k = in_features_,
                                          .weights = weights,
                                          .panel_bytes = static_cast<int64_t>(panel_bytes_),
                                          .panels = tile.panels,
                                          .acc = tile.acc,
                                          .acc_stride = tile.acc_stride});
}

// `best`: [plan.rows] of the running thread, or null.
void PackedLinear::run_job(const Plan& plan, int64_t job, RowBest* best) const {
  const int64_t first_panel = job / plan.row_blocks * plan.tile_panels;
  const int64_t first_row = job % plan.row_blocks * kBlockRows;
  const int panels = static_cast<int>(std::min(plan.tile_panels, panels_ - first_panel));
  const int rows = static_cast<int>(std::min(kBlockRows, plan.rows - first_row));
  const unsigned char* const weights =
      reinterpret_cast<const unsigned char*>(weights_.data()) + first_panel * panel_bytes_;

  GemmTile tile;
  tile.x_stride = plan.x_stride;
  tile.rows = rows;
  tile.panels = panels;
  tile.acc_stride = panels * kPanelCols;
  tile.acc = reinterpret_cast<float*>(
      thread_scratch(LinearScratch::sums, rows * tile.acc_stride * sizeof(float)));

  if (plan.integers) {
    multiply_int8(plan, tile, weights, first_row);
  } else {
    multiply_widened(plan, tile, weights, first_row);
  }

  const int sources = glu_ == GluActivation::none ? 1 : 2;
  const int64_t first_col = first_panel / sources * kPanelCols;
  FinishTile finish;
  finish.acc = tile.acc;
  finish.acc_stride = tile.acc_stride;
  finish.rows = rows;
  finish.bias = bias_.data()
                    ? reinterpret_cast<const float*>(bias_.data()) + first_panel * kPanelCols
                    : nullptr;
  finish.glu = glu_;
  finish.y_is_bf16 = plan.y.dtype == DType::bf16;
  finish.y_stride = plan.y.row_stride;
  finish.y = static_cast<char*>(plan.y.data) +
             (first_row * plan.y.row_stride + first_col) * (finish.y_is_bf16 ? 2 : 4);
  finish.accumulate = plan.y.accumulate;
  finish.cols = static_cast<int>(
      std::min<int64_t>(panels / sources * kPanelCols, out_features_ - first_col));
  finish.best = best != nullptr ? best + first_row : nullptr;
  if (const LinearAddend& addend = plan.y.addend; addend.values != nullptr) {
    finish.addend = addend.values + first_col;
    finish.addend_stride = addend.row_stride;
    finish.addend_rows = addend.rows + first_row;
    finish.addend_up = part_rows_;
  }
  finish.first_col = static_cast<int>(first_col);
  plan.kernels->finish(finish);
}

}  // namespace warpweave
