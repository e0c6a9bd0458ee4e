#include "lab/report/runs.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "lab/records/files.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

using Json = nlohmann::json;

/// Adds what is wrong to the problems of a file.
records::Complain complain_of(const std::string& file, std::vector<Problem>& problems) {
  return [&](const std::string& field, const std::string& wanted) {
    problems.push_back({file, "\"" + field + "\" is not " + wanted + "; it is left out"});
  };
}

/// Adds a problem for the first of `names` that is missing.
bool all_there(const Json& json, const std::string& file, std::vector<Problem>& problems,
               std::initializer_list<const char*> names) {
  const records::Complain silent = [](const auto&, const auto&) {};
  const char* missing = records::Object(json, silent).first_missing(names);
  if (missing == nullptr) return true;
  problems.push_back({file, "this record has no \"" + std::string(missing) +
                                "\", which every record has; it is not shown"});
  return false;
}

}  // namespace

std::optional<double> StepRecord::bound() const {
  return method == "lms" ? bound_recompute : bound_copies;
}

std::optional<Record> read_record(const Json& json, const std::string& file,
                                  std::vector<Problem>& problems) {
  if (!all_there(json, file, problems, {"study", "method", "outcome"})) return std::nullopt;
  Record record = records::record_of(json, complain_of(file, problems));
  record.file = file;
  if (record.need && record.need->name.starts_with("aten::")) record.need->name.erase(0, 6);
  if (record.ok() && !record.rate()) {
    problems.push_back({file,
                        "this run is \"ok\", but has neither \"rate\" nor \"steps\" and "
                        "\"samples\"; it is in the table alone"});
  }
  return record;
}

std::optional<Boundary> read_boundary(const Json& json, const std::string& file,
                                      std::vector<Problem>& problems) {
  if (!all_there(json, file, problems, {"study", "method", "over"})) return std::nullopt;
  Boundary boundary = records::boundary_of(json, complain_of(file, problems));
  boundary.file = file;
  if (boundary.over != "side" && boundary.over != "batch") {
    problems.push_back({file, R"("over" is neither "side" nor "batch"; it is not shown)"});
    return std::nullopt;
  }
  return boundary;
}

std::optional<StepRecord> read_step(const Json& json, const std::string& file,
                                    std::vector<Problem>& problems) {
  if (!all_there(json, file, problems, {"step", "method"})) return std::nullopt;
  const records::Complain complain = complain_of(file, problems);
  const records::Object fields(json, complain);
  StepRecord record;
  record.file = file;
  record.step = fields.text("step");
  record.method = fields.text("method");
  record.error = fields.text("error");
  record.commit = fields.text("commit");
  if (const auto machine = fields.object("machine")) record.gpu = machine->text("gpu");
  record.ratio = fields.size("ratio");
  record.limit = fields.size("limit_bytes");
  if (const auto ms = fields.size("step_ms")) record.seconds = *ms / 1e3;
  record.overhead = fields.number("overhead");
  record.predicted = fields.number("predicted_overhead");
  record.bound_copies = fields.number("bound_overhead");
  record.bound_recompute = fields.number("bound_recompute_overhead");
  record.allocated = fields.size("allocated_peak");
  record.to_host = fields.size("bytes_out");
  record.to_device = fields.size("bytes_in");
  record.recomputed = fields.size("bytes_recomputed");
  const Json* identical = fields.find("bit_identical");
  if (identical != nullptr && identical->is_boolean()) {
    record.bit_identical = identical->get<bool>();
  }
  return record;
}

std::string outcome_text(const std::string& outcome) {
  if (outcome == "ok") return "ran";
  if (outcome == "oom") return "out of device memory";
  if (outcome == "host") return "host memory full";
  if (outcome == "timeout") return "took too long";
  return outcome;
}

std::string link_text(const std::string& link) {
  if (link.empty()) return "this machine";
  if (link == "pcie3") return "PCIe 3";
  if (link == "pcie4") return "PCIe 4";
  if (link == "pcie5") return "PCIe 5";
  if (link == "nvlink2") return "NVLink 2";
  return link;
}

std::string size_text(const Record& record) {
  const std::vector<double>& sides = record.sides;
  if (sides.empty()) return {};
  const bool equal = std::ranges::all_of(sides, [&](double side) { return side == sides[0]; });
  const std::string first = coordinate(sides[0]);
  if (equal && sides.size() == 2) return first + "²";
  if (equal && sides.size() == 3) return first + "³";
  std::string text = first;
  for (std::size_t i = 1; i < sides.size(); ++i) text += " × " + coordinate(sides[i]);
  return text;
}

std::map<std::string, std::string> settings_of(const Record& record) {
  return record.settings.value_or(std::map<std::string, std::string>());
}

std::string setting_text(const std::pair<std::string, std::string>& setting) {
  const auto& [name, value] = setting;
  if (name == "slack" || name == "reserve") {
    double bytes = 0;
    const char* const last = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), last, bytes);
    if (error == std::errc() && stop == last) return name + " " + format_memory(bytes);
  }
  return name + " " + value;
}

}  // namespace lms::report
