#include "lab/datasets/subjects.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lab/datasets/files.h"
#include "lab/datasets/nifti.h"

namespace lms::data {
namespace {

struct Box {
  std::array<std::int64_t, 3> begin;
  std::array<std::int64_t, 3> end;
  [[nodiscard]] std::int64_t side(std::size_t axis) const { return end[axis] - begin[axis]; }
  [[nodiscard]] std::int64_t voxels() const { return side(0) * side(1) * side(2); }
};

/// Calls `each(from, to)` for each row of the box: offsets in the whole volume and in the box.
template <typename Each>
void for_each_row(const Box& box, const std::array<std::int64_t, 3>& shape, const Each& each) {
  std::int64_t to = 0;
  for (std::int64_t d = box.begin[0]; d < box.end[0]; ++d) {
    for (std::int64_t h = box.begin[1]; h < box.end[1]; ++h) {
      each((d * shape[1] + h) * shape[2] + box.begin[2], to);
      to += box.side(2);
    }
  }
}

/// Where some image is not 0; everything if none is.
Box foreground(const std::vector<Volume>& images) {
  const std::array<std::int64_t, 3>& shape = images[0].shape;
  Box box{shape, {0, 0, 0}};
  for (const Volume& image : images) {
    std::size_t at = 0;
    for (std::int64_t d = 0; d < shape[0]; ++d) {
      for (std::int64_t h = 0; h < shape[1]; ++h, at += static_cast<std::size_t>(shape[2])) {
        const float* row = image.voxels.data() + at;
        const float* row_end = row + shape[2];
        const auto not_zero = [](float value) { return value != 0; };
        const float* first = std::find_if(row, row_end, not_zero);
        if (first == row_end) continue;
        const float* last = row_end - 1;
        while (*last == 0) --last;
        const std::array<std::int64_t, 3> low = {d, h, first - row};
        const std::array<std::int64_t, 3> high = {d + 1, h + 1, last - row + 1};
        for (std::size_t axis = 0; axis < 3; ++axis) {
          box.begin[axis] = std::min(box.begin[axis], low[axis]);
          box.end[axis] = std::max(box.end[axis], high[axis]);
        }
      }
    }
  }
  return box.end[0] == 0 ? Box{{0, 0, 0}, shape} : box;
}

void standardize(float* begin, std::int64_t count) {
  double sum = 0;
  double squares = 0;
  std::int64_t inside = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (begin[i] == 0) continue;
    sum += begin[i];
    ++inside;
  }
  if (inside == 0) return;
  const double mean = sum / static_cast<double>(inside);
  for (std::int64_t i = 0; i < count; ++i) {
    if (begin[i] != 0) squares += (begin[i] - mean) * (begin[i] - mean);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(inside));
  const double factor = deviation > 0 ? 1 / deviation : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (begin[i] != 0) begin[i] = static_cast<float>((begin[i] - mean) * factor);
  }
}

void check_match(const Volume& first, const std::string& first_path, const Volume& other,
                 const std::string& path, bool affine) {
  const auto sides = [](const Volume& volume) {
    return std::to_string(volume.shape[2]) + " x " + std::to_string(volume.shape[1]) + " x " +
           std::to_string(volume.shape[0]);
  };
  if (first.shape != other.shape) {
    fail(path, "field dim: " + sides(other) + " voxels, but " + first_path + " has " +
                   sides(first) + "; a subject's volumes are to be alike");
  }
  for (std::size_t row = 0; affine && row < 3; ++row) {
    for (std::size_t column = 0; column < 4; ++column) {
      const double a = first.affine[row][column];
      const double b = other.affine[row][column];
      // A tenth of a voxel at the far end, a millimetre in the origin.
      const double tolerance = column == 3 ? 1 : 0.1 / static_cast<double>(first.shape[2 - column]);
      if (!(std::abs(a - b) <= tolerance * std::max(1.0, first.spacing[0]))) {
        fail(path, "field sform or qform: its voxels lie elsewhere than those of " + first_path +
                       " (affine=ignore takes them as they are)");
      }
    }
  }
}

class SubjectVolumes : public Dataset {
 public:
  SubjectVolumes(std::vector<Subject> subjects, VolumeRules rules)
      : subjects_(std::move(subjects)), rules_(std::move(rules)) {}

  [[nodiscard]] std::size_t size() const override { return subjects_.size(); }
  [[nodiscard]] std::size_t classes() const override {
    return std::max<std::size_t>(1, rules_.labels.size());
  }
  [[nodiscard]] std::vector<std::string> class_names() const override { return rules_.labels; }

  [[nodiscard]] Sample get(std::size_t index, std::uint64_t /*seed*/) const override {
    const Subject& subject = subjects_.at(index);
    const std::vector<Volume> images = read_all(subject.images, nullptr, "");
    const std::vector<Volume> truth = read_all(subject.truth, &images[0], subject.images[0]);
    const Box box = box_of(images);
    const std::int64_t voxels = box.voxels();
    const auto shape = [&](std::size_t channels) {
      return std::vector<std::int64_t>{static_cast<std::int64_t>(channels), box.side(0),
                                       box.side(1), box.side(2)};
    };
    Sample sample;
    sample.name = subject.name;
    sample.input.shape = shape(images.size());
    sample.input.values.resize(images.size() * static_cast<std::size_t>(voxels));
    for (std::size_t channel = 0; channel < images.size(); ++channel) {
      float* out = sample.input.values.data() + static_cast<std::int64_t>(channel) * voxels;
      for_each_row(box, images[0].shape, [&](std::int64_t from, std::int64_t to) {
        std::copy_n(images[channel].voxels.data() + from, box.side(2), out + to);
      });
      if (rules_.standardize) standardize(out, voxels);
    }
    sample.target.shape = shape(classes());
    sample.target.values.resize(classes() * static_cast<std::size_t>(voxels));
    if (rules_.truth == VolumeRules::Truth::kIds) {
      set_ids(truth[0], subject.truth[0], box, sample.target.values.data());
    } else if (rules_.truth != VolumeRules::Truth::kNone) {
      set_maps(truth, images, box, sample.target.values.data());
    }
    return sample;
  }

 private:
  [[nodiscard]] std::vector<Volume> read_all(const std::vector<std::string>& paths,
                                             const Volume* like,
                                             const std::string& like_path) const {
    std::vector<Volume> volumes;
    volumes.reserve(paths.size());
    for (const std::string& path : paths) {
      volumes.push_back(read_nifti(path));
      if (like != nullptr) {
        check_match(*like, like_path, volumes.back(), path, rules_.match_affine);
      } else {
        check_match(volumes[0], paths[0], volumes.back(), path, rules_.match_affine);
      }
    }
    return volumes;
  }

  [[nodiscard]] Box box_of(const std::vector<Volume>& images) const {
    Box box = rules_.crop ? foreground(images) : Box{{0, 0, 0}, images[0].shape};
    const auto axis = static_cast<std::size_t>(rules_.slab_axis);
    const auto side = static_cast<double>(box.side(axis));
    const std::int64_t begin = box.begin[axis];
    box.begin[axis] = begin + std::llround(side * rules_.slab_from);
    box.end[axis] = begin + std::llround(side * rules_.slab_to);
    box.end[axis] = std::max(box.end[axis], box.begin[axis] + 1);
    box.begin[axis] = std::min(box.begin[axis], images[0].shape[axis] - 1);
    box.end[axis] = std::min(box.end[axis], images[0].shape[axis]);
    return box;
  }

  void set_ids(const Volume& truth, const std::string& path, const Box& box,
               std::uint8_t* out) const {
    // Also outside of the box: what lies there is to be a label as well.
    for (std::size_t i = 0; i < truth.voxels.size(); ++i) {
      const float value = truth.voxels[i];
      const bool known =
          value == 0 || std::any_of(rules_.ids.begin(), rules_.ids.end(),
                                    [&](int id) { return value == static_cast<float>(id); });
      if (!known) refuse_id(truth, path, i);
    }
    for_each_row(box, truth.shape, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t w = 0; w < box.side(2); ++w) {
        const auto id = static_cast<int>(truth.voxels[static_cast<std::size_t>(from + w)]);
        if (id == 0) continue;
        for (std::size_t label = 0; label < rules_.ids.size(); ++label) {
          const std::int64_t at = static_cast<std::int64_t>(label) * box.voxels() + to + w;
          out[at] = rules_.ids[label] == id ? 1 : 0;
        }
      }
    });
  }

  [[noreturn]] void refuse_id(const Volume& truth, const std::string& path, std::size_t at) const {
    const auto width = static_cast<std::size_t>(truth.shape[2]);
    const auto height = static_cast<std::size_t>(truth.shape[1]);
    std::string expected = "0";
    for (const int id : rules_.ids) expected += ", " + std::to_string(id);
    fail(path, "voxel (" + std::to_string(at % width) + ", " + std::to_string(at / width % height) +
                   ", " + std::to_string(at / width / height) + "): label id " +
                   std::to_string(truth.voxels[at]) + " is out of range: " + expected);
  }

  void set_maps(const std::vector<Volume>& maps, const std::vector<Volume>& images, const Box& box,
                std::uint8_t* out) const {
    const std::vector<float>& image = images[0].voxels;
    const bool most = rules_.truth == VolumeRules::Truth::kMost;
    std::vector<double> factors;
    factors.reserve(maps.size());
    for (const Volume& map : maps) {
      factors.push_back(1 / (rules_.certain > 0 ? rules_.certain : map.bytes ? 255.0 : 1.0));
    }
    for_each_row(box, images[0].shape, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t w = 0; w < box.side(2); ++w) {
        const auto voxel = static_cast<std::size_t>(from + w);
        if (most && image[voxel] == 0) continue;
        double rest = 1;
        for (std::size_t i = 0; i < maps.size(); ++i) rest -= maps[i].voxels[voxel] * factors[i];
        double best = most ? rest : 0.5;
        std::size_t winner = maps.size();
        for (std::size_t i = 0; i < maps.size(); ++i) {
          const double share = maps[i].voxels[voxel] * factors[i];
          if (most ? share <= best : share < best) continue;
          winner = i;
          if (most) best = share;
          if (!most) out[static_cast<std::int64_t>(i) * box.voxels() + to + w] = 1;
        }
        if (most && winner < maps.size()) {
          out[static_cast<std::int64_t>(winner) * box.voxels() + to + w] = 1;
        }
      }
    });
  }

  std::vector<Subject> subjects_;
  VolumeRules rules_;
};

bool matches(const char* pattern, const char* text) {
  if (*pattern == '\0') return *text == '\0';
  if (*pattern == '*') {
    return matches(pattern + 1, text) || (*text != '\0' && matches(pattern, text + 1));
  }
  return *pattern == *text && matches(pattern + 1, text + 1);
}

}  // namespace

std::string find_volume(const std::string& folder, const std::string& pattern) {
  const std::string subject =
      std::filesystem::path(folder + "/.").parent_path().filename().string();
  if (pattern.find('*') == std::string::npos) {
    for (const std::string& stem : {pattern, subject + "_" + pattern}) {
      for (const char* end : {".nii.gz", ".nii"}) {
        std::string path = inside(folder, stem, folder) + end;
        if (is_file(path)) return path;
      }
    }
    fail(folder, pattern + ".nii.gz is missing, as are " + pattern + ".nii and " + subject + "_" +
                     pattern + ".nii.gz");
  }
  std::vector<std::string> found;
  for (const std::string& file : files_in(folder)) {
    const bool packed = file.ends_with(".nii.gz");
    if (!packed && !file.ends_with(".nii")) continue;
    const std::string stem = file.substr(0, file.size() - (packed ? 7 : 4));
    if (matches(pattern.c_str(), stem.c_str()) || matches(pattern.c_str(), file.c_str())) {
      found.push_back(file);
    }
  }
  if (found.empty()) fail(folder, "no NIfTI file's name is " + pattern);
  if (found.size() > 1) fail(folder, found[0] + " and " + found[1] + " are both " + pattern);
  return folder + "/" + found[0];
}

std::shared_ptr<const Dataset> subject_volumes(std::vector<Subject> subjects, VolumeRules rules) {
  return std::make_shared<SubjectVolumes>(std::move(subjects), std::move(rules));
}

}  // namespace lms::data
