#include "tests/datasets/fixtures.h"

// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
#include <nifti2_io.h>
#include <spng.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

namespace lms::data::fixtures {
namespace {

namespace fs = std::filesystem;

void need(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("fixtures: ") + what);
}

ByteVector exif_bytes(int orientation, bool big_endian) {
  ByteVector bytes;
  bytes.reserve(64);
  for (const char mark : {'E', 'x', 'i', 'f', '\0', '\0'}) {
    bytes.push_back(static_cast<std::uint8_t>(mark));
  }
  const auto u16 = [&](unsigned value) {
    const auto low = static_cast<std::uint8_t>(value);
    const auto high = static_cast<std::uint8_t>(value >> 8U);
    bytes.push_back(big_endian ? high : low);
    bytes.push_back(big_endian ? low : high);
  };
  const auto u32 = [&](unsigned value) {
    if (big_endian) {
      u16(value >> 16U);
      u16(value & 0xFFFFU);
    } else {
      u16(value & 0xFFFFU);
      u16(value >> 16U);
    }
  };
  const unsigned order = big_endian ? 'M' : 'I';
  u16(order << 8U | order);
  u16(42);
  u32(8);
  u16(2);       // entries
  u16(0x0100);  // one that is not looked for
  u16(4);
  u32(1);
  u32(77);
  u16(0x0112);
  u16(3);
  u32(1);
  u16(static_cast<unsigned>(orientation));
  u16(0);
  u32(0);
  return bytes;
}

ByteVector encode_png(const ByteVector& rows, std::int64_t width, std::int64_t height,
                      int color_type, int bit_depth) {
  const std::unique_ptr<spng_ctx, void (*)(spng_ctx*)> context(spng_ctx_new(SPNG_CTX_ENCODER),
                                                               &spng_ctx_free);
  spng_ihdr header{};
  header.width = static_cast<std::uint32_t>(width);
  header.height = static_cast<std::uint32_t>(height);
  header.color_type = static_cast<std::uint8_t>(color_type);
  header.bit_depth = static_cast<std::uint8_t>(bit_depth);
  need(spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1) == 0, "to buffer");
  need(spng_set_ihdr(context.get(), &header) == 0, "header");
  if (color_type == 3) {
    spng_plte palette{};
    palette.n_entries = 1U << static_cast<unsigned>(bit_depth);
    for (std::uint32_t i = 0; i < palette.n_entries; ++i) {
      const auto shade = static_cast<std::uint8_t>(255 - i / 2);
      palette.entries[i] = {shade, shade, 7, 0};
    }
    need(spng_set_plte(context.get(), &palette) == 0, "palette");
  }
  need(spng_encode_image(context.get(), rows.data(), rows.size(), SPNG_FMT_PNG,
                         SPNG_ENCODE_FINALIZE) == 0,
       "encode");
  std::size_t size = 0;
  int error = 0;
  const std::unique_ptr<void, void (*)(void*)> file(
      spng_get_png_buffer(context.get(), &size, &error), &std::free);
  need(error == 0, "buffer");
  const auto* begin = static_cast<const std::uint8_t*>(file.get());
  return {begin, begin + size};
}

template <typename T>
void put(ByteVector& bytes, double value, bool swap) {
  auto raw = std::bit_cast<std::array<std::uint8_t, sizeof(T)>>(static_cast<T>(value));
  if (swap) std::reverse(raw.begin(), raw.end());
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

void put_value(ByteVector& bytes, double value, int datatype, bool swap) {
  switch (datatype) {
    case DT_UINT8:
      return put<std::uint8_t>(bytes, value, swap);
    case DT_INT8:
      return put<std::int8_t>(bytes, value, swap);
    case DT_INT16:
      return put<std::int16_t>(bytes, value, swap);
    case DT_UINT16:
      return put<std::uint16_t>(bytes, value, swap);
    case DT_INT32:
      return put<std::int32_t>(bytes, value, swap);
    case DT_UINT32:
      return put<std::uint32_t>(bytes, value, swap);
    case DT_INT64:
      return put<std::int64_t>(bytes, value, swap);
    case DT_UINT64:
      return put<std::uint64_t>(bytes, value, swap);
    case DT_FLOAT32:
      return put<float>(bytes, value, swap);
    case DT_FLOAT64:
      return put<double>(bytes, value, swap);
    default:  // two floats: none that can be read
      put<float>(bytes, value, swap);
      put<float>(bytes, 0, swap);
  }
}

template <typename Header>
ByteVector header_bytes(const std::vector<std::int64_t>& sides, const NiftiOptions& options,
                        int size, const char* magic) {
  Header header{};
  header.sizeof_hdr = size;
  std::memcpy(header.magic, magic, 4);
  std::vector<std::int64_t> dims = sides;
  dims.insert(dims.end(), options.extra_dims.begin(), options.extra_dims.end());
  header.dim[0] = static_cast<decltype(header.dim[0] + 0)>(dims.size());
  header.pixdim[0] = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    header.dim[i + 1] = static_cast<std::remove_reference_t<decltype(header.dim[0])>>(dims[i]);
    header.pixdim[i + 1] = i < 3 ? static_cast<float>(options.spacing[i]) : 1.0F;
  }
  header.datatype = static_cast<short>(options.datatype);
  int bytes = 0;
  int swap = 0;
  nifti_datatype_sizes(options.datatype, &bytes, &swap);
  header.bitpix = static_cast<short>(8 * bytes);
  header.vox_offset = size + 4;
  header.scl_slope = static_cast<float>(options.slope);
  header.scl_inter = static_cast<float>(options.inter);
  if (options.big_endian) {
    if constexpr (sizeof(Header) == sizeof(nifti_1_header)) {
      nifti_swap_as_nifti1(&header);
    } else {
      nifti_swap_as_nifti2(&header);
    }
  }
  ByteVector file(static_cast<std::size_t>(size) + 4);
  std::memcpy(file.data(), &header, sizeof(header));
  return file;
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "lms-data-XXXXXX").string();
  need(mkdtemp(name.data()) != nullptr, "mkdtemp");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TempFolder::file(const std::string& name) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  return path.string();
}

void write_file(const std::string& path, const ByteVector& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  need(static_cast<bool>(file), "write");
}

void write_text(const std::string& path, std::string_view text) {
  write_file(path, ByteVector(text.begin(), text.end()));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Image gradient(std::int64_t width, std::int64_t height) {
  Image image{width, height, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      image.pixels.push_back(
          static_cast<std::uint8_t>(255 * x / std::max<std::int64_t>(1, width - 1)));
      image.pixels.push_back(
          static_cast<std::uint8_t>(255 * y / std::max<std::int64_t>(1, height - 1)));
      image.pixels.push_back(64);
    }
  }
  return image;
}

ByteVector jpeg_bytes(const Image& image, const JpegOptions& options) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);  // exits on an error: the input is ours
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  const int channels = options.grey ? 1 : options.cmyk ? 4 : 3;
  info.input_components = channels;
  info.in_color_space = options.grey ? JCS_GRAYSCALE : options.cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (options.orientation != 0) {
    const ByteVector exif = exif_bytes(options.orientation, options.big_endian);
    jpeg_write_marker(&info, JPEG_APP0 + 1, exif.data(), static_cast<unsigned>(exif.size()));
  }
  ByteVector row(static_cast<std::size_t>(image.width * channels));
  while (info.next_scanline < info.image_height) {
    const std::uint8_t* from = image.pixels.data() + 3 * image.width * info.next_scanline;
    for (std::int64_t x = 0; x < image.width; ++x) {
      for (int channel = 0; channel < channels; ++channel) {
        row[static_cast<std::size_t>(x * channels + channel)] =
            channel < 3 ? from[3 * x + channel] : std::uint8_t{0};
      }
    }
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  ByteVector bytes(buffer, buffer + size);
  std::free(buffer);
  jpeg_destroy_compress(&info);
  return bytes;
}

ByteVector indexed_png(const Array<std::uint16_t>& values, int color_type, int bit_depth) {
  const std::int64_t height = values.shape[0];
  const std::int64_t width = values.shape[1];
  ByteVector rows;
  for (std::int64_t y = 0; y < height; ++y) {
    unsigned bits = 0;
    int held = 0;
    for (std::int64_t x = 0; x < width; ++x) {
      const unsigned value = values.values[static_cast<std::size_t>(y * width + x)];
      if (bit_depth == 16) {  // in the host's order
        rows.push_back(static_cast<std::uint8_t>(value));
        rows.push_back(static_cast<std::uint8_t>(value >> 8U));
        continue;
      }
      bits = bits << static_cast<unsigned>(bit_depth) | value;
      held += bit_depth;
      if (held == 8 || x + 1 == width) {
        rows.push_back(static_cast<std::uint8_t>(bits << static_cast<unsigned>(8 - held)));
        bits = 0;
        held = 0;
      }
    }
  }
  return encode_png(rows, width, height, color_type, bit_depth);
}

ByteVector color_png(std::int64_t width, std::int64_t height, int color_type, int bit_depth) {
  const std::size_t samples = static_cast<std::size_t>(width * height) * (color_type == 6 ? 4 : 3);
  ByteVector rows(samples * static_cast<std::size_t>(bit_depth / 8));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint8_t>(i * 7);
  return encode_png(rows, width, height, color_type, bit_depth);
}

ByteVector nifti_bytes(const std::vector<std::int64_t>& sides, const std::vector<double>& values,
                       const NiftiOptions& options) {
  ByteVector file = options.version == 1 ? header_bytes<nifti_1_header>(sides, options, 348, "n+1")
                                         : header_bytes<nifti_2_header>(sides, options, 540, "n+2");
  for (const double value : values) put_value(file, value, options.datatype, options.big_endian);
  return file;
}

ByteVector gzip_bytes(const ByteVector& bytes) {
  z_stream z{};
  need(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "deflate");
  ByteVector out(deflateBound(&z, bytes.size()));
  z.next_in = const_cast<Bytef*>(bytes.data());
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  need(deflate(&z, Z_FINISH) == Z_STREAM_END, "deflate");
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string shared_data() {
  const char* named = std::getenv("LMS_SHARED_DATA");
  if (named != nullptr) return named;
  const fs::path beside = fs::path(__FILE__).parent_path() / "../../../shared/data";
  return fs::exists(beside) ? beside.lexically_normal().string() : "";
}

}  // namespace lms::data::fixtures
