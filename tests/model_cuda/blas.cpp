// Products of matrices in a costless run (costless.h): cuBLAS cannot begin without a driver. What
// the functions take does not matter where they give nothing back.

#include "model_cuda/costless.h"
#include "model_cuda/model.h"

namespace {

int product(void* stream) {
  const std::lock_guard guard(model::model_now().mutex);
  model::model_now().times.of(model::id_of(stream)) += model::Times::kKernel;
  return 0;
}

int refused_unless_costless() {
  constexpr int kNotInitialized = 1;
  return model::costless() ? 0 : kNotInitialized;
}

/// The stream of the thread's last cublasSetStream().
thread_local void* current = nullptr;

int make(void** handle) {
  *handle = &current;
  return refused_unless_costless();
}

}  // namespace

#define LMS_PRODUCT(name) \
  int name() { return product(current); }
#define LMS_NOTHING(name) \
  int name() { return refused_unless_costless(); }

extern "C" {
int cublasCreate_v2(void** handle) { return make(handle); }
int cublasSetStream_v2(void* /*handle*/, void* stream) {
  current = stream;
  return refused_unless_costless();
}
int cublasGetMathMode(void* /*handle*/, int* mode) {
  *mode = 0;
  return 0;
}
int cublasGetPointerMode_v2(void* /*handle*/, int* mode) {
  *mode = 0;
  return 0;
}
LMS_NOTHING(cublasDestroy_v2)
LMS_NOTHING(cublasSetWorkspace_v2)
LMS_NOTHING(cublasSetMathMode)
LMS_NOTHING(cublasSetPointerMode_v2)
LMS_PRODUCT(cublasSgemm_v2)
LMS_PRODUCT(cublasGemmEx)
LMS_PRODUCT(cublasSgemmStridedBatched)
LMS_PRODUCT(cublasGemmStridedBatchedEx)

int cublasLtCreate(void** handle) { return make(handle); }
int cublasLtMatmulDescCreate(void** made, int, int) { return make(made); }
int cublasLtMatrixLayoutCreate(void** made, int, unsigned long, unsigned long, long) {
  return make(made);
}
int cublasLtMatmulPreferenceCreate(void** made) { return make(made); }
LMS_NOTHING(cublasLtDestroy)
LMS_NOTHING(cublasLtMatmulDescDestroy)
LMS_NOTHING(cublasLtMatmulDescSetAttribute)
LMS_NOTHING(cublasLtMatrixLayoutDestroy)
LMS_NOTHING(cublasLtMatrixLayoutSetAttribute)
LMS_NOTHING(cublasLtMatmulPreferenceDestroy)
LMS_NOTHING(cublasLtMatmulPreferenceSetAttribute)
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*,
                                   int* found) {
  *found = 1;
  return refused_unless_costless();
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, std::size_t,
                   void* stream) {
  return product(stream);
}
}
