#pragma once

// Every difference between the PyTorch releases that LMS supports, in one place.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/headeronly/version.h>

#include <memory>

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

// The language lets explicit instantiations name private members.
namespace members {

template <typename Tag, typename Tag::Member kMember>
struct Named {
  friend constexpr typename Tag::Member member(Tag) { return kMember; }
};
struct Token {
  using Member = std::shared_ptr<c10::KernelToken> c10::SafeKernelFunction::*;
  friend constexpr Member member(Token);
};
template struct Named<Token, &c10::SafeKernelFunction::token_>;
struct Boxed {
  using Member = c10::BoxedKernel c10::KernelFunction::*;
  friend constexpr Member member(Boxed);
};
template struct Named<Boxed, &c10::KernelFunction::boxed_kernel_func_>;
struct Functor {
  using Member = c10::intrusive_ptr<c10::OperatorKernel> c10::BoxedKernel::*;
  friend constexpr Member member(Functor);
};
template struct Named<Functor, &c10::BoxedKernel::functor_>;
#if !LMS_TORCH_AT_LEAST(2, 15)
struct Kernel {
  using Member = c10::KernelFunction c10::SafeKernelFunction::*;
  friend constexpr Member member(Kernel);
};
template struct Named<Kernel, &c10::SafeKernelFunction::kernel_>;
#endif

}  // namespace members

/// The kernel that can be called without boxes.
#if LMS_TORCH_AT_LEAST(2, 15)
inline const c10::KernelFunction& unboxed(const c10::SafeKernelFunction& kernel) {
  return kernel.kernelFunction();
}
#else
inline const c10::KernelFunction& unboxed(const c10::SafeKernelFunction& kernel) {
  return kernel.*member(members::Kernel{});
}
#endif

/// Of all copies of a kernel that is an object; null for a plain function.
inline const void* identity(const c10::KernelFunction& kernel) {
  return ((kernel.*member(members::Boxed{})).*member(members::Functor{})).get();
}
inline const void* identity(const c10::SafeKernelFunction& kernel) {
  return identity(unboxed(kernel));
}

/// Valid until whoever registered the kernel takes it back.
inline const std::shared_ptr<c10::KernelToken>& token(const c10::SafeKernelFunction& kernel) {
  return kernel.*member(members::Token{});
}

/// Both stand for one kernel, which has not been taken back.
inline bool still_the_same(const c10::SafeKernelFunction& earlier,
                           const c10::SafeKernelFunction& now) {
  return token(earlier)->isValid() && identity(earlier) == identity(now) &&
         unboxed(earlier)._equalsBoxedAndUnboxed(unboxed(now));
}

}  // namespace lms::torch
