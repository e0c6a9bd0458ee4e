// The bound on the golden traces beside the published table of the physical limit:
//   bound_table FOLDER_OF_TRACES [RESULT.json [STEP]]
// where STEP, a part of a step's name, leaves out all others.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "bound/bound.h"
#include "bound/in_backward.h"
#include "trace/trace_io.h"

namespace {

constexpr double kInfeasible = -1;
constexpr double kNotPublished = -2;

/// Overheads in percent at 1.25, 1.5, 2, 3, 4, 6 and 10 times less memory; shorter where no more
/// was published.
struct Row {
  const char* step;
  bool recompute;
  std::vector<double> percent;
  bool in_backward = false;    ///< each weight updated as soon as its gradient is final
  const char* file = nullptr;  ///< of the trace, if it is not called as the step
};

constexpr std::array<double, 7> kRatios = {1.25, 1.5, 2, 3, 4, 6, 10};

std::vector<Row> published() {
  return {
      {"resnet50_bf16_256x224", false, {45, 148, 277, 405, 469, 534, kInfeasible}},
      {"resnet50_bf16_256x224", true, {0.6, 1.9, 4.6, 12.6, 18.4, 24.6, kInfeasible}},
      {"resnet50_tf32_4x2000", false, {32, 114, 222, 329, 383, 437, kInfeasible}},
      {"resnet50_tf32_4x2000", true, {0.4, 1.4, 4.8, 10.7, 14.0, 17.5, kInfeasible}},
      {"deeplabv3_r101_bf16_16x513", false, {14, 81, 173, 265, 311, 357, 394}},
      {"deeplabv3_r101_bf16_16x513", true, {0.3, 1.3, 3.4, 10.1, 14.2, 18.6, 22.1}},
      {"googlenet_bf16_15x1120", false, {39, 134, 254, 373, 432, kInfeasible}},
      {"googlenet_bf16_15x1120", true, {1.6, 5.0, 11.1, 18.1, 22.3, kInfeasible}},
      {"llama1b_adamw_bf16_4x2048", false, {38, 89, 188, 299, 362}},
      {"llama1b_adamw_bf16_4x2048", true, {1.2, 3.4, 6.4, 50, 81}},
      {"llama1b_adamw_bf16_4x2048",
       true,
       {kNotPublished, 1.7, 4.2, 8.3, 15.6},
       /*in_backward=*/true},
      {"unet3d_bf16_192", true, {kNotPublished, 0, 0, 0.5}, false, "recorded_unet3d_bf16_192"},
  };
}

nlohmann::json as_json(bool feasible, double percent) {
  if (!feasible) return "infeasible";
  return std::round(percent * 100) / 100;
}

int run(const std::string& folder, const char* result_path, const std::string& wanted) {
  auto results = nlohmann::json::array();
  std::printf("%-28s %-11s %6s %10s %10s %10s %8s\n", "step", "method", "ratio", "published",
              "bound", "difference", "seconds");
  for (const Row& row : published()) {
    if (std::string(row.step).find(wanted) == std::string::npos) continue;
    const char* const file = row.file != nullptr ? row.file : row.step;
    const lms::Trace recorded = lms::load_trace(folder + '/' + file + ".json.gz");
    const lms::Trace trace = row.in_backward ? lms::with_updates_in_backward(recorded) : recorded;
    const auto peak = static_cast<double>(std::ranges::max(trace.live_bytes()));
    for (std::size_t i = 0; i < row.percent.size(); ++i) {
      if (row.percent[i] == kNotPublished) continue;
      const auto begin = std::chrono::steady_clock::now();
      const lms::Bound bound = lms::bound(trace, static_cast<lms::Bytes>(peak / kRatios[i]),
                                          lms::LinkModel{}, {.recompute = row.recompute});
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const double percent = 100 * bound.overhead;
      const bool was_feasible = row.percent[i] >= 0;
      const char* method = row.in_backward ? "in_backward" : (row.recompute ? "recompute" : "swap");
      std::printf("%-28s %-11s %6.2f %10.1f %10.2f %10.2f %8.1f%s\n", row.step, method, kRatios[i],
                  row.percent[i], bound.feasible ? percent : kInfeasible,
                  bound.feasible && was_feasible ? percent - row.percent[i] : 0.0, took.count(),
                  bound.feasible == was_feasible ? "" : "  feasible or not: they disagree");
      std::fflush(stdout);
      results.push_back({{"step", row.step},
                         {"method", method},
                         {"ratio", kRatios[i]},
                         {"published_percent", as_json(was_feasible, row.percent[i])},
                         {"bound_percent", as_json(bound.feasible, percent)},
                         {"seconds", std::round(took.count() * 10) / 10}});
    }
  }
  if (result_path == nullptr) return 0;
  // One entry a line.
  std::string text = "[\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    text += "  " + results[i].dump() + (i + 1 < results.size() ? ",\n" : "\n");
  }
  text += "]\n";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(result_path, "we"),
                                                             &std::fclose);
  if (!file || std::fputs(text.c_str(), file.get()) < 0) {
    throw lms::Error(std::string("cannot write ") + result_path);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fputs("bound_table FOLDER_OF_TRACES [RESULT.json [STEP]]\n", stderr);
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? argv[2] : nullptr, argc > 3 ? argv[3] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
