#include "lab/datasets/png.h"

#include <spng.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "lab/datasets/files.h"

namespace lms::data {
namespace {

using Context = std::unique_ptr<spng_ctx, void (*)(spng_ctx*)>;

constexpr std::size_t kMostChunk = std::size_t{16} << 20;  // of those that hold no pixels

class PngDecoder {
 public:
  PngDecoder(ByteView file, std::string name, const ImageLimits& limits)
      : name_(std::move(name)), context_(spng_ctx_new(0), &spng_ctx_free) {
    if (!context_) throw std::bad_alloc();
    const auto side = static_cast<std::uint32_t>(limits.side);
    check(spng_set_chunk_limits(context_.get(), kMostChunk, kMostChunk));
    check(spng_set_png_buffer(context_.get(), file.data(), file.size()));
    check(spng_get_ihdr(context_.get(), &header_));
    if (header_.width > side || header_.height > side ||
        static_cast<std::int64_t>(header_.width) * header_.height > limits.pixels) {
      fail(name_, "PNG header: " + std::to_string(header_.width) + " x " +
                      std::to_string(header_.height) + " pixels; at most " +
                      std::to_string(limits.pixels) + " are decoded, with sides of at most " +
                      std::to_string(limits.side));
    }
    // Pixels take at least a bit, and deflate makes bytes 1032 times smaller at most.
    if (static_cast<std::uint64_t>(header_.width) * header_.height / 8 / 1100 > file.size()) {
      fail(name_, "PNG: the file is too short for the " + std::to_string(header_.width) + " x " +
                      std::to_string(header_.height) + " pixels that it claims");
    }
  }

  [[nodiscard]] const spng_ihdr& header() const { return header_; }

  std::vector<std::uint8_t> decode(spng_format format) {
    std::size_t size = 0;
    check(spng_decoded_image_size(context_.get(), format, &size));
    std::vector<std::uint8_t> bytes(size);
    check(spng_decode_image(context_.get(), bytes.data(), size, format, 0));
    return bytes;
  }

 private:
  void check(int error) const {
    if (error == 0) return;
    if (error == SPNG_EMEM) throw std::bad_alloc();
    const bool truncated = error == SPNG_EOF || error == SPNG_IO_EOF ||
                           error == SPNG_EIDAT_TOO_SHORT || error == SPNG_EIDAT_STREAM;
    fail(name_, std::string(truncated ? "truncated or broken PNG: " : "broken PNG: ") +
                    spng_strerror(error));
  }

  std::string name_;
  Context context_;
  spng_ihdr header_{};
};

/// Samples of fewer than 8 bits, packed from the highest bit on, rows beginning at a byte.
void unpack(const std::vector<std::uint8_t>& packed, int depth, std::int64_t width,
            std::vector<std::uint8_t>& out) {
  const std::int64_t row_bytes = (width * depth + 7) / 8;
  const auto rows = static_cast<std::int64_t>(packed.size()) / std::max<std::int64_t>(1, row_bytes);
  const int mask = (1 << depth) - 1;
  for (std::int64_t y = 0; y < rows; ++y) {
    const std::uint8_t* row = packed.data() + y * row_bytes;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t bit = x * depth;
      const auto shift = static_cast<int>(8 - depth - bit % 8);
      out[static_cast<std::size_t>(y * width + x)] =
          static_cast<std::uint8_t>((row[bit / 8] >> shift) & mask);
    }
  }
}

std::vector<std::uint8_t> encode(const std::uint8_t* pixels, std::size_t size, spng_ihdr header,
                                 const spng_plte* palette, const std::string& name) {
  const Context context(spng_ctx_new(SPNG_CTX_ENCODER), &spng_ctx_free);
  if (!context) throw std::bad_alloc();
  const auto check = [&](int error) {
    if (error != 0) fail(name, std::string("cannot be written as PNG: ") + spng_strerror(error));
  };
  check(spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1));
  check(spng_set_ihdr(context.get(), &header));
  if (palette != nullptr) {
    spng_plte entries = *palette;
    check(spng_set_plte(context.get(), &entries));
  }
  check(spng_encode_image(context.get(), pixels, size, SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE));
  std::size_t length = 0;
  int error = 0;
  const std::unique_ptr<void, void (*)(void*)> file(
      spng_get_png_buffer(context.get(), &length, &error), &std::free);
  check(error);
  const auto* begin = static_cast<const std::uint8_t*>(file.get());
  return {begin, begin + length};
}

spng_ihdr header_of(std::int64_t width, std::int64_t height, std::uint8_t color_type) {
  spng_ihdr header{};
  header.width = static_cast<std::uint32_t>(width);
  header.height = static_cast<std::uint32_t>(height);
  header.bit_depth = 8;
  header.color_type = color_type;
  return header;
}

}  // namespace

bool is_png(ByteView file) {
  constexpr std::array<std::uint8_t, 8> kMark = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  return file.size() >= kMark.size() && std::equal(kMark.begin(), kMark.end(), file.begin());
}

Image decode_png(ByteView file, const std::string& name, const ImageLimits& limits) {
  PngDecoder decoder(file, name, limits);
  Image image;
  image.width = decoder.header().width;
  image.height = decoder.header().height;
  image.pixels = decoder.decode(SPNG_FMT_RGB8);
  return image;
}

Array<std::uint8_t> decode_label_png(ByteView file, const std::string& name,
                                     const ImageLimits& limits) {
  PngDecoder decoder(file, name, limits);
  const spng_ihdr& header = decoder.header();
  if (header.color_type != SPNG_COLOR_TYPE_INDEXED &&
      header.color_type != SPNG_COLOR_TYPE_GRAYSCALE) {
    fail(name, "PNG header, colour type " + std::to_string(header.color_type) +
                   ": labels are to be palette indices (3) or grey values (0)");
  }
  Array<std::uint8_t> labels;
  labels.shape = {header.height, header.width};
  std::vector<std::uint8_t> raw = decoder.decode(SPNG_FMT_PNG);
  const auto count = static_cast<std::size_t>(header.width) * header.height;
  if (header.bit_depth == 8) {
    labels.values = std::move(raw);
    return labels;
  }
  labels.values.resize(count);
  if (header.bit_depth < 8) {
    unpack(raw, header.bit_depth, header.width, labels.values);
    return labels;
  }
  for (std::size_t i = 0; i < count; ++i) {  // 16 bits, in the host's (little-endian) order
    const unsigned value = raw[2 * i] | static_cast<unsigned>(raw[2 * i + 1]) << 8U;
    if (value > 255) {
      fail(name, "pixel (" + std::to_string(i % header.width) + ", " +
                     std::to_string(i / header.width) + "): label id " + std::to_string(value) +
                     " is out of range, 0 to 255");
    }
    labels.values[i] = static_cast<std::uint8_t>(value);
  }
  return labels;
}

std::vector<std::uint8_t> encode_label_png(const Array<std::uint8_t>& labels,
                                           const Palette& palette, const std::string& name) {
  if (labels.shape.size() != 2 || labels.shape[0] < 1 || labels.shape[1] < 1) {
    fail(name, "labels of height x width are to be written");
  }
  spng_plte entries{};
  entries.n_entries = 256;
  for (std::size_t i = 0; i < 256; ++i) {
    const auto grey = static_cast<std::uint8_t>(i);
    const auto color = i < palette.size() ? palette[i] : std::array{grey, grey, grey};
    entries.entries[i] = {color[0], color[1], color[2], 0};
  }
  return encode(labels.values.data(), labels.values.size(),
                header_of(labels.shape[1], labels.shape[0], SPNG_COLOR_TYPE_INDEXED), &entries,
                name);
}

std::vector<std::uint8_t> encode_png(const Image& image, const std::string& name) {
  return encode(image.pixels.data(), image.pixels.size(),
                header_of(image.width, image.height, SPNG_COLOR_TYPE_TRUECOLOR), nullptr, name);
}

}  // namespace lms::data
