// Samples that are made up, of any size, with labels that can be learnt from the input.

#include <algorithm>
#include <cmath>

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/random.h"

namespace lms::data {
namespace {

struct Plan {
  std::string task;
  std::vector<std::int64_t> sides;
  std::int64_t channels = 3;
  std::int64_t classes = 2;
  std::size_t count = 1;
  std::uint64_t seed = 0;
  double noise = 0.1;
};

/// Noise by a generator with little state: a sample may have a billion values.
class Noise {
 public:
  Noise(std::uint64_t seed, double deviation)
      : state_(seed | 1U), scale_(static_cast<float>(deviation * 1.7320508 * 0x1p-31)) {}
  /// Uniform, of mean 0 and the deviation.
  float next() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32U)) * scale_;
  }

 private:
  std::uint64_t state_;
  float scale_;
};

/// How bright a class is in a channel: the same in every sample.
float level(std::int64_t label, std::int64_t channel) {
  Generator generator(
      mixed(static_cast<std::uint64_t>(label) + 1, static_cast<std::uint64_t>(channel) + 1));
  return static_cast<float>(uniform(generator, 0.15, 0.85));
}

class Synthetic : public Dataset {
 public:
  explicit Synthetic(Plan plan) : plan_(std::move(plan)) {}

  [[nodiscard]] std::size_t size() const override { return plan_.count; }
  [[nodiscard]] std::size_t classes() const override {
    return static_cast<std::size_t>(plan_.classes);
  }

  [[nodiscard]] Sample get(std::size_t index, std::uint64_t /*seed*/) const override {
    if (index >= plan_.count) {
      throw DataError("synthetic: there is no sample " + std::to_string(index));
    }
    Sample sample;
    sample.name = "synthetic" + std::to_string(index);
    Generator generator(mixed(plan_.seed, index));
    sample.input.shape = {plan_.channels};
    sample.input.shape.insert(sample.input.shape.end(), plan_.sides.begin(), plan_.sides.end());
    std::int64_t pixels = 1;
    for (const std::int64_t side : plan_.sides) pixels *= side;
    sample.input.values.resize(static_cast<std::size_t>(plan_.channels * pixels));
    Noise noise(generator(), plan_.noise);
    if (plan_.task == "classes") {
      stripes(sample, pixels, noise, generator);
    } else if (plan_.task == "volumes") {
      balls(sample, pixels, noise, generator);
    } else {
      discs(sample, pixels, noise, generator);
    }
    return sample;
  }

 private:
  /// The class is how many stripes there are, and which way they go.
  void stripes(Sample& sample, std::int64_t pixels, Noise& noise, Generator& generator) const {
    const std::int64_t label = below(generator, plan_.classes);
    sample.target = {{1}, {static_cast<std::uint8_t>(label)}};
    const std::int64_t pair = label / 2;
    const double turns = 2 * std::acos(-1.0) * (2 + static_cast<double>(pair));
    const double phase = uniform(generator, 0, 6.28);
    const std::int64_t height = plan_.sides[0];
    const std::int64_t width = plan_.sides[1];
    const std::int64_t along = label % 2 == 0 ? width : height;
    std::vector<float> wave(static_cast<std::size_t>(along));
    for (std::int64_t i = 0; i < along; ++i) {
      const double at = static_cast<double>(i) / static_cast<double>(along);
      wave[static_cast<std::size_t>(i)] =
          static_cast<float>(0.5 + 0.35 * std::sin(turns * at + phase));
    }
    float* out = sample.input.values.data();
    for (std::int64_t channel = 0; channel * pixels < std::ssize(sample.input.values); ++channel) {
      for (std::int64_t y = 0; y < height; ++y) {
        for (std::int64_t x = 0; x < width; ++x) {
          *out++ = wave[static_cast<std::size_t>(label % 2 == 0 ? x : y)] + noise.next();
        }
      }
    }
  }

  /// Discs of the classes on the background, which is class 0; a void seam around every third.
  void discs(Sample& sample, std::int64_t pixels, Noise& noise, Generator& generator) const {
    const std::int64_t height = plan_.sides[0];
    const std::int64_t width = plan_.sides[1];
    sample.target = {plan_.sides, std::vector<std::uint8_t>(static_cast<std::size_t>(pixels))};
    for (std::int64_t disc = 0; disc < 6; ++disc) {
      const auto label = static_cast<std::uint8_t>(below(generator, plan_.classes));
      const double radius =
          uniform(generator, 0.06, 0.25) * static_cast<double>(std::min(height, width));
      const double y0 = uniform(generator) * static_cast<double>(height);
      const double x0 = uniform(generator) * static_cast<double>(width);
      const double seam = disc % 3 == 2 ? 2 : 0;
      const auto first = static_cast<std::int64_t>(std::max(0.0, y0 - radius));
      const auto last =
          static_cast<std::int64_t>(std::min(static_cast<double>(height - 1), y0 + radius));
      for (std::int64_t y = first; y <= last; ++y) {
        const double dy = static_cast<double>(y) - y0;
        const double half = std::sqrt(std::max(0.0, radius * radius - dy * dy));
        for (std::int64_t x = std::max<std::int64_t>(0, std::llround(x0 - half));
             x <= std::min<std::int64_t>(width - 1, std::llround(x0 + half)); ++x) {
          const double distance = std::hypot(dy, static_cast<double>(x) - x0);
          sample.target.values[static_cast<std::size_t>(y * width + x)] =
              distance > radius - seam ? 255 : label;
        }
      }
    }
    const std::vector<std::uint8_t>& labels = sample.target.values;
    for (std::int64_t channel = 0; channel < plan_.channels; ++channel) {
      std::array<float, 256> levels{};
      for (std::int64_t label = 0; label < 256; ++label) {
        levels[static_cast<std::size_t>(label)] = label == 255 ? 1.0F : level(label, channel);
      }
      float* out = sample.input.values.data() + channel * pixels;
      for (std::size_t i = 0; i < labels.size(); ++i) out[i] = levels[labels[i]] + noise.next();
    }
  }

  /// A ball for each label, brighter in one channel each; zeros outside of a large ball.
  void balls(Sample& sample, std::int64_t pixels, Noise& noise, Generator& generator) const {
    const std::int64_t depth = plan_.sides[0];
    const std::int64_t height = plan_.sides[1];
    const std::int64_t width = plan_.sides[2];
    sample.target.shape = {plan_.classes, depth, height, width};
    sample.target.values.resize(static_cast<std::size_t>(plan_.classes * pixels));
    struct Ball {
      std::array<double, 3> centre;
      double radius;
    };
    std::vector<Ball> balls;
    for (std::int64_t label = 0; label < plan_.classes; ++label) {
      Ball ball{{}, uniform(generator, 0.2, 0.5)};
      for (double& at : ball.centre) at = uniform(generator, -0.4, 0.4);
      balls.push_back(ball);
    }
    std::int64_t at = 0;
    for (std::int64_t d = 0; d < depth; ++d) {
      for (std::int64_t h = 0; h < height; ++h) {
        for (std::int64_t w = 0; w < width; ++w, ++at) {
          const std::array<double, 3> place = {middle(d, depth), middle(h, height),
                                               middle(w, width)};
          if (squared(place, {0, 0, 0}) > 0.9) continue;
          for (std::int64_t channel = 0; channel < plan_.channels; ++channel) {
            sample.input.values[static_cast<std::size_t>(channel * pixels + at)] =
                0.3F + noise.next();
          }
          for (std::int64_t label = 0; label < plan_.classes; ++label) {
            const Ball& ball = balls[static_cast<std::size_t>(label)];
            if (squared(place, ball.centre) > ball.radius * ball.radius) continue;
            sample.target.values[static_cast<std::size_t>(label * pixels + at)] = 1;
            const std::int64_t channel = label % plan_.channels;
            sample.input.values[static_cast<std::size_t>(channel * pixels + at)] += 0.6F;
          }
        }
      }
    }
  }

  static double middle(std::int64_t at, std::int64_t side) {
    return (2 * static_cast<double>(at) + 1) / static_cast<double>(side) - 1;
  }
  static double squared(const std::array<double, 3>& a, const std::array<double, 3>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < 3; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  }

  Plan plan_;
};

}  // namespace

std::shared_ptr<const Dataset> open_synthetic(const DataSpec& spec) {
  const Options options(spec);
  Plan plan;
  plan.task = options.word("task", {"segmentation", "classes", "volumes"});
  const bool volumes = plan.task == "volumes";
  plan.sides = options.sides("size", volumes ? "64" : "256", volumes ? 3 : 2);
  plan.channels = options.integer("channels", volumes ? 4 : 3, 1, 64);
  plan.classes = options.integer("classes", volumes ? 3 : plan.task == "classes" ? 10 : 5, 1, 250);
  plan.count = static_cast<std::size_t>(options.integer("count", 100, 1, 1'000'000'000));
  const bool train = options.word("split", {"train", "val"}) == "train";
  plan.seed = mixed(static_cast<std::uint64_t>(options.integer("seed", 0, 0, 1'000'000'000)),
                    train ? 0 : 1);
  plan.noise = options.number("noise", 0.1, 0, 10);
  auto values = static_cast<double>(plan.channels);
  for (const std::int64_t side : plan.sides) values *= static_cast<double>(side);
  if (values > 0x1p33) options.refuse("size", "a size of at most 2^33 values with all channels");
  return std::make_shared<Synthetic>(std::move(plan));
}

}  // namespace lms::data
