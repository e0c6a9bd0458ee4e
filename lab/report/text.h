#pragma once

#include <string>
#include <string_view>

namespace lms::report {

/// `text` for the content and the quoted attributes of HTML and XML, whatever it holds: markup is
/// escaped, control characters become spaces, and bytes that are no UTF-8 become U+FFFD.
std::string escape(std::string_view text);

/// With two decimals at most, for coordinates. What is not finite is 0.
std::string coordinate(double value);

/// Three significant digits; thousands are set apart by narrow spaces, and minus is a minus sign:
/// "0.042", "1.4", "12 345". What is not finite is a dash, here and below.
std::string format_number(double value);

/// "8.35×", "10.2×".
std::string format_factor(double value);
/// Of a fraction, with its sign: "+106 %", "−5.3 %".
std::string format_change(double fraction);
/// Of a fraction: "95 %", "72.8 %".
std::string format_share(double fraction);
/// Powers of 1000: "826 GB", "1.4 TB". For what is copied.
std::string format_traffic(double bytes);
/// Powers of 1024: "16 GiB". For what is held.
std::string format_memory(double bytes);
/// "71.4 GB/s".
std::string format_link(double bytes_per_second);
/// "1.24 s", "156 ms", "12 µs".
std::string format_seconds(double seconds);

/// How wide `text` is when drawn, in units of the font's size times `size`; for fonts without
/// serifs, rather too wide than too narrow.
double text_width(std::string_view text, double size);

/// `text`, or its beginning with an ellipsis where it would be wider than `width`.
std::string shorten(std::string_view text, double size, double width);

}  // namespace lms::report
