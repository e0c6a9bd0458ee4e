#include "adapters/torch/cuda/kernel_maker.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <memory>
#include <utility>

#include "base/error.h"

namespace lms::torch {
namespace {

/// PyTorch's own library that needs NVRTC, and knows where that is.
std::string beside_pytorch() {
  Dl_info found = {};
  if (dladdr(reinterpret_cast<const void*>(&c10::cuda::device_count), &found) == 0) return {};
  const std::string path = found.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "libcaffe2_nvrtc.so";
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    throw Error("CUDA does not say what the device is");
  }
  return value;
}

}  // namespace

int multiprocessors_for_replays(int device) noexcept {
  constexpr int kLeastMajor = 8;
  int major = 0;
  int count = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major < kLeastMajor ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
  return count;
}

KernelMaker::KernelMaker() {
  const std::string runtime = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
  for (const std::string& name : {beside_pytorch(), runtime, std::string("libcuda.so.1")}) {
    if (name.empty()) continue;
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) libraries_.push_back(library);
  }
  find(create_, "nvrtcCreateProgram");
  find(destroy_, "nvrtcDestroyProgram");
  find(compile_, "nvrtcCompileProgram");
  find(log_size_, "nvrtcGetProgramLogSize");
  find(log_, "nvrtcGetProgramLog");
  find(size_, "nvrtcGetCUBINSize");
  find(binary_, "nvrtcGetCUBIN");
  find(load_, "cuModuleLoadData");
  find(get_, "cuModuleGetFunction");
  find(launch_, "cuLaunchKernel");
}

template <typename Function>
void KernelMaker::find(Function& function, const char* name) const {
  for (void* library : libraries_) {
    // With everything that the library itself needs.
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function != nullptr) return;
  }
  throw Error(std::string("there is no ") + name + " here");
}

std::vector<char> KernelMaker::compile(const char* source,
                                       const std::vector<std::string>& options) const {
  Program program = nullptr;
  if (create_(&program, source, "lms.cu", 0, nullptr, nullptr) != 0) {
    throw Error("NVRTC does not take the source of a kernel");
  }
  const std::unique_ptr<Program, int (*)(Program*)> guard(&program, destroy_);
  std::vector<const char*> list;
  list.reserve(options.size());
  for (const std::string& option : options) list.push_back(option.c_str());
  if (compile_(program, static_cast<int>(list.size()), list.data()) != 0) {
    std::size_t size = 0;
    std::string log;
    if (log_size_(program, &size) == 0 && size > 0) {
      log.resize(size);
      (void)log_(program, log.data());
    }
    throw Error("NVRTC does not compile a kernel: " + log);
  }
  std::size_t size = 0;
  if (size_(program, &size) != 0 || size == 0) throw Error("NVRTC has made no kernel");
  std::vector<char> binary(size);
  if (binary_(program, binary.data()) != 0) throw Error("NVRTC gives no kernel");
  return binary;
}

CUfunction KernelMaker::make(const char* source, const char* name,
                             std::vector<std::string> options) const {
  options.push_back("--gpu-architecture=sm_" +
                    std::to_string(attribute(cudaDevAttrComputeCapabilityMajor)) +
                    std::to_string(attribute(cudaDevAttrComputeCapabilityMinor)));
  const std::vector<char> binary = compile(source, options);
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  if (load_(&module, binary.data()) != CUDA_SUCCESS) {
    throw Error("the driver does not load a kernel");
  }
  if (get_(&kernel, module, name) != CUDA_SUCCESS) {
    throw Error(std::string("there is no kernel ") + name);
  }
  return kernel;
}

bool KernelMaker::launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                         void** arguments) const noexcept {
  return launch_(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr) ==
         CUDA_SUCCESS;
}

}  // namespace lms::torch
