#pragma once

#include <string>
#include <vector>

namespace lms::studies {

/// The names in a folder, sorted; empty where there is none. (PyTorch's libraries export parts of
/// another libstdc++'s <filesystem>, so its iterators are not to be trusted in programs with them.)
std::vector<std::string> names_in(const std::string& folder);

}  // namespace lms::studies
