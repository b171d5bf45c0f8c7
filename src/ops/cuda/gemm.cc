#include "ops/cuda/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/log.h"
#include "device/cuda/library.h"
#include "device/cuda/stream.h"
#include "ops/cuda/small_gemm.h"

namespace warpweave::gpu {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 8;
// From here on neighbouring row counts share what tuning found.
constexpr int64_t kManyRows = 256;

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
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
  Status init(const GemmCall& call);
  // Puts another shape's algorithm first, if it takes this one.
  void try_first(const cublasLtMatmulAlgo_t& algorithm);
  int candidates() const { return static_cast<int>(algorithms.size()) + (own_kernel ? 1 : 0); }

  const Lt& lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  bool own_kernel = false;                 // the last candidate is small_gemm
  int chosen = 0;
  int next_tried = 0;
  bool tuned = false;
  std::vector<std::vector<float>> times_ms;  // by candidate, while tuning
};

// cuBLASLt thinks in columns: y^T [N, M] = W^T' [K, N]' * x^T [K, M].
Status GpuGemm::Plan::init(const GemmCall& call) {
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
            lt.preference_create(&preference) == CUBLAS_STATUS_SUCCESS;
  if (ok) {
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    ok = lt.heuristic(lt.handle, desc, w, x, y, y, preference, kMaxCandidates, results, &found) ==
         CUBLAS_STATUS_SUCCESS;
  }
  if (preference != nullptr) lt.preference_destroy(preference);
  for (int i = 0; ok && i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  own_kernel = small_gemm_takes(call);
  if (candidates() == 0) {
    return Status::internal("cuBLASLt has no algorithm for " + std::to_string(call.rows) + " x " +
                            std::to_string(linear.out_features) + " x " + std::to_string(linear.in_features));
  }
  if (own_kernel) chosen = candidates() - 1;
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

GpuGemm::GpuGemm() : lt_(std::make_unique<Lt>()) {}
GpuGemm::~GpuGemm() = default;

Result<std::unique_ptr<GpuGemm>> GpuGemm::create() {
  std::unique_ptr<GpuGemm> out(new GpuGemm);
  WW_RETURN_IF_ERROR(out->lt_->open());
  WW_ASSIGN_OR_RETURN(out->workspace_, DeviceBuffer::allocate(kWorkspaceBytes, "the products' workspace"));
  return out;
}

Result<GpuGemm::Plan*> GpuGemm::plan_for(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const Shape shape = {linear.out_features, linear.in_features, linear.dtype, call.y_dtype,
                       call.y_stride,       call.accumulate,    call.rows};
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second.get();
  auto made = std::make_unique<Plan>(*lt_);
  WW_RETURN_IF_ERROR(made->init(call));
  if (const Plan* tuned = tuned_neighbour(shape); tuned != nullptr && !tuning_) {
    made->try_first(tuned->algorithms[tuned->chosen]);
  }
  return (plans_[shape] = std::move(made)).get();
}

// The tuned plan of the same product with the nearest larger row count, else the nearest smaller.
const GpuGemm::Plan* GpuGemm::tuned_neighbour(const Shape& shape) const {
  constexpr size_t kRows = std::tuple_size_v<Shape> - 1;
  const auto same_product = [&](const Shape& other) {
    return std::get<kRows>(other) >= kManyRows &&
           std::tie(std::get<0>(other), std::get<1>(other), std::get<2>(other), std::get<3>(other),
                    std::get<4>(other), std::get<5>(other)) ==
               std::tie(std::get<0>(shape), std::get<1>(shape), std::get<2>(shape), std::get<3>(shape),
                        std::get<4>(shape), std::get<5>(shape));
  };
  if (std::get<kRows>(shape) < kManyRows) return nullptr;
  const Plan* best = nullptr;
  for (const auto& [other, plan] : plans_) {
    if (!plan->tuned || !same_product(other) || plan->chosen >= static_cast<int>(plan->algorithms.size())) continue;
    best = plan.get();
    if (std::get<kRows>(other) >= std::get<kRows>(shape)) break;  // rows ascend in the map
  }
  return best;
}

Status GpuGemm::run_candidate(const Plan& plan, int candidate, const GemmCall& call, Stream stream) {
  if (candidate == static_cast<int>(plan.algorithms.size())) {
    small_gemm(call, stream);
    return {};
  }
  const float alpha = 1, beta = call.accumulate ? 1 : 0;
  const cublasStatus_t status =
      lt_->matmul(lt_->handle, plan.desc, &alpha, call.linear->weight, plan.w, call.x, plan.x, &beta, call.y, plan.y,
                  call.y, plan.y, &plan.algorithms[candidate], workspace_.as<void>(), workspace_.size_bytes(),
                  static_cast<cudaStream_t>(stream));
  if (status != CUBLAS_STATUS_SUCCESS) {
    return Status::internal("cuBLASLt returned " + std::to_string(status) + " for a product of " +
                            std::to_string(call.rows) + " rows");
  }
  return {};
}

Status GpuGemm::run(const GemmCall& call, Stream stream) {
  if (call.rows == 0) return {};
  WW_ASSIGN_OR_RETURN(Plan* const plan, plan_for(call));
  if (!tuning_) {
    WW_RETURN_IF_ERROR(run_candidate(*plan, plan->chosen, call, stream));
  } else {
    const int candidate = plan->next_tried++ % plan->candidates();
    plan->times_ms.resize(plan->candidates());
    CudaEvent begin, end;
    WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(begin.out()), "an event");
    WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(end.out()), "an event");
    const auto on = static_cast<cudaStream_t>(stream);
    cudaEventRecord(begin.get(), on);
    WW_RETURN_IF_ERROR(run_candidate(*plan, candidate, call, stream));
    cudaEventRecord(end.get(), on);
    WW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end.get()), "timing a product");
    cudaEventElapsedTime(&plan->times_ms[candidate].emplace_back(), begin.get(), end.get());
  }
  if (call.linear->bias != nullptr) {
    add_bias(call.y, call.y_dtype, call.rows, call.linear->out_features, call.y_stride, call.linear->bias, stream);
  }
  return {};
}

void GpuGemm::log_tuned(const Shape& shape, const Plan& plan) {
  std::string times;
  for (const std::vector<float>& of_candidate : plan.times_ms) {
    if (!of_candidate.empty()) times += " " + std::to_string(of_candidate[of_candidate.size() / 2] * 1000.0f);
  }
  LOG_DEBUG("product of {} rows, {} x {}: candidate {} of {}{}; us:{}", std::get<6>(shape), std::get<0>(shape),
            std::get<1>(shape), plan.chosen, plan.candidates(), plan.own_kernel ? " (the last is our own)" : "", times);
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
