#pragma once

// Every difference between the PyTorch releases that LMS supports, in one place.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/headeronly/version.h>

#define LMS_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||      \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !LMS_TORCH_AT_LEAST(2, 11)
#error "LMS needs PyTorch 2.11 or newer"
#endif

/// Virtual functions that c10::cuda's allocator has gained since 2.11.
#if LMS_TORCH_AT_LEAST(2, 15)
#define LMS_FORWARD_NEWER_ALLOCATOR_FUNCTIONS                                                     \
  void markCaptureBegin(Index device) override { native_->markCaptureBegin(device); }             \
  void markCaptureEnd(Index device) override { native_->markCaptureEnd(device); }                 \
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override {            \
    return native_->getContextForPointer(p);                                                      \
  }                                                                                               \
  bool supportsUserMetadata() override { return native_->supportsUserMetadata(); }                \
  void annotateMemory(const void* p, const std::string& text) override {                          \
    native_->annotateMemory(p, text);                                                             \
  }                                                                                               \
  void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) \
      override {                                                                                  \
    native_->attachOomRejectionObserver(std::move(observer));                                     \
  }                                                                                               \
  c10::DataPtr allocateWithAddress(size_t n, void* p) override {                                  \
    return native_->allocateWithAddress(n, p);                                                    \
  }
#else
#define LMS_FORWARD_NEWER_ALLOCATOR_FUNCTIONS
#endif

/// Tensors whose dimensions have names; none since 2.15.
#if LMS_TORCH_AT_LEAST(2, 15)
#define LMS_HAS_NAMES(tensor) false
#else
#define LMS_HAS_NAMES(tensor) (tensor).has_names()
#endif

namespace lms::torch {

/// The kernel that can be called without boxes.
#if LMS_TORCH_AT_LEAST(2, 15)
inline const c10::KernelFunction& unboxed(const c10::SafeKernelFunction& kernel) {
  return kernel.kernelFunction();
}
#else
namespace before_2_15 {

// 2.11 has it, and no way to it. The language lets explicit instantiations name private members.
struct Kernel {
  using Member = c10::KernelFunction c10::SafeKernelFunction::*;
  friend constexpr Member member(Kernel);
};
template <typename Tag, typename Tag::Member kMember>
struct Named {
  friend constexpr typename Tag::Member member(Tag) { return kMember; }
};
template struct Named<Kernel, &c10::SafeKernelFunction::kernel_>;

}  // namespace before_2_15

inline const c10::KernelFunction& unboxed(const c10::SafeKernelFunction& kernel) {
  return kernel.*member(before_2_15::Kernel{});
}
#endif

}  // namespace lms::torch
