#include "base/background.h"

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lms {

void run_in_background() noexcept {
#ifdef __linux__
  // To Linux a thread is a process of its own here.
  constexpr int kLast = 19;
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLast);
#endif
}

}  // namespace lms
