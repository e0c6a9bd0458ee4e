#pragma once

// Data sets by their names, as `lms train --data` takes them:
//
//   kind:path?option=value&option=value       such as  voc:/data/VOCdevkit/VOC2012?split=val
//
// README.md lists the kinds and their options; so does describe_kinds().

#include <map>
#include <memory>
#include <string>

#include "lab/datasets/dataset.h"

namespace lms::data {

struct DataSpec {
  std::string kind;
  std::string path;  ///< empty for synthetic sources
  std::map<std::string, std::string> options;

  /// The same with another option, such as with("split", "val").
  [[nodiscard]] DataSpec with(const std::string& option, const std::string& value) const;
  [[nodiscard]] std::string text() const;
};

/// Throws DataError for what is not of the form above. The kind is not looked up.
DataSpec parse_spec(const std::string& text);

/// Opens: lists what there is, reads lists and annotations, and looks for every file that a sample
/// will need; decodes nothing. Throws DataError for an unknown kind or option (naming those that
/// there are) and for files that are missing or broken.
std::shared_ptr<const Dataset> open_dataset(const DataSpec& spec);
std::shared_ptr<const Dataset> open_dataset(const std::string& text);

/// Whether the kind takes this option (such as "split").
bool takes_option(const std::string& kind, const std::string& option);

/// Kinds and options, a line each, for a command's help.
std::string describe_kinds();

}  // namespace lms::data
