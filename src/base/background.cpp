#include "base/background.h"

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lms {

void run_in_background() noexcept {
#ifdef __linux__
  // A tenth of a processor that others want. With less, 0.2 s of work took ten seconds and more.
  constexpr int kGivesWay = 10;
  // To Linux a thread is a process of its own here.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kGivesWay);
#endif
}

}  // namespace lms
