#pragma once

#include <string>

#include "base/bytes.h"

namespace lms::torch {

/// Memory that programs can still take on this machine, within the process's cgroup.
Bytes available_memory();
/// Free bytes of the file system that holds `directory`; throws BadSetting if there is none such.
Bytes free_disk(const std::string& directory);
/// What a process takes of the host when nobody says: four fifths of the available memory, divided
/// by the processes that a launcher (torchrun, mpirun) has started on this machine.
Bytes default_host_limit();
/// Likewise of the disk under `directory`: nine tenths.
Bytes default_file_limit(const std::string& directory);
/// Where temporary files go when nobody says: the first of $TMPDIR, /var/tmp, /tmp and the working
/// directory that exists and is not kept in memory.
std::string default_directory();

}  // namespace lms::torch
