#include <cstdlib>

#include "lab/studies/cli.h"
#include "lab/studies/worker/run_try.h"

int main(int argc, char** argv) {
  const auto run_try = [](const lms::studies::TrySpec& spec, std::FILE* log) -> int {
    const int status = lms::studies::run_try(spec, log, /*leave=*/true);
    // Giving everything back, some of it from the host, would take seconds.
    std::fflush(nullptr);
    std::_Exit(status);
  };
  return lms::studies::run(argc, argv, stdout, stderr, run_try);
}
