#include "trace/trace_import.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "trace/gz_file.h"

namespace lms {
namespace {

using Json = nlohmann::json;

bool repeatable(std::string_view name) {
  constexpr std::array<std::string_view, 12> kOnce = {
      "_foreach_", "_fused_", "dropout", "rand",      "bernoulli",   "multinomial",
      "normal_",   "uniform", "poisson", "geometric", "exponential", "cauchy"};
  return std::ranges::none_of(
      kOnce, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

bool is_batch_norm(std::string_view name) {
  return name.find("batch_norm") != std::string_view::npos &&
         name.find("backward") == std::string_view::npos;
}

class Importer {
 public:
  Trace read(const Json& document) {
    const Json& rows = document.at("tr");
    double sum = 0;
    for (const Json& row : rows) sum += row.at(4).get<double>();
    const double scale = sum > 0 ? document.at("T").get<double>() / sum : 0;
    for (const Json& row : rows) operation(row, scale);
    end_lives();
    give_workspaces(rows);
    return std::move(trace_);
  }

 private:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  /// The block, which is new if it was not heard of; used now.
  TraceBlockId use(const Json& pair, bool born) {
    const auto [found, fresh] = ids_.try_emplace(pair.at(0).get<std::int64_t>(),
                                                 static_cast<TraceBlockId>(trace_.blocks.size()));
    const TraceBlockId id = found->second;
    if (fresh) {
      trace_.blocks.push_back({.born_in_step = born, .movable = born});
      last_use_.push_back(kNever);
      if (born) trace_.operators.back().allocs.push_back(id);
    }
    TraceBlock& block = trace_.blocks[id];
    block.bytes = std::max(block.bytes, pair.at(1).get<Bytes>());
    last_use_[id] = trace_.operators.size() - 1;
    return id;
  }

  void operation(const Json& row, double scale) {
    TraceOperator& op = trace_.operators.emplace_back();
    op.name = row.at(0).get<std::string>();
    op.ms = row.at(4).get<double>() * scale;
    op.repeatable = repeatable(op.name);
    std::set<TraceBlockId> seen;
    for (const Json& pair : row.at(1)) {
      const TraceBlockId id = use(pair, /*born=*/false);
      if (seen.insert(id).second) op.reads.push_back(id);
    }
    // What is returned and was there is a view of it.
    for (const Json& pair : row.at(2)) use(pair, /*born=*/true);
    seen.clear();
    for (const Json& number : row.at(3)) {
      const TraceBlockId id = ids_.at(number.get<std::int64_t>());
      trace_.blocks[id].movable = true;
      last_use_[id] = trace_.operators.size() - 1;
      if (seen.insert(id).second) op.writes.push_back(id);
    }
    if (is_batch_norm(op.name)) op.spared = op.writes;
  }

  void end_lives() {
    for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
      if (trace_.blocks[id].born_in_step) trace_.operators[last_use_[id]].frees.push_back(id);
    }
  }

  void give_workspaces(const Json& rows) {
    const std::vector<Bytes> live = trace_.live_bytes();
    for (std::size_t i = 0; i < live.size(); ++i) {
      trace_.operators[i].workspace = std::max<Bytes>(0, rows[i].at(5).get<Bytes>() - live[i]);
    }
  }

  Trace trace_;
  std::unordered_map<std::int64_t, TraceBlockId> ids_;
  std::vector<std::size_t> last_use_;
};

}  // namespace

Trace import_legacy(const std::string& path) {
  const std::string where = "cannot import " + path + ": ";
  const Json document = Json::parse(read_gz_file(path), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) throw Error(where + "it is no JSON, or cut off");
  Trace trace;
  try {
    trace = Importer().read(document);
  } catch (const std::exception& error) {
    throw Error(where + "it is no recorded step in this format (" + error.what() + ')');
  }
  const auto notes = trace.validate();
  if (!notes.empty()) throw Error(where + notes.front());
  return trace;
}

}  // namespace lms
