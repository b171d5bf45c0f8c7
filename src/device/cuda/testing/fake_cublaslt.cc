// A cuBLASLt that multiplies nothing, see fake_cuda.h. Opened at run time, as the real one is.
#include <cublasLt.h>

#include <cstring>

#include "device/cuda/testing/fake_cuda.h"

namespace {

cublasStatus_t counted(const char* name) {
  return ww_fake_cuda_count_call(name) ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t make(const char* name, Handle* out) {
  if (ww_fake_cuda_count_call(name)) return CUBLAS_STATUS_ALLOC_FAILED;
  *out = reinterpret_cast<Handle>(new char());
  ww_fake_cuda_count_blas_object(1);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t release(Handle handle) {
  if (handle == nullptr) return CUBLAS_STATUS_SUCCESS;
  delete reinterpret_cast<const char*>(handle);
  ww_fake_cuda_count_blas_object(-1);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) { return make("cublasLtCreate", out); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return release(handle); }
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                              const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t,
                              void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  return counted("cublasLtMatmul");
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t, cudaDataType_t) {
  return make("cublasLtMatmulDescCreate", out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return release(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*,
                                              size_t) {
  return counted("cublasLtMatmulDescSetAttribute");
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType, uint64_t, uint64_t, int64_t) {
  return make("cublasLtMatrixLayoutCreate", out);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return release(layout); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  return make("cublasLtMatmulPreferenceCreate", out);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return release(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return counted("cublasLtMatmulPreferenceSetAttribute");
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = wanted > 0 ? 1 : 0;
  if (wanted > 0) std::memset(results, 0, sizeof(*results));
  return counted("cublasLtMatmulAlgoGetHeuristic");
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
  std::memset(result, 0, sizeof(*result));
  return counted("cublasLtMatmulAlgoCheck");
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoConfigAttributes_t,
                                                    void* value, size_t bytes, size_t* written) {
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return counted("cublasLtMatmulAlgoConfigGetAttribute");
}

}  // extern "C"
