#include "lab/datasets/jpeg.h"

// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <csetjmp>

#include "lab/datasets/exif.h"
#include "lab/datasets/files.h"

namespace lms::data {
namespace {

constexpr int kMostScans = 200;  // a progressive file may claim any number, each over all pixels
constexpr std::int64_t kMostPixelsByte = 2000;  // a bit for 64 pixels and component is the least

/// What the library's callbacks find beside the decompressor. It reports by jumping back: nothing
/// between setjmp() and the library may have a destructor.
struct JpegDecoder {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
  const char* problem;  // instead of the library's message
};

JpegDecoder& decoder_of(j_common_ptr info) { return *static_cast<JpegDecoder*>(info->client_data); }

[[noreturn]] void on_error(j_common_ptr info) {
  JpegDecoder& decoder = decoder_of(info);
  info->err->format_message(info, decoder.message);
  std::longjmp(decoder.back, 1);
}

/// Warnings that mean missing pixels are errors; harmless ones, such as bytes between segments that
/// some cameras write, are not.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
      on_error(info);
    default:
      ++info->err->num_warnings;
  }
}

void on_progress(j_common_ptr info) {
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMostScans) {
    JpegDecoder& decoder = decoder_of(info);
    decoder.problem = "too many scans";
    std::longjmp(decoder.back, 1);
  }
}

/// The steps of decoding, each of which returns false where the library gave up.
bool read_header(JpegDecoder& decoder, ByteView file) {
  if (setjmp(decoder.back) != 0) return false;
  jpeg_create_decompress(&decoder.info);
  decoder.info.client_data = &decoder;
  decoder.info.progress = &decoder.progress;
  jpeg_mem_src(&decoder.info, file.data(), file.size());
  jpeg_save_markers(&decoder.info, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&decoder.info, TRUE);
  return true;
}

bool read_pixels(JpegDecoder& decoder, std::uint8_t* pixels) {
  if (setjmp(decoder.back) != 0) return false;
  decoder.info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&decoder.info);
  const std::size_t stride = std::size_t{3} * decoder.info.output_width;
  while (decoder.info.output_scanline < decoder.info.output_height) {
    JSAMPROW row = pixels + stride * decoder.info.output_scanline;
    jpeg_read_scanlines(&decoder.info, &row, 1);
  }
  jpeg_finish_decompress(&decoder.info);
  return true;
}

/// Owns what the library takes.
class Session {
 public:
  Session() {
    decoder_.info.err = jpeg_std_error(&decoder_.errors);
    decoder_.info.client_data = &decoder_;
    decoder_.errors.error_exit = &on_error;
    decoder_.errors.emit_message = &on_message;
    decoder_.progress.progress_monitor = &on_progress;
  }
  ~Session() { jpeg_destroy_decompress(&decoder_.info); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  JpegDecoder& decoder() { return decoder_; }

 private:
  JpegDecoder decoder_{};
};

int orientation_of(const jpeg_decompress_struct& info) {
  for (jpeg_saved_marker_ptr marker = info.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->marker != JPEG_APP0 + 1) continue;
    const int orientation = exif_orientation({marker->data, marker->data_length});
    if (orientation != 1) return orientation;
  }
  return 1;
}

}  // namespace

bool is_jpeg(ByteView file) {
  return file.size() >= 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF;
}

Image decode_jpeg(ByteView file, const std::string& name, const ImageLimits& limits) {
  Session session;
  JpegDecoder& decoder = session.decoder();
  const auto give_up = [&]() {
    const std::string what = decoder.problem != nullptr ? decoder.problem : decoder.message;
    fail(name, "truncated or broken JPEG: " + what);
  };
  if (file.empty()) fail(name, "is empty");
  if (!read_header(decoder, file)) give_up();
  const jpeg_decompress_struct& info = decoder.info;
  Image image;
  image.width = info.image_width;
  image.height = info.image_height;
  if (image.width > limits.side || image.height > limits.side ||
      image.width * image.height > limits.pixels) {
    fail(name, "JPEG header: " + std::to_string(image.width) + " x " +
                   std::to_string(image.height) + " pixels; at most " +
                   std::to_string(limits.pixels) + " are decoded");
  }
  if (image.width * image.height / kMostPixelsByte > static_cast<std::int64_t>(file.size())) {
    fail(name, "truncated or broken JPEG: too short for the " + std::to_string(image.width) +
                   " x " + std::to_string(image.height) + " pixels that it claims");
  }
  if (info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK) {
    fail(name, "JPEG in CMYK: convert it to RGB");
  }
  if (info.jpeg_color_space == JCS_UNKNOWN) {
    fail(name, "JPEG with " + std::to_string(info.num_components) +
                   " components: grey (1) and colour (3) are read");
  }
  image.pixels.resize(static_cast<std::size_t>(3 * image.width * image.height));
  const int orientation = orientation_of(info);
  if (!read_pixels(decoder, image.pixels.data())) give_up();
  return oriented(std::move(image), orientation);
}

}  // namespace lms::data
