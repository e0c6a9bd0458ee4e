#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lab/records/files.h"
#include "lab/studies/item.h"
#include "lab/studies/search.h"
#include "lab/studies/try_spec.h"

namespace lms::studies {

/// What the files of a folder say of the tries that are wanted. They are read anew at each
/// question: nothing else is remembered, but which of them this run has made.
///
/// A record stands for a try of the same model, precision, cap, classes and training. One of other
/// settings under a try's name is an error (BadSetting), for it would be taken for what was asked.
/// One of another batch or other sides, because the largest in memory is another than it was, is
/// as none.
class Ledger {
 public:
  /// `settings` are over those of the recipes. With `again` records from before this run do not
  /// count.
  Ledger(std::string out, Values settings, bool again);

  [[nodiscard]] std::string folder(const Item& item) const;
  [[nodiscard]] std::string file(const Item& item, std::int64_t size) const;
  /// The file's record has been made by this run.
  void add_made(const std::string& file) { made_.insert(file); }

  /// Nothing where the side is that of a series whose largest is not known.
  [[nodiscard]] std::optional<TrySpec> spec_for(const Item& item, std::int64_t size) const;

  /// By size: the records of an item's method and link.
  [[nodiscard]] std::map<std::int64_t, Record> records(const Item& item) const;
  /// Has this try a record that stands? One that has failed does in the run that made it.
  [[nodiscard]] bool known(const Item& item, std::int64_t size) const;

  /// The largest that trains in memory; nothing until the next size is known to run out of it, too.
  /// (A largest that is only the largest so far would flatter all that is compared with it.)
  [[nodiscard]] std::optional<std::int64_t> largest_in_memory(const Recipe& recipe,
                                                              const RecipeSeries& series) const;
  /// The size of an item that is no search; nothing where it is not known yet.
  [[nodiscard]] std::optional<std::int64_t> size_of(const Item& item) const;
  /// The next size of a search; nothing when it is at its end.
  [[nodiscard]] std::optional<std::int64_t> next_of(const Item& item) const;

  /// What a try has taken so far, at most, in seconds; 0 where none was made.
  [[nodiscard]] double longest(const Item& item) const;

  /// <folder>/boundary.<method>.json, by the records. No effect for emulated links.
  void write_boundary(const Item& item) const;
  /// Removes the records of an item's method and link that this run has not made.
  void remove_older(const Item& item) const;

 private:
  /// Of all files of an item's method and link, whatever is in them.
  [[nodiscard]] std::vector<std::int64_t> sizes(const Item& item) const;
  [[nodiscard]] std::optional<std::int64_t> side_of(const Item& item) const;
  [[nodiscard]] std::map<std::int64_t, Tried> tried(const Item& item) const;
  [[nodiscard]] SearchOptions search_options(const Item& item) const;
  /// Throws BadSetting for a record of other settings.
  [[nodiscard]] bool stands(const Record& record, const TrySpec& spec,
                            const std::string& path) const;

  std::string out_;
  Values settings_;
  bool again_;
  std::set<std::string> made_;
};

}  // namespace lms::studies
