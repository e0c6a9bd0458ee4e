#pragma once

// Files as the studies' data sets have them, made by the tests themselves.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/datasets/dataset.h"
#include "lab/datasets/image.h"

namespace lms::data::fixtures {

using ByteVector = std::vector<std::uint8_t>;

/// A folder of its own, removed in the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// path()/name; the folders above it are made.
  [[nodiscard]] std::string file(const std::string& name) const;

 private:
  std::string path_;
};

void write_file(const std::string& path, const ByteVector& bytes);
void write_text(const std::string& path, std::string_view text);
/// The whole file; "" if there is none.
std::string read_text(const std::string& path);

/// The message of the DataError that `call` throws; "" if it throws none.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Every pixel tells where it is: red by x, green by y, blue constant.
Image gradient(std::int64_t width, std::int64_t height);

struct JpegOptions {
  int quality = 95;
  bool grey = false;
  bool cmyk = false;
  bool progressive = false;
  int orientation = 0;  ///< 0: no EXIF data
  bool big_endian = false;
};
ByteVector jpeg_bytes(const Image& image, const JpegOptions& options = {});

/// A PNG of one sample a pixel: colour type 0 (grey) or 3 (palette, whose colours mean nothing).
ByteVector indexed_png(const Array<std::uint16_t>& values, int color_type, int bit_depth);
/// 8 or 16 bits, colour type 2 (RGB) or 6 (RGBA), all samples made from the place.
ByteVector color_png(std::int64_t width, std::int64_t height, int color_type, int bit_depth);

struct NiftiOptions {
  int datatype = 2;
  bool big_endian = false;
  int version = 1;
  double slope = 0;
  double inter = 0;
  std::vector<double> spacing = {1, 1, 1};
  std::vector<std::int64_t> extra_dims;
};
/// `values` x fastest, of x×y×z.
ByteVector nifti_bytes(const std::vector<std::int64_t>& sides, const std::vector<double>& values,
                       const NiftiOptions& options = {});
ByteVector gzip_bytes(const ByteVector& bytes);

/// ../shared/data beside the checkout, or what LMS_SHARED_DATA names; "" where there is none.
std::string shared_data();

}  // namespace lms::data::fixtures
