#include "lab/datasets/wrap.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "lab/datasets/random.h"

namespace lms::data {
namespace {

/// Passes everything on.
class Wrapper : public Dataset {
 public:
  explicit Wrapper(DatasetPtr base) : base_(std::move(base)) {}
  [[nodiscard]] std::size_t size() const override { return base_->size(); }
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    return base_->get(index, seed);
  }
  [[nodiscard]] std::size_t classes() const override { return base_->classes(); }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return base_->class_names();
  }
  [[nodiscard]] std::vector<std::array<std::uint8_t, 3>> palette() const override {
    return base_->palette();
  }

 protected:
  [[nodiscard]] const Dataset& base() const { return *base_; }

 private:
  DatasetPtr base_;
};

class Subset : public Wrapper {
 public:
  Subset(DatasetPtr base, std::vector<std::size_t> indices)
      : Wrapper(std::move(base)), indices_(std::move(indices)) {
    for (const std::size_t index : indices_) {
      if (index < this->base().size()) continue;
      throw DataError("subset: index " + std::to_string(index) + " is out of range, there are " +
                      std::to_string(this->base().size()) + " samples");
    }
  }
  [[nodiscard]] std::size_t size() const override { return indices_.size(); }
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    return base().get(indices_.at(index), seed);
  }

 private:
  std::vector<std::size_t> indices_;
};

class Repeated : public Wrapper {
 public:
  Repeated(DatasetPtr base, std::size_t times) : Wrapper(std::move(base)), times_(times) {}
  [[nodiscard]] std::size_t size() const override { return base().size() * times_; }
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    return base().get(index % base().size(), mixed(seed, index / base().size()));
  }

 private:
  std::size_t times_;
};

class Concatenated : public Wrapper {
 public:
  explicit Concatenated(std::vector<DatasetPtr> parts)
      : Wrapper(parts.at(0)), parts_(std::move(parts)) {
    for (const DatasetPtr& part : parts_) {
      size_ += part->size();
      if (part->classes() == classes()) continue;
      throw DataError("concatenated: data sets of " + std::to_string(classes()) + " and of " +
                      std::to_string(part->classes()) + " classes");
    }
  }
  [[nodiscard]] std::size_t size() const override { return size_; }
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    for (const DatasetPtr& part : parts_) {
      if (index < part->size()) return part->get(index, seed);
      index -= part->size();
    }
    throw DataError("concatenated: there are " + std::to_string(size_) + " samples");
  }

 private:
  std::vector<DatasetPtr> parts_;
  std::size_t size_ = 0;
};

class Transformed : public Wrapper {
 public:
  Transformed(DatasetPtr base, std::vector<Transform> transforms)
      : Wrapper(std::move(base)), transforms_(std::move(transforms)) {}
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    Sample sample = base().get(index, mixed(seed, 1));
    Generator generator(mixed(seed, 2));
    for (const Transform& transform : transforms_) {
      try {
        transform(sample, generator);
      } catch (const DataError& error) {
        throw DataError(sample.name + ": " + error.what());
      }
    }
    return sample;
  }

 private:
  std::vector<Transform> transforms_;
};

class Cached : public Wrapper {
 public:
  Cached(DatasetPtr base, std::size_t bytes) : Wrapper(std::move(base)), left_(bytes) {}
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    if (const std::shared_ptr<const Sample> kept = find(index)) return *kept;
    Sample sample = base().get(index, seed);
    const std::size_t bytes = size_of(sample);
    const std::lock_guard lock(mutex_);
    if (bytes <= left_ && !kept_.contains(index)) {
      kept_.emplace(index, std::make_shared<const Sample>(sample));
      left_ -= bytes;
    }
    return sample;
  }

 private:
  [[nodiscard]] std::shared_ptr<const Sample> find(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(index);
    return found == kept_.end() ? nullptr : found->second;
  }
  static std::size_t size_of(const Sample& sample) {
    std::size_t bytes = sample.name.size() + sample.input.values.size() * sizeof(float) +
                        sample.target.values.size();
    for (const Array<std::uint8_t>& extra : sample.extras) bytes += extra.values.size();
    return bytes;
  }

  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::shared_ptr<const Sample>> kept_;
  mutable std::size_t left_;
};

}  // namespace

DatasetPtr subset(DatasetPtr base, std::vector<std::size_t> indices) {
  return std::make_shared<Subset>(std::move(base), std::move(indices));
}

DatasetPtr shuffled(DatasetPtr base, std::uint64_t seed) {
  std::vector<std::size_t> order = permutation(base->size(), seed);
  return subset(std::move(base), std::move(order));
}

std::pair<DatasetPtr, DatasetPtr> split(DatasetPtr base, double share, std::uint64_t seed) {
  const std::size_t size = base->size();
  if (size < 2 || !(share > 0 && share < 1)) {
    throw DataError("split: a share of " + std::to_string(share) + " of " + std::to_string(size) +
                    " samples; there are to be two samples, and a share between 0 and 1");
  }
  const std::vector<std::size_t> order = permutation(size, seed);
  const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(size)));
  const auto middle =
      order.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(wanted, 1, size - 1));
  std::vector<std::size_t> first(order.begin(), middle);
  std::vector<std::size_t> second(middle, order.end());
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  return {subset(base, std::move(first)), subset(std::move(base), std::move(second))};
}

DatasetPtr repeated(DatasetPtr base, std::size_t times) {
  return std::make_shared<Repeated>(std::move(base), times);
}

DatasetPtr concatenated(std::vector<DatasetPtr> parts) {
  if (parts.empty()) throw DataError("concatenated: no data set is given");
  return std::make_shared<Concatenated>(std::move(parts));
}

DatasetPtr transformed(DatasetPtr base, std::vector<Transform> transforms) {
  return std::make_shared<Transformed>(std::move(base), std::move(transforms));
}

DatasetPtr cached(DatasetPtr base, std::size_t bytes) {
  return std::make_shared<Cached>(std::move(base), bytes);
}

}  // namespace lms::data
