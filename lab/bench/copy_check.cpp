// lms_copy_check DIRECTORY [MIB [ROUNDS]]: what it costs on the CPU engine to find out whether a
// clean copy is still a copy, beside what the copy costs. Prints JSON: bytes per second, the best
// of all rounds, by one thread.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tiers/digest.h"
#include "tiers/file_store.h"
#include "tiers/paged_region.h"

namespace {

using namespace lms;
using Clock = std::chrono::steady_clock;

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

nlohmann::json measure(const std::string& directory, Bytes bytes, int rounds) {
  FileStore::Options options;
  options.directory = directory;
  options.limit = 2 * bytes;
  FileStore store(options);
  auto region = PagedRegion::make(bytes);
  const auto size = static_cast<std::size_t>(bytes);
  auto* const data = static_cast<char*>(region.data());
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 2654435761U >> 24);
  std::vector<char> other(data, data + size);

  nlohmann::json result = nlohmann::json::object();
  Digest digest;
  bool equal = true;
  const auto note = [&](const char* name, const std::function<void()>& action) {
    const auto began = Clock::now();
    action();
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    const double rate = static_cast<double>(bytes) / seconds;
    result[name] = std::max(result.value(name, 0.0), rate);
  };
  for (int round = 0; round < rounds; ++round) {
    note("digest", [&] { digest = digest_of(data, size); });
    note("memcmp", [&] { equal = std::memcmp(data, other.data(), size) == 0; });
    note("leave, written", [&] { (void)region.leave(store, true); });
    note("come back, without a copy", [&] { (void)region.come_back(store, false); });
    (void)region.leave(store, true);
    note("come back, with a copy", [&] { (void)region.come_back(store, true); });
    note("compare with the file", [&] { equal = equal && region.copy_matches(store); });
    note("leave, clean", [&] { (void)region.leave(store, false); });
    (void)region.come_back(store, false);
  }
  if (!equal || digest_of(data, size) != digest) throw Error("the bytes have changed");
  return {{"processor", processor()},
          {"bytes", bytes},
          {"direct", store.stats().direct},
          {"bytes_per_second", result}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "lms_copy_check DIRECTORY [MIB [ROUNDS]]\n");
    return 2;
  }
  try {
    const Bytes mib = argc > 2 ? std::max(1, std::atoi(argv[2])) : 256;
    const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
    std::printf("%s\n", measure(argv[1], mib * kMiB, rounds).dump(2).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
