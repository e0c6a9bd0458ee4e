#include "adapters/torch/python_lock.h"

#include <dlfcn.h>

namespace lms::torch {
namespace {

template <class Function>
bool find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

/// By name, because the library is built without Python, for all of its versions.
class PythonLock final : public OuterLock {
 public:
  [[nodiscard]] bool found() {
    return find(own_, "PyGILState_GetThisThreadState") &&
           (find(current_, "PyThreadState_GetUnchecked") ||
            find(current_, "_PyThreadState_UncheckedGet")) &&
           find(save_, "PyEval_SaveThread") && find(restore_, "PyEval_RestoreThread");
  }

  void* release() noexcept override {
    // Not PyGILState_Check(), which answers yes to everybody once there is a second interpreter.
    void* const own = own_();
    return own != nullptr && own == current_() ? save_() : nullptr;
  }
  void acquire(void* released) override { restore_(released); }

 private:
  void* (*own_)() = nullptr;      ///< this thread's state, or null
  void* (*current_)() = nullptr;  ///< the state that holds the lock, up to 3.11 of any thread
  void* (*save_)() = nullptr;
  void (*restore_)(void*) = nullptr;
};

}  // namespace

OuterLock* python_lock() {
  static PythonLock lock;
  static const bool found = lock.found();
  return found ? &lock : nullptr;
}

}  // namespace lms::torch
