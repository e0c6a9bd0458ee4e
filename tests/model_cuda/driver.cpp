// The driver's functions that PyTorch's compiler of kernels is linked with. The library bears the
// driver's name, so that it finds them here. Without their header: what they take does not matter.

namespace {
constexpr int kNotSupported = 801;
}

#define LMS_NOT_HERE(name) \
  int name() { return kNotSupported; }

extern "C" {
int cuDevicePrimaryCtxGetState(int /*device*/, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
LMS_NOT_HERE(cuCtxGetCurrent)
LMS_NOT_HERE(cuCtxSetCurrent)
LMS_NOT_HERE(cuDeviceGet)
LMS_NOT_HERE(cuDeviceGetAttribute)
LMS_NOT_HERE(cuDevicePrimaryCtxRetain)
LMS_NOT_HERE(cuFuncGetAttribute)
LMS_NOT_HERE(cuFuncSetAttribute)
LMS_NOT_HERE(cuFuncSetCacheConfig)
LMS_NOT_HERE(cuGetErrorString)
LMS_NOT_HERE(cuLaunchCooperativeKernel)
LMS_NOT_HERE(cuLaunchKernel)
LMS_NOT_HERE(cuLinkAddData_v2)
LMS_NOT_HERE(cuLinkComplete)
LMS_NOT_HERE(cuLinkCreate_v2)
LMS_NOT_HERE(cuModuleGetFunction)
LMS_NOT_HERE(cuModuleLoad)
LMS_NOT_HERE(cuModuleLoadData)
LMS_NOT_HERE(cuModuleLoadDataEx)
LMS_NOT_HERE(cuModuleUnload)
LMS_NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
LMS_NOT_HERE(cuPointerGetAttribute)
LMS_NOT_HERE(cuTensorMapEncodeTiled)
}
