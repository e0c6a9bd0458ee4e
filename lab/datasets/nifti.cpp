#include "lab/datasets/nifti.h"

#include <nifti2_io.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include "lab/datasets/files.h"
#include "lab/datasets/inflate.h"

namespace lms::data {
namespace {

using Header = std::unique_ptr<nifti_image, void (*)(nifti_image*)>;

constexpr std::size_t kMostFile = std::size_t{4} << 30;
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kNifti1 = 348;
constexpr std::size_t kNifti2 = 540;

template <typename T>
void convert(const std::uint8_t* from, std::size_t count, bool swap, double slope, double inter,
             float* out) {
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::uint8_t, sizeof(T)> bytes{};
    std::memcpy(bytes.data(), from + i * sizeof(T), sizeof(T));
    if (swap) std::reverse(bytes.begin(), bytes.end());
    const double value = static_cast<double>(std::bit_cast<T>(bytes)) * slope + inter;
    const auto narrow = static_cast<float>(
        std::clamp(value, -double{3.4e38}, double{3.4e38}));  // NaN passes through
    out[i] = std::isfinite(value) ? narrow : 0.0F;
  }
}

using Convert = void (*)(const std::uint8_t*, std::size_t, bool, double, double, float*);

Convert converter(int datatype) {
  switch (datatype) {
    case DT_UINT8:
      return &convert<std::uint8_t>;
    case DT_INT8:
      return &convert<std::int8_t>;
    case DT_INT16:
      return &convert<std::int16_t>;
    case DT_UINT16:
      return &convert<std::uint16_t>;
    case DT_INT32:
      return &convert<std::int32_t>;
    case DT_UINT32:
      return &convert<std::uint32_t>;
    case DT_INT64:
      return &convert<std::int64_t>;
    case DT_UINT64:
      return &convert<std::uint64_t>;
    case DT_FLOAT32:
      return &convert<float>;
    case DT_FLOAT64:
      return &convert<double>;
    default:
      return nullptr;
  }
}

/// The fields that nifti_clib would believe, in the host's byte order: it writes past its own
/// memory for some values of dim[0].
template <typename RawHeader>
void check_fields(const RawHeader& header, const std::string& name, const VolumeLimits& limits) {
  std::int64_t voxels = 1;
  if (header.dim[0] < 3 || header.dim[0] > 7) {
    fail(name, "field dim[0]: " + std::to_string(header.dim[0]) + " axes; 3 are expected");
  }
  for (int axis = 1; axis <= header.dim[0]; ++axis) {
    const std::int64_t side = header.dim[axis];
    const std::string field = "field dim[" + std::to_string(axis) + "]: ";
    if (side < 1) fail(name, field + "a side of " + std::to_string(side));
    if (axis > 3 && side != 1) {
      fail(name, field + std::to_string(side) + " volumes in one file; one is expected");
    }
    if (side > limits.voxels / voxels) {
      fail(name, field + "more than " + std::to_string(limits.voxels) + " voxels are claimed");
    }
    voxels *= side;
  }
  if (converter(header.datatype) == nullptr) {
    fail(name, "field datatype: " + std::to_string(header.datatype) + " (" +
                   nifti_datatype_string(header.datatype) + "); real numbers are expected");
  }
}

struct Parsed {
  Header header;
  std::size_t bytes;  // of the header in the file
  bool swapped;       // the file's byte order is not the host's
};

void check_magic(const std::string& magic, char version, const std::string& name) {
  if (magic == std::string("n+") + version) return;
  if (magic == std::string("ni") + version) {
    fail(name, "is the header of a NIfTI pair (.hdr and .img); only single files (.nii) are read");
  }
  fail(name, std::string("field magic: is no NIfTI file (\"n+") + version + "\" is expected)");
}

/// nifti_clib makes sense of the header. It does not open files: it believes what they claim.
Parsed parse_header(ByteSource& source, const std::string& name, const VolumeLimits& limits) {
  static std::once_flag once;
  std::call_once(once, [] { nifti_set_debug_level(0); });

  std::array<std::uint8_t, kNifti2> raw{};
  source.read(raw.data(), 4);
  std::uint32_t first = 0;
  std::memcpy(&first, raw.data(), 4);
  const auto turned = [](std::uint32_t size) {  // of two bytes
    return (size & 0xFFU) << 24U | (size & 0xFF00U) << 8U;
  };
  const auto read_as = [&](auto header, std::size_t size, char version, auto swap, auto convert) {
    const bool swapped = first != size;
    source.read(raw.data() + 4, size - 4);
    std::memcpy(&header, raw.data(), size);
    check_magic(std::string(header.magic, 3), version, name);
    if (swapped) swap(&header);
    check_fields(header, name, limits);
    nifti_image* image = convert(header, nullptr);
    if (image == nullptr) fail(name, "broken NIfTI header");
    return Parsed{Header(image, &nifti_image_free), size, swapped};
  };
  if (first == kNifti1 || first == turned(kNifti1)) {
    return read_as(nifti_1_header{}, kNifti1, '1', &nifti_swap_as_nifti1, &nifti_convert_n1hdr2nim);
  }
  if (first == kNifti2 || first == turned(kNifti2)) {
    return read_as(nifti_2_header{}, kNifti2, '2', &nifti_swap_as_nifti2, &nifti_convert_n2hdr2nim);
  }
  fail(name, "is no NIfTI file: its first four bytes are to be 348 or 540");
}

void set_geometry(const nifti_image& header, Volume& volume) {
  volume.shape = {header.dim[3], header.dim[2], header.dim[1]};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const double spacing = std::abs(header.pixdim[3 - axis]);
    volume.spacing[axis] = std::isfinite(spacing) && spacing > 0 ? spacing : 1;
  }
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t column = 0; column < 4; ++column) {
      const bool diagonal = row == column;
      volume.affine[row][column] = header.sform_code > 0   ? header.sto_xyz.m[row][column]
                                   : header.qform_code > 0 ? header.qto_xyz.m[row][column]
                                   : diagonal              ? volume.spacing[2 - row]
                                                           : 0;
    }
  }
}

}  // namespace

Volume decode_nifti(ByteView file, const std::string& name, const VolumeLimits& limits) {
  ByteSource source(file, name);
  const Parsed parsed = parse_header(source, name, limits);
  const nifti_image& header = *parsed.header;
  const Convert to_floats = converter(header.datatype);
  if (header.iname_offset < static_cast<std::int64_t>(parsed.bytes) ||
      header.iname_offset > limits.extensions) {
    fail(name, "field vox_offset: " + std::to_string(header.iname_offset) + " is out of range, " +
                   std::to_string(parsed.bytes) + " to " + std::to_string(limits.extensions));
  }
  source.skip(static_cast<std::size_t>(header.iname_offset) - parsed.bytes);

  Volume volume;
  set_geometry(header, volume);
  const bool scaled = header.scl_slope != 0 && std::isfinite(header.scl_slope);
  const double slope = scaled ? header.scl_slope : 1;
  const double inter = scaled && std::isfinite(header.scl_inter) ? header.scl_inter : 0;
  volume.bytes = header.datatype == DT_UINT8 && slope == 1 && inter == 0;

  const auto voxel = static_cast<std::size_t>(header.nbyper);
  const auto count = static_cast<std::size_t>(volume.shape[0] * volume.shape[1] * volume.shape[2]);
  // Memory grows with what is there, not with what the header claims.
  std::vector<std::uint8_t> piece;
  for (std::size_t done = 0; done < count;) {
    const std::size_t voxels = std::min(count - done, kPiece / voxel);
    piece.resize(voxels * voxel);
    source.read(piece.data(), piece.size());
    volume.voxels.resize(done + voxels);
    to_floats(piece.data(), voxels, parsed.swapped, slope, inter, volume.voxels.data() + done);
    done += voxels;
  }
  return volume;
}

Volume read_nifti(const std::string& path, const VolumeLimits& limits) {
  return decode_nifti(read_bytes(path, kMostFile), path, limits);
}

void write_nifti(const std::string& path, const Array<std::uint8_t>& voxels,
                 const std::array<double, 3>& spacing) {
  if (voxels.shape.size() != 3 ||
      *std::max_element(voxels.shape.begin(), voxels.shape.end()) > 32767) {
    fail(path, "volumes of depth x height x width, at most 32767 each, are to be written");
  }
  nifti_1_header header{};
  header.sizeof_hdr = kNifti1;
  header.dim[0] = 3;
  header.pixdim[0] = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    header.dim[axis + 1] = static_cast<short>(voxels.shape[2 - axis]);
    header.pixdim[axis + 1] = static_cast<float>(spacing[2 - axis]);
  }
  header.datatype = DT_UINT8;
  header.bitpix = 8;
  header.vox_offset = kNifti1 + 4;
  header.scl_slope = 1;
  header.xyzt_units = NIFTI_UNITS_MM;
  std::memcpy(header.magic, "n+1", 4);
  std::vector<std::uint8_t> file(kNifti1 + 4);
  std::memcpy(file.data(), &header, sizeof(header));
  file.insert(file.end(), voxels.values.begin(), voxels.values.end());
  if (!path.ends_with(".gz")) {
    write_bytes(path, file);
    return;
  }
  const gzFile out = gzopen(path.c_str(), "wb6");
  if (out == nullptr) fail(path, "could not be written");
  bool good = true;
  for (std::size_t at = 0; good && at < file.size(); at += kPiece) {
    const auto bytes = static_cast<unsigned>(std::min(kPiece, file.size() - at));
    good = gzwrite(out, file.data() + at, bytes) == static_cast<int>(bytes);
  }
  if (gzclose(out) != Z_OK || !good) fail(path, "could not be written");
}

}  // namespace lms::data
