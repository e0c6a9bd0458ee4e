#include "lab/datasets/coco_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "lab/datasets/files.h"

namespace lms::data {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 2;  // pixels; outlines drawn by hand pass the border a little

/// A value with its place in the file, for errors.
class Field {
 public:
  Field(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const Json& value() const { return *value_; }
  [[noreturn]] void refuse(const std::string& what) const { fail(where_, what); }

  [[nodiscard]] bool has(const char* key) const {
    return value_->is_object() && value_->contains(key);
  }
  [[nodiscard]] Field operator[](const char* key) const {
    if (!value_->is_object()) refuse("is no object");
    const auto found = value_->find(key);
    if (found == value_->end()) fail(where_ + "." + key, "is missing");
    return {*found, where_ + "." + key};
  }
  [[nodiscard]] std::size_t size() const {
    if (!value_->is_array()) refuse("is no list");
    return value_->size();
  }
  [[nodiscard]] Field at(std::size_t index) const {
    return {(*value_)[index], where_ + "[" + std::to_string(index) + "]"};
  }
  [[nodiscard]] std::int64_t integer() const {
    if (!value_->is_number_integer()) refuse("is no integer");
    return value_->get<std::int64_t>();
  }
  [[nodiscard]] double number() const {
    if (!value_->is_number()) refuse("is no number");
    const auto number = value_->get<double>();
    if (!std::isfinite(number)) refuse("is not finite");
    return number;
  }
  [[nodiscard]] std::string text() const {
    if (!value_->is_string()) refuse("is no text");
    return value_->get<std::string>();
  }

 private:
  const Json* value_;
  std::string where_;
};

std::int64_t side(const Field& field) {
  const std::int64_t value = field.integer();
  if (value < 1 || value > ImageLimits{}.side) {
    field.refuse(std::to_string(value) + " pixels; 1 to " + std::to_string(ImageLimits{}.side) +
                 " are expected");
  }
  return value;
}

std::vector<double> polygon(const Field& field, const CocoImage& image) {
  const std::size_t count = field.size();
  if (count < 6 || count % 2 != 0) {
    field.refuse(std::to_string(count) +
                 " numbers; a polygon is x, y of three points or more, an even number");
  }
  std::vector<double> points;
  points.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double value = field.at(i).number();
    const auto most = static_cast<double>(i % 2 == 0 ? image.width : image.height);
    if (value < -kTolerance || value > most + kTolerance) {
      field.at(i).refuse(std::string(i % 2 == 0 ? "x = " : "y = ") + field.at(i).value().dump() +
                         " lies outside of its image (id " + std::to_string(image.id) + ", " +
                         std::to_string(image.width) + " x " + std::to_string(image.height) + ")");
    }
    points.push_back(value);
  }
  return points;
}

void read_runs(const Field& field, const CocoImage& image, CocoAnnotation& annotation) {
  const Field size = field["size"];
  if (size.size() != 2 || size.at(0).integer() != image.height ||
      size.at(1).integer() != image.width) {
    size.refuse("is not the height and width of its image, [" + std::to_string(image.height) +
                ", " + std::to_string(image.width) + "]");
  }
  const Field counts = field["counts"];
  if (counts.value().is_string()) {
    annotation.packed = counts.text();
    return;
  }
  annotation.runs.reserve(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    annotation.runs.push_back(counts.at(i).integer());
  }
}

void read_segmentation(const Field& field, const CocoImage& image, CocoAnnotation& annotation) {
  if (field.value().is_object()) {
    read_runs(field, image, annotation);
    return;
  }
  const std::size_t parts = field.size();
  if (parts == 0) field.refuse("has no polygon");
  annotation.polygons.reserve(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    annotation.polygons.push_back(polygon(field.at(i), image));
  }
}

std::unordered_map<std::int64_t, std::uint8_t> read_categories(const Field& root, CocoFile& file) {
  const Field list = root["categories"];
  if (list.size() > 254) list.refuse("more than 254 categories");
  std::map<std::int64_t, std::string> sorted;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field id = list.at(i)["id"];
    if (!sorted.emplace(id.integer(), list.at(i)["name"].text()).second) {
      id.refuse("exists twice");
    }
  }
  std::unordered_map<std::int64_t, std::uint8_t> labels;
  for (const auto& [id, name] : sorted) {
    file.categories.push_back(name);
    labels[id] = static_cast<std::uint8_t>(file.categories.size());
  }
  return labels;
}

std::unordered_map<std::int64_t, std::size_t> read_images(const Field& root, CocoFile& file) {
  const Field list = root["images"];
  std::unordered_map<std::int64_t, std::size_t> places;
  file.images.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field entry = list.at(i);
    CocoImage image;
    image.id = entry["id"].integer();
    image.width = side(entry["width"]);
    image.height = side(entry["height"]);
    if (image.width * image.height > ImageLimits{}.pixels) entry.refuse("too many pixels");
    image.file = entry["file_name"].text();
    inside("", image.file, entry.where() + ".file_name");
    if (!places.emplace(image.id, i).second) entry["id"].refuse("exists twice");
    file.images.push_back(std::move(image));
  }
  return places;
}

void read_annotations(const Field& root, CocoFile& file) {
  const auto labels = read_categories(root, file);
  const auto places = read_images(root, file);
  const Field list = root["annotations"];
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field entry = list.at(i);
    const auto found_image = places.find(entry["image_id"].integer());
    if (found_image == places.end()) {
      entry["image_id"].refuse("there is no image " + entry["image_id"].value().dump());
    }
    const auto found_label = labels.find(entry["category_id"].integer());
    if (found_label == labels.end()) {
      entry["category_id"].refuse("label id " + entry["category_id"].value().dump() +
                                  " is out of range: it is not among the categories");
    }
    CocoImage& image = file.images[found_image->second];
    CocoAnnotation annotation;
    annotation.number = i;
    annotation.id = entry["id"].integer();
    annotation.label = found_label->second;
    annotation.area = entry["area"].number();
    read_segmentation(entry["segmentation"], image, annotation);
    image.annotations.push_back(std::move(annotation));
  }
}

}  // namespace

CocoFile parse_coco(ByteView json, const std::string& name) {
  Json root;
  try {
    root = Json::parse(json.begin(), json.end());
  } catch (const Json::exception& error) {
    fail(name, "broken JSON: " + std::string(error.what()).substr(0, 300));
  }
  CocoFile file;
  read_annotations(Field(root, name + ": $"), file);
  return file;
}

Mask annotation_mask(const CocoImage& image, const CocoAnnotation& annotation,
                     const std::string& name) {
  const std::string where =
      name + ": $.annotations[" + std::to_string(annotation.number) + "].segmentation";
  if (!annotation.packed.empty()) {
    return packed_runs_mask(annotation.packed, image.height, image.width, where + ".counts");
  }
  if (annotation.polygons.empty()) {
    return runs_mask(annotation.runs, image.height, image.width, where + ".counts");
  }
  std::vector<Mask> parts;
  parts.reserve(annotation.polygons.size());
  std::size_t changes = 0;
  for (const std::vector<double>& points : annotation.polygons) {
    try {
      parts.push_back(polygon_mask(points, image.height, image.width));
    } catch (const DataError& error) {
      fail(where, error.what());
    }
    changes += parts.back().changes.size();
    if (changes > kMostChanges) fail(where, "more parts and points than any object would have");
  }
  return parts.size() == 1 ? std::move(parts[0]) : united(parts);
}

Array<std::uint8_t> label_image(const CocoImage& image, const std::string& name) {
  std::vector<const CocoAnnotation*> order;
  order.reserve(image.annotations.size());
  for (const CocoAnnotation& annotation : image.annotations) order.push_back(&annotation);
  std::stable_sort(
      order.begin(), order.end(),
      [](const CocoAnnotation* a, const CocoAnnotation* b) { return a->area > b->area; });
  Array<std::uint8_t> labels;
  labels.shape = {image.height, image.width};
  labels.values.resize(static_cast<std::size_t>(image.height * image.width));
  for (const CocoAnnotation* annotation : order) {
    annotation_mask(image, *annotation, name).draw(labels.values.data(), annotation->label);
  }
  return labels;
}

}  // namespace lms::data
