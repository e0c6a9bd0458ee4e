#include "trace/trace_io.h"

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "trace/gz_file.h"

// No streams, nlohmann's among them: see read_text_file.
namespace lms {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "lms-trace";

// Rows instead of objects keep thousands of operators small:
//   block     [bytes, born in step, movable, carried from]
//   operator  [position in names, ms, workspace, repeatable, reads, writes, allocs, frees,
//              [[bytes, begin, end] of each temporary], spared, time to run it again]
//              and, if that is not the same, what is read when it is run again
constexpr std::size_t kBlockFields = 4;
constexpr std::size_t kOperatorFields = 11;
/// The last version without the last two fields of an operator.
constexpr int kVersionWithoutReplays = 2;
constexpr std::size_t kFieldsOfReplays = 2;
constexpr std::size_t kTemporaryFields = 3;
// If it is known what the host takes, "host" has for each operator [ms, waits for the device].
constexpr std::size_t kHostFields = 2;

/// Reads the document; every complaint says where.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Trace read(const Json& document) {
    if (!document.is_object() || document.value("format", Json()) != kFormat) {
      fail(std::string(R"(it is no trace of LMS: "format" is not )") + kFormat);
    }
    const auto version = integer<int>(member(document, "version"), "\"version\"");
    if (version != kTraceVersion && version != kVersionWithoutReplays) {
      fail("its version is " + std::to_string(version) + ", this LMS reads versions " +
           std::to_string(kVersionWithoutReplays) + " to " + std::to_string(kTraceVersion) +
           ": record the step again");
    }
    with_replays_ = version != kVersionWithoutReplays;
    for (const Json& name : list(member(document, "names"), "\"names\"")) {
      if (!name.is_string()) fail("a name of an operator is no text");
      names_.push_back(name.get<std::string>());
    }
    Trace trace;
    for (const Json& row : list(member(document, "blocks"), "\"blocks\"")) {
      trace.blocks.push_back(block(row, "block " + std::to_string(trace.blocks.size())));
    }
    for (const Json& row : list(member(document, "operators"), "\"operators\"")) {
      trace.operators.push_back(
          operation(row, "operator " + std::to_string(trace.operators.size())));
    }
    if (document.contains("host")) read_host(document["host"], trace);
    const auto notes = trace.validate();
    if (!notes.empty()) {
      const std::size_t more = notes.size() - 1;
      fail("the trace is inconsistent: " + notes.front() +
           (more == 0 ? "" : " (and " + std::to_string(more) + " more)"));
    }
    return trace;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("cannot load " + path_ + ": " + what);
  }

 private:
  [[nodiscard]] const Json& member(const Json& object, const char* name) const {
    const auto found = object.find(name);
    if (found == object.end()) fail('"' + std::string(name) + "\" is missing");
    return *found;
  }
  [[nodiscard]] const Json& list(const Json& value, const std::string& where) const {
    if (!value.is_array()) fail(where + " is no list");
    return value;
  }
  [[nodiscard]] const Json& row_of(const Json& value, std::size_t fields,
                                   const std::string& where) const {
    if (list(value, where).size() != fields) {
      fail(where + " has " + std::to_string(value.size()) + " fields, not " +
           std::to_string(fields));
    }
    return value;
  }
  template <typename Integer>
  [[nodiscard]] Integer integer(const Json& value, const std::string& where) const {
    if (!value.is_number_integer()) fail(where + " holds something else than an integer");
    const bool large =
        value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>());
    if (large || !std::in_range<Integer>(value.get<std::int64_t>())) {
      fail(where + " holds an integer out of range");
    }
    return static_cast<Integer>(value.get<std::int64_t>());
  }
  [[nodiscard]] bool flag(const Json& value, const std::string& where) const {
    const int number = integer<int>(value, where);
    if (number != 0 && number != 1) fail(where + " holds a flag that is neither 0 nor 1");
    return number == 1;
  }
  [[nodiscard]] std::vector<TraceBlockId> ids(const Json& value, const std::string& where) const {
    std::vector<TraceBlockId> result;
    for (const Json& id : list(value, where)) result.push_back(integer<TraceBlockId>(id, where));
    return result;
  }

  [[nodiscard]] TraceBlock block(const Json& value, const std::string& where) const {
    const Json& row = row_of(value, kBlockFields, where);
    return {.bytes = integer<Bytes>(row[0], where),
            .born_in_step = flag(row[1], where),
            .movable = flag(row[2], where),
            .carried_from = integer<std::int64_t>(row[3], where)};
  }

  [[nodiscard]] TraceOperator operation(const Json& value, const std::string& where) const {
    const bool with_reads = with_replays_ && value.is_array() && value.size() > kOperatorFields;
    const Json& row = row_of(
        value, kOperatorFields - (with_replays_ ? 0 : kFieldsOfReplays) + (with_reads ? 1 : 0),
        where);
    TraceOperator op;
    const auto name = integer<std::uint32_t>(row[0], where);
    if (name >= names_.size()) fail(where + " has no name");
    op.name = names_[name];
    if (!row[1].is_number()) fail(where + " holds no time");
    op.ms = row[1].get<double>();
    op.workspace = integer<Bytes>(row[2], where);
    op.repeatable = flag(row[3], where);
    op.reads = ids(row[4], where);
    op.writes = ids(row[5], where);
    op.allocs = ids(row[6], where);
    op.frees = ids(row[7], where);
    for (const Json& entry : list(row[8], where)) {
      const Json& temporary = row_of(entry, kTemporaryFields, where);
      op.temporaries.push_back({.bytes = integer<Bytes>(temporary[0], where),
                                .begin = integer<std::uint32_t>(temporary[1], where),
                                .end = integer<std::uint32_t>(temporary[2], where)});
    }
    if (!with_replays_) return op;
    op.spared = ids(row[9], where);
    if (!row[10].is_number()) fail(where + " holds no time to run it again");
    op.replay_ms = row[10].get<double>();
    if (with_reads) op.replay_reads = ids(row[kOperatorFields], where);
    return op;
  }

  void read_host(const Json& value, Trace& trace) const {
    const Json& rows = row_of(value, trace.operators.size(), "\"host\"");
    for (std::size_t at = 0; at < trace.operators.size(); ++at) {
      const Json& row = row_of(rows[at], kHostFields, "\"host\"");
      if (!row[0].is_number()) fail("\"host\" holds no time");
      trace.operators[at].host_ms = row[0].get<double>();
      trace.operators[at].host_waits = flag(row[1], "\"host\"");
    }
  }

  const std::string& path_;
  std::vector<std::string> names_;
  bool with_replays_ = true;
};

}  // namespace

void save_trace(const Trace& trace, const std::string& path) {
  Json names = Json::array();
  Json blocks = Json::array();
  Json operators = Json::array();
  std::map<std::string, std::size_t> known;
  for (const TraceBlock& block : trace.blocks) {
    blocks.push_back(Json::array(
        {block.bytes, block.born_in_step ? 1 : 0, block.movable ? 1 : 0, block.carried_from}));
  }
  for (const TraceOperator& op : trace.operators) {
    const auto [name, fresh] = known.try_emplace(op.name, known.size());
    if (fresh) names.push_back(op.name);
    Json temporaries = Json::array();
    for (const TraceTemporary& temporary : op.temporaries) {
      temporaries.push_back(Json::array({temporary.bytes, temporary.begin, temporary.end}));
    }
    operators.push_back(
        Json::array({name->second, op.ms, op.workspace, op.repeatable ? 1 : 0, op.reads, op.writes,
                     op.allocs, op.frees, std::move(temporaries), op.spared, op.replay_ms}));
    if (!op.replay_reads.empty()) operators.back().push_back(op.replay_reads);
  }
  Json document = Json::object();
  document["format"] = kFormat;
  document["version"] = trace.version;
  document["names"] = std::move(names);
  document["blocks"] = std::move(blocks);
  document["operators"] = std::move(operators);
  if (trace.host_ms() > 0) {
    Json host = Json::array();
    for (const TraceOperator& op : trace.operators) {
      host.push_back(Json::array({op.host_ms, op.host_waits ? 1 : 0}));
    }
    document["host"] = std::move(host);
  }
  // A name that is not UTF-8 shall not cost the trace.
  write_gz_file(path, document.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n');
}

Trace load_trace(const std::string& path) {
  const Json document = Json::parse(read_gz_file(path), nullptr, /*allow_exceptions=*/false);
  Reader reader(path);
  if (document.is_discarded()) {
    reader.fail("it is no JSON, or cut off; load what save_trace has written");
  }
  return reader.read(document);
}

}  // namespace lms
