#pragma once

#include <cstdio>
#include <string>

#include "lab/records/record.h"

namespace lms::studies {

using records::Record;

/// What the trace of a try says of it: the least step time that any plan could reach (of copies
/// alone, where its method is), if it was planned, and the memory that its largest operator needs
/// by itself. Changes the record. Throws lms::Error where the trace cannot be read; a missing
/// solver leaves the bound out.
void add_bound(Record& record, const std::string& trace_file);

/// add_bound() of all records below a folder that have a trace and no bound yet. Returns how many.
int add_bounds(const std::string& folder, bool again, std::FILE* log);

}  // namespace lms::studies
