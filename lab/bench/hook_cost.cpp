// CPU time per operator: plain PyTorch, under LMS, and what planning adds.
//   hook_cost [--device cpu|cuda|cuda:N] [--bytes N] [--samples N] [--json FILE]
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "lab/bench/costs.h"

namespace {

using lms::bench::Cost;

struct Arguments {
  std::string device = "cpu";
  std::int64_t bytes = 0;
  int samples = 200;
  std::string json;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) throw lms::Error(std::string(name) + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--device") {
      arguments.device = value;
    } else if (name == "--bytes") {
      arguments.bytes = std::stoll(value);
    } else if (name == "--samples") {
      arguments.samples = std::stoi(value);
    } else if (name == "--json") {
      arguments.json = value;
    } else {
      throw lms::Error("hook_cost [--device D] [--bytes N] [--samples N] [--json FILE]");
    }
  }
  // On a GPU as many as make a block by default; on the CPU the time is to be the hook's, not the
  // kernel's.
  if (arguments.bytes == 0) arguments.bytes = arguments.device == "cpu" ? 4096 : 1 << 20;
  if (arguments.samples < 4) throw lms::Error("--samples is at least 4");
  return arguments;
}

const Cost* find(const std::vector<Cost>& costs, const Cost& like, const std::string& mode) {
  for (const Cost& cost : costs) {
    if (cost.loop == like.loop && cost.mode == mode) return &cost;
  }
  return nullptr;
}

nlohmann::json report(const std::vector<Cost>& costs) {
  auto rows = nlohmann::json::array();
  std::printf("%-24s %-28s %10s %10s %10s %8s %8s\n", "loop", "mode", "median ns", "mean ns",
              "added", "moves", "samples");
  for (const Cost& cost : costs) {
    nlohmann::json row = {{"loop", cost.loop},          {"mode", cost.mode},
                          {"median_ns", cost.median()}, {"mean_ns", cost.mean()},
                          {"moves", cost.moves},        {"samples", cost.samples.size()}};
    std::string added = "-";
    if (const Cost* base = find(costs, cost, cost.base); base != nullptr) {
      row["over"] = cost.base;
      row["added_ns"] = cost.median() - base->median();
      row["added_mean_ns"] = cost.mean() - base->mean();
      added = std::to_string(static_cast<int>(cost.median() - base->median()));
    }
    std::printf("%-24s %-28s %10.0f %10.0f %10s %8.3f %8zu\n", cost.loop.c_str(), cost.mode.c_str(),
                cost.median(), cost.mean(), added.c_str(), cost.moves, cost.samples.size());
    rows.push_back(std::move(row));
  }
  return rows;
}

void write(const std::string& path, const nlohmann::json& result) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "we"),
                                                             &std::fclose);
  if (!file || std::fputs((result.dump(1) + "\n").c_str(), file.get()) < 0) {
    throw lms::Error("cannot write " + path);
  }
}

/// What was measured until something went wrong is a result as well.
int run(const Arguments& arguments) {
  std::vector<Cost> costs;
  std::string error;
  try {
    lms::bench::pilot_costs(arguments.samples, costs);
    lms::bench::operator_costs(arguments.device, arguments.bytes, arguments.samples, costs);
  } catch (const std::exception& caught) {
    error = caught.what();
    error.resize(std::min(error.size(), error.find('\n')));  // PyTorch's go on with the stack
  }
  nlohmann::json result = {
      {"device", arguments.device}, {"bytes", arguments.bytes}, {"costs", report(costs)}};
  result["error"] = error.empty() ? nlohmann::json() : nlohmann::json(error);
  if (!arguments.json.empty()) write(arguments.json, result);
  if (error.empty()) return 0;
  std::fprintf(stderr, "error: %s\n", error.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
