#include <cstdlib>

#include "lab/datasets/files.h"
#include "lab/datasets/open.h"
#include "lab/datasets/options.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lms::data;
  for (const Line& line : split_lines({data, size})) {
    if (line.text.empty() || line.text.find('\n') != std::string::npos) std::abort();
    fuzz::refusable([&] {
      const std::string path = inside("/folder", line.text + ".jpg", "list");
      if (path.find("/../") != std::string::npos) std::abort();
      (void)without_extension(path);
    });
    // Lines are also taken for what a user may write after --data.
    fuzz::refusable([&] {
      const DataSpec spec = parse_spec(line.text);
      (void)spec.text();
      const Options options(spec);
      for (const auto& option : spec.options) {
        const std::string& name = option.first;
        fuzz::refusable([&] { (void)options.integer(name, 0, -5, 5); });
        fuzz::refusable([&] { (void)options.number(name, 0, -5, 5); });
        fuzz::refusable([&] { (void)options.bytes(name, 0); });
        fuzz::refusable([&] { (void)options.sides(name, "1", 3); });
        fuzz::refusable([&] { (void)options.list(name, ""); });
      }
    });
  }
  return 0;
}
