#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tools/lms/tool.h"

int main(int argc, char** argv) {
  const int status = lms::tool::run(argc, argv, stdout, stderr);
  // An answer that did not arrive, as on a full disk, is none.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "lms: the answer cannot be written: %s\n", std::strerror(errno));
  return lms::tool::kFailed;
}
