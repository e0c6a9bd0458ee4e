#pragma once

#include <string_view>

#include "base/bytes.h"

namespace lms {

/// "12 GiB", "512MiB", "800 MB", "123456": bytes, rounded down. KiB, MiB, GiB, TiB are powers of
/// 1024, kB, MB, GB, TB of 1000. Throws BadSetting, with what would be right, for anything else,
/// for less than a byte, and for more than an exabyte.
Bytes parse_bytes(std::string_view text);

/// The same, or "50%" of `whole`.
Bytes parse_limit(std::string_view text, Bytes whole);

}  // namespace lms
