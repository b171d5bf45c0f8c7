#include "ops/cuda/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <string>

#include "base/log.h"
#include "device/cuda/copy.h"
#include "device/cuda/library.h"
#include "device/cuda/stream.h"
#include "ops/cuda/cluster_gemm.h"
#include "ops/cuda/small_gemm.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/tile_gemm.h"
#include "ops/cuda/wide_gemm.h"

namespace warpweave::gpu {
namespace {

static_assert(kStreamGemmCodeRows <= kMostPartialRows && kTileGemmRows <= kMostPartialRows);

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 16;
// From here on neighbouring row counts share what tuning found.
constexpr int64_t kManyRows = 128;
// Weights of this size leave nothing of themselves in the cache: their GEMM may be timed again at once.
constexpr int64_t kUncachedBytes = int64_t{256} << 20;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f16: return CUDA_R_16F;
    case DType::fp8_e4m3: return CUDA_R_8F_E4M3;
    default: return CUDA_R_16BF;
  }
}

}  // namespace

// cuBLASLt's functions, found at run time.
struct GpuGemm::Lt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  cublasLtHandle_t handle = nullptr;

  Status open();
  ~Lt() {
    if (handle != nullptr) destroy(handle);
  }
};

Status GpuGemm::Lt::open() {
  WW_ASSIGN_OR_RETURN(const SharedLibrary library,
                      SharedLibrary::open({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}));
  bool found = true;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.find(name));
    found &= function != nullptr;
  };
  get(create, "cublasLtCreate");
  get(destroy, "cublasLtDestroy");
  get(matmul, "cublasLtMatmul");
  get(desc_create, "cublasLtMatmulDescCreate");
  get(desc_destroy, "cublasLtMatmulDescDestroy");
  get(desc_set, "cublasLtMatmulDescSetAttribute");
  get(layout_create, "cublasLtMatrixLayoutCreate");
  get(layout_destroy, "cublasLtMatrixLayoutDestroy");
  get(preference_create, "cublasLtMatmulPreferenceCreate");
  get(preference_destroy, "cublasLtMatmulPreferenceDestroy");
  get(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  get(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  get(algorithm_check, "cublasLtMatmulAlgoCheck");
  get(algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  if (!found) return Status::unsupported(library.path() + " lacks functions of cuBLASLt; install CUDA 12 or newer");
  if (create(&handle) != CUBLAS_STATUS_SUCCESS) return Status::internal(library.path() + ": cublasLtCreate failed");
  return {};
}

// One shape: its descriptors, the algorithms that may run it, and which one does.
struct GpuGemm::Plan {
  explicit Plan(const Lt& lt_in) : lt(lt_in) {}
  ~Plan() {
    if (desc != nullptr) lt.desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) lt.layout_destroy(layout);
    }
  }
  // `whole`: only algorithms that do not split the depth.
  Status init(const GemmCall& call, bool whole, bool fast_accumulation);
  // Where the scales of this call's operands are; true for operands without.
  bool set_scales(const GemmCall& call) const;
  // Puts another shape's algorithm first, if it takes this one.
  void try_first(const cublasLtMatmulAlgo_t& algorithm);
  bool set_fp8(const GemmCall& call, bool fast_accumulation);
  int candidates() const { return static_cast<int>(algorithms.size()); }

  const Lt& lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  int chosen = 0;
  int next_tried = 0;
  bool tuned = false;
  std::vector<std::vector<float>> times_ms;  // by candidate, while tuning
};

bool GpuGemm::Plan::set_scales(const GemmCall& call) const {
  if (call.x_scales == nullptr) return true;
  const void* const w_scales = call.linear->scales;
  const void* const x_scales = call.x_scales;
  return lt.desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales, sizeof(w_scales)) ==
             CUBLAS_STATUS_SUCCESS &&
         lt.desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales, sizeof(x_scales)) == CUBLAS_STATUS_SUCCESS;
}

bool GpuGemm::Plan::set_fp8(const GemmCall& call, bool fast_accumulation) {
  if (call.x_scales == nullptr) return true;
  const bool blocks = call.linear->scaling == Fp8Scaling::block;
  const int32_t w_mode = blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  const int32_t x_mode = blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  const int8_t fast = fast_accumulation && !blocks;  // sums of blocks are scaled one by one
  return lt.desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w_mode, sizeof(w_mode)) == CUBLAS_STATUS_SUCCESS &&
         lt.desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x_mode, sizeof(x_mode)) == CUBLAS_STATUS_SUCCESS &&
         lt.desc_set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)) == CUBLAS_STATUS_SUCCESS &&
         set_scales(call);
}

// cuBLASLt thinks in columns: y^T [N, M] = W^T' [K, N]' * x^T [K, M].
Status GpuGemm::Plan::init(const GemmCall& call, bool whole, bool fast_accumulation) {
  const GpuLinear& linear = *call.linear;
  const auto type = cuda_type(linear.dtype), y_type = cuda_type(call.y_dtype);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulPreference_t preference = nullptr;
  size_t workspace = kWorkspaceBytes;
  cublasLtMatmulHeuristicResult_t results[kMaxCandidates];
  int found = 0;
  bool ok = lt.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
            lt.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
            lt.layout_create(&w, type, linear.in_features, linear.out_features, linear.in_features) ==
                CUBLAS_STATUS_SUCCESS &&
            lt.layout_create(&x, type, linear.in_features, call.rows, linear.in_features) == CUBLAS_STATUS_SUCCESS &&
            lt.layout_create(&y, y_type, linear.out_features, call.rows, call.y_stride) == CUBLAS_STATUS_SUCCESS &&
            set_fp8(call, fast_accumulation) && lt.preference_create(&preference) == CUBLAS_STATUS_SUCCESS;
  if (ok) {
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (whole) {
      lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof(no_reduction));
    }
    ok = lt.heuristic(lt.handle, desc, w, x, y, y, preference, kMaxCandidates, results, &found) ==
         CUBLAS_STATUS_SUCCESS;
  }
  if (preference != nullptr) lt.preference_destroy(preference);
  for (int i = 0; ok && i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  if (algorithms.empty()) {
    return Status::internal("cuBLASLt has no algorithm for " + std::to_string(call.rows) + " x " +
                            std::to_string(linear.out_features) + " x " + std::to_string(linear.in_features));
  }
  return {};
}

void GpuGemm::Plan::try_first(const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  if (lt.algorithm_check(lt.handle, desc, w, x, y, y, &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > kWorkspaceBytes) {
    return;
  }
  algorithms.insert(algorithms.begin(), algorithm);
  chosen = 0;
}

struct GpuGemm::Algorithm {
  cublasLtMatmulAlgo_t value;
};

namespace {

// The rows of which each candidate's last is compared with the same one of the first number.
constexpr int64_t kInvariantRows[] = {512, 64, 16, 1};
constexpr size_t kTimedRows[] = {0, 2};  // places in kInvariantRows
constexpr int kTimedRuns = 3;

// Inputs and outputs to try algorithms of one GEMM on: the weights' own rows serve as inputs.
struct InvariantTrial {
  DeviceBuffer x, y;
  GemmCall call;

  Status init(const GemmCall& of) {
    const GpuLinear& linear = *of.linear;
    const size_t row_bytes = linear.in_features * dtype_info(linear.dtype).block_bytes;
    call = of;
    call.accumulate = false;
    WW_ASSIGN_OR_RETURN(x, DeviceBuffer::allocate(kInvariantRows[0] * row_bytes, "trying GEMMs"));
    WW_ASSIGN_OR_RETURN(y, DeviceBuffer::allocate(kInvariantRows[0] * y_row_bytes(), "trying GEMMs"));
    for (int64_t row = 0; row < kInvariantRows[0]; row += linear.out_features) {
      const int64_t rows = std::min(linear.out_features, kInvariantRows[0] - row);
      WW_RETURN_IF_ERROR(copy_now(x.as<char>() + row * row_bytes, linear.weight, rows * row_bytes, "trying GEMMs"));
    }
    call.x = x.as<void>();
    call.y = y.as<void>();
    return {};
  }
  size_t y_row_bytes() const { return call.y_stride * dtype_info(call.y_dtype).block_bytes; }
  Result<std::vector<char>> row(int64_t index) const {
    std::vector<char> out(call.linear->out_features * dtype_info(call.y_dtype).block_bytes);
    WW_RETURN_IF_ERROR(copy_now(out.data(), y.as<char>() + index * y_row_bytes(), out.size(), "trying GEMMs"));
    return out;
  }
};

}  // namespace

GpuGemm::GpuGemm() : lt_(std::make_unique<Lt>()) {}
GpuGemm::~GpuGemm() = default;

Result<std::unique_ptr<GpuGemm>> GpuGemm::create() {
  std::unique_ptr<GpuGemm> out(new GpuGemm);
  WW_RETURN_IF_ERROR(out->lt_->open());
  WW_ASSIGN_OR_RETURN(out->workspace_, DeviceBuffer::allocate(kWorkspaceBytes, "the GEMMs' workspace"));
  return out;
}

GpuGemm::Shape GpuGemm::shape_of(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  return {linear.out_features, linear.in_features, {linear.dtype, linear.scaling}, call.y_dtype,
          call.y_stride,       call.accumulate,    call.rows};
}

Result<GpuGemm::Plan*> GpuGemm::plan_for(const GemmCall& call, Stream stream) {
  const Shape shape = shape_of(call);
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();
  auto made = std::make_unique<Plan>(*lt_);
  WW_RETURN_IF_ERROR(made->init(call, batch_invariant_, fp8_fast_accumulation_));
  if (batch_invariant_) {
    WW_RETURN_IF_ERROR(fix_algorithm(shape, call, stream, *made));
  } else if (const Plan* tuned = tuned_neighbour(shape); tuned != nullptr && !tuning_) {
    made->try_first(tuned->algorithms[tuned->chosen]);
  }
  return (plans_[shape] = std::move(made)).get();
}

// Gives `plan` the algorithm of its GEMM, chosen when the GEMM is first met: of those that pass,
// the one with the least product of its times at many and at few rows.
Status GpuGemm::fix_algorithm(const Shape& shape, const GemmCall& call, Stream stream, Plan& plan) {
  Shape without_rows = shape;
  std::get<6>(without_rows) = 0;
  std::unique_ptr<Algorithm>& kept = invariant_[without_rows];
  if (kept == nullptr) {
    WW_ASSIGN_OR_RETURN(const Algorithm chosen, choose_invariant(call, stream));
    kept = std::make_unique<Algorithm>(chosen);
  }
  plan.algorithms.clear();
  plan.try_first(kept->value);
  if (!plan.algorithms.empty()) return {};
  return Status::unsupported("--enable-deterministic-inference: the algorithm of a GEMM does not take " +
                             std::to_string(call.rows) + " rows", "--enable-deterministic-inference");
}

Result<GpuGemm::Algorithm> GpuGemm::choose_invariant(const GemmCall& call, Stream stream) {
  InvariantTrial trial;
  WW_RETURN_IF_ERROR(trial.init(call));
  std::vector<std::unique_ptr<Plan>> plans;
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (int64_t rows : kInvariantRows) {
    trial.call.rows = rows;
    plans.push_back(std::make_unique<Plan>(*lt_));
    WW_RETURN_IF_ERROR(plans.back()->init(trial.call, /*whole=*/true, /*fast_accumulation=*/false));
    for (const cublasLtMatmulAlgo_t& algorithm : plans.back()->algorithms) {
      int32_t splits = 0;
      size_t written = 0;
      lt_->algorithm_get(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written);
      if (splits <= 1) candidates.push_back(algorithm);
    }
  }
  WW_ASSIGN_OR_RETURN(const CudaEvent begin, create_timed_event());
  WW_ASSIGN_OR_RETURN(const CudaEvent end, create_timed_event());
  // The product of its times, or a negative number: it does not pass.
  const auto try_one = [&](const cublasLtMatmulAlgo_t& candidate) -> Result<double> {
    double score = 1;
    std::vector<std::vector<char>> many;
    for (size_t i = 0; i < std::size(kInvariantRows); ++i) {
      Plan& plan = *plans[i];
      plan.algorithms.clear();
      plan.try_first(candidate);
      if (plan.algorithms.empty()) return -1.0;
      trial.call.rows = kInvariantRows[i];
      const bool timed = std::find(std::begin(kTimedRows), std::end(kTimedRows), i) != std::end(kTimedRows);
      WW_RETURN_IF_ERROR(run_candidate(plan, 0, trial.call, stream));
      if (timed) {
        WW_RETURN_IF_ERROR(record_event(begin.get(), stream, "timing a GEMM"));
        for (int run = 0; run < kTimedRuns; ++run) WW_RETURN_IF_ERROR(run_candidate(plan, 0, trial.call, stream));
        WW_RETURN_IF_ERROR(record_event(end.get(), stream, "timing a GEMM"));
      }
      WW_RETURN_IF_ERROR(wait_for_stream(stream, "trying GEMMs"));
      if (const auto ms = timed ? elapsed_ms(begin, end) : std::nullopt) score *= *ms;
      if (i == 0) {
        for (int64_t rows : kInvariantRows) {
          WW_ASSIGN_OR_RETURN(many.emplace_back(), trial.row(rows - 1));
        }
      }
      WW_ASSIGN_OR_RETURN(const std::vector<char> alone, trial.row(kInvariantRows[i] - 1));
      if (alone != many[i]) return -1.0;
    }
    return score;
  };
  std::optional<Algorithm> best;
  double best_score = std::numeric_limits<double>::infinity();
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    WW_ASSIGN_OR_RETURN(const double score, try_one(candidate));
    if (score >= 0 && score < best_score) best = {candidate}, best_score = score;
  }
  if (best) return *best;
  return Status::unsupported("--enable-deterministic-inference: cuBLASLt has no algorithm for " +
                             std::to_string(call.linear->out_features) + " x " +
                             std::to_string(call.linear->in_features) + " that gives a row the same bits in any batch; "
                             "use --device cpu", "--enable-deterministic-inference");
}

// The tuned plan of the same GEMM with the nearest larger row count, else the nearest smaller.
const GpuGemm::Plan* GpuGemm::tuned_neighbour(const Shape& shape) const {
  constexpr size_t kRows = std::tuple_size_v<Shape> - 1;
  const auto same_gemm = [&](const Shape& other) {
    return std::get<kRows>(other) >= kManyRows &&
           std::tie(std::get<0>(other), std::get<1>(other), std::get<2>(other), std::get<3>(other),
                    std::get<4>(other), std::get<5>(other)) ==
               std::tie(std::get<0>(shape), std::get<1>(shape), std::get<2>(shape), std::get<3>(shape),
                        std::get<4>(shape), std::get<5>(shape));
  };
  if (std::get<kRows>(shape) < kManyRows) return nullptr;
  const Plan* best = nullptr;
  for (const auto& [other, plan] : plans_) {
    if (!plan->tuned || !same_gemm(other)) continue;
    best = plan.get();
    if (std::get<kRows>(other) >= std::get<kRows>(shape)) break;  // rows ascend in the map
  }
  return best;
}

Status GpuGemm::run_candidate(const Plan& plan, int candidate, const GemmCall& call, Stream stream) {
  const float alpha = 1, beta = call.accumulate ? 1 : 0;
  if (!plan.set_scales(call)) return Status::internal("cuBLASLt takes no scales of 8-bit operands");
  const cublasStatus_t status =
      lt_->matmul(lt_->handle, plan.desc, &alpha, call.linear->weight, plan.w, call.x, plan.x, &beta, call.y, plan.y,
                  call.y, plan.y, &plan.algorithms[candidate], workspace_.as<void>(), workspace_.size_bytes(),
                  static_cast<cudaStream_t>(stream));
  if (status != CUBLAS_STATUS_SUCCESS) {
    return Status::internal("cuBLASLt returned " + std::to_string(status) + " for a GEMM of " +
                            std::to_string(call.rows) + " rows");
  }
  return {};
}

// The kernel of our own that may take this call, by its rows.
GpuGemm::Kernel GpuGemm::kernel_for(const GemmCall& call) const {
  if (batch_invariant_ || library_only_) return Kernel::library;
  if (call.linear->dtype == DType::fp8_e4m3) return streams_codes(call) ? Kernel::stream : Kernel::library;
  if (small_gemm_takes(call)) return Kernel::small;
  if (call.rows > kSmallGemmRows && stream_gemm_takes(call)) return Kernel::stream;
  if (tile_gemm_takes(call) && tile_gemm_pays(call)) return Kernel::tile;
  return wide_gemm_pays(call) ? Kernel::wide : Kernel::library;
}

bool GpuGemm::takes_fused(const GemmCall& call) const {
  if (call.rows == 0) return false;
  const Kernel kernel = kernel_for(call);
  return kernel == Kernel::small || (call.fused_glu && kernel != Kernel::library);
}

bool GpuGemm::takes_addend(const GemmCall& call) const {
  if (call.linear->dtype == DType::f32 || call.linear->dtype == DType::fp8_e4m3) return false;
  return kernel_for(call) == Kernel::small;
}

bool GpuGemm::takes_adapters(const GemmCall& call) const {
  return call.linear->dtype != DType::fp8_e4m3 && kernel_for(call) == Kernel::stream && (call.partials != nullptr || call.fused_glu);
}

int GpuGemm::partial_splits(const GemmCall& call) const {
  const Kernel kernel = kernel_for(call);
  if (kernel == Kernel::library || cluster_gemm_pays_added(call)) return 0;
  if (kernel == Kernel::stream) return stream_plan(call).splits;
  if (kernel == Kernel::small || kernel == Kernel::wide) return 0;
  const int sums = tile_plan(call).splits;
  return sums == 1 && call.y_dtype != DType::f32 ? 0 : sums;  // one sum is y itself, unless y is to be added to
}

bool GpuGemm::runs_library(const GemmCall& call) const {
  return kernel_for(call) == Kernel::library && (batch_invariant_ || library_only_ || !cluster_gemm_pays(call));
}

Status GpuGemm::run(const GemmCall& call, Stream stream) {
  if (call.rows == 0) return {};
  assert(call.addend.values == nullptr || takes_addend(call));
  assert(call.adapters == nullptr || takes_adapters(call));
  WW_RETURN_IF_ERROR(call.linear->dtype == DType::fp8_e4m3 ? run_fp8(call, stream) : run_16_bit(call, stream));
  if (call.linear->bias != nullptr) add_bias(call, stream);
  return {};
}

Status GpuGemm::run_16_bit(const GemmCall& call, Stream stream) {
  const bool plain = call.partials == nullptr && !call.fused_glu;
  // Of all kernels cluster_gemm alone settles, and it comes behind the library's case.
  switch (call.settles ? Kernel::library : kernel_for(call)) {
    case Kernel::small: small_gemm(call, stream); return {};
    case Kernel::stream:
      if (plain) break;
      stream_gemm(call, stream_plan(call), call.partials, stream);
      return {};
    case Kernel::tile: {
      const TilePlan plan = tile_plan(call);
      if (plain && plan.splits > 1) break;
      tile_gemm(call, plan, call.partials, stream);
      return {};
    }
    case Kernel::wide: wide_gemm(call, wide_plan(call), stream); return {};
    case Kernel::library: break;
  }
  if (!plain || batch_invariant_ || library_only_ || !cluster_gemm_pays(call)) return run_by_plan(call, stream);
  cluster_gemm(call, cluster_plan(call), stream);
  return {};
}

Status GpuGemm::run_by_plan(const GemmCall& call, Stream stream) {
  WW_ASSIGN_OR_RETURN(Plan* const plan, plan_for(call, stream));
  const bool trying = tuning_ && !batch_invariant_;
  return trying ? try_candidates(*plan, call, stream) : run_candidate(*plan, plan->chosen, call, stream);
}

// Times the next candidate, or all of them. The first use of each loads its code and is not timed.
Status GpuGemm::try_candidates(Plan& plan, const GemmCall& call, Stream stream) {
  if (plan.times_ms.empty()) {
    plan.times_ms.resize(plan.candidates());
    for (int i = 0; i < plan.candidates(); ++i) WW_RETURN_IF_ERROR(run_candidate(plan, i, call, stream));
  }
  const GpuLinear& linear = *call.linear;
  const int64_t weight_bytes = linear.in_features * linear.out_features * dtype_info(linear.dtype).block_bytes;
  const int tries = weight_bytes >= kUncachedBytes ? plan.candidates() : 1;
  for (int i = 0; i < tries; ++i) {
    const int candidate = plan.next_tried++ % plan.candidates();
    WW_ASSIGN_OR_RETURN(const CudaEvent begin, create_timed_event());
    WW_ASSIGN_OR_RETURN(const CudaEvent end, create_timed_event());
    WW_RETURN_IF_ERROR(record_event(begin.get(), stream, "timing a GEMM"));
    WW_RETURN_IF_ERROR(run_candidate(plan, candidate, call, stream));
    WW_RETURN_IF_ERROR(record_event(end.get(), stream, "timing a GEMM"));
    WW_RETURN_IF_ERROR(wait_for_event(end.get(), "timing a GEMM"));
    // What could not be timed is not chosen.
    plan.times_ms[candidate].push_back(elapsed_ms(begin, end).value_or(std::numeric_limits<float>::infinity()));
  }
  return {};
}

void GpuGemm::log_tuned(const Shape& shape, const Plan& plan) {
  std::string times;
  for (const std::vector<float>& of_candidate : plan.times_ms) {
    if (!of_candidate.empty()) times += " " + std::to_string(of_candidate[of_candidate.size() / 2] * 1000.0f);
  }
  LOG_DEBUG("GEMM of {} rows, {} x {}: candidate {} of {}; us:{}", std::get<6>(shape), std::get<0>(shape),
            std::get<1>(shape), plan.chosen, plan.candidates(), times);
}

void GpuGemm::stop_tuning() {
  tuning_ = false;
  for (auto& [shape, plan] : plans_) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < static_cast<int>(plan->times_ms.size()); ++i) {
      std::vector<float>& times = plan->times_ms[i];
      if (times.empty()) continue;
      std::sort(times.begin(), times.end());
      if (const float median = times[times.size() / 2]; median < best) {
        best = median;
        plan->chosen = i;
        plan->tuned = true;
      }
    }
    if (!plan->times_ms.empty()) log_tuned(shape, *plan);
    plan->times_ms.clear();
  }
}

}  // namespace warpweave::gpu
