#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lab/records/object.h"
#include "lab/records/record.h"

namespace lms::records {

/// Whatever is wrong is left out, and complained about.
Record record_of(const nlohmann::json& json, const Complain& complain);
Boundary boundary_of(const nlohmann::json& json, const Complain& complain);

/// In the order of fields.h.
nlohmann::ordered_json to_json(Record record);
nlohmann::ordered_json to_json(const Boundary& boundary);

/// The file is whole or as it was, even if the machine fails. Throws lms::Error.
void write_json(const std::string& path, const nlohmann::ordered_json& json);
/// Throws lms::Error for a file that is not there, or no JSON.
nlohmann::ordered_json read_json(const std::string& path);
/// The record of a file; nothing where there is none, or anything is wrong with it.
std::optional<Record> read_record(const std::string& path);

}  // namespace lms::records
