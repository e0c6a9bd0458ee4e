#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <lms/torch.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "lab/bench/costs.h"

namespace lms::bench {
namespace {

constexpr int kOperators = 256;
constexpr int kHalf = kOperators / 2;
constexpr int kMostSteps = 60;

/// A step of as many operators, all alike, over as many tensors.
class Loop {
 public:
  Loop(c10::Device device, std::int64_t bytes, bool makes_results)
      : device_(device), makes_results_(makes_results) {
    const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
    const auto count = bytes / static_cast<std::int64_t>(sizeof(float));
    for (int i = 0; i < kOperators; ++i) tensors_.push_back(at::ones({count}, options));
    last_ = at::zeros({count}, options);
  }

  struct Halves {
    double first;
    double second;
    [[nodiscard]] double both() const { return (first + second) / 2; }
  };

  /// Nanoseconds per operator in both halves of one step. The device is idle before and after.
  Halves step() {
    const double began = cpu_ns();
    half(0);
    const double middle = cpu_ns();
    half(kHalf);
    const double ended = cpu_ns();
    if (device_.type() != c10::kCPU) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    }
    torch::step(device_.str());
    return {(middle - began) / kHalf, (ended - middle) / kHalf};
  }

 private:
  void half(int from) {
    for (int i = from; i < from + kHalf; ++i) {
      const at::Tensor& tensor = tensors_[static_cast<std::size_t>(i)];
      if (makes_results_) {
        last_ = at::add(tensor, last_);
      } else {
        tensors_[static_cast<std::size_t>((i + 1) % kOperators)].add_(tensor, /*alpha=*/1e-6);
      }
    }
  }

  c10::Device device_;
  bool makes_results_;
  std::vector<at::Tensor> tensors_;
  at::Tensor last_;
};

/// The modes of one loop.
class Modes {
 public:
  Modes(c10::Device device, std::int64_t bytes, bool makes_results, int samples,
        std::vector<Cost>& costs)
      : device_(device),
        bytes_(bytes),
        makes_results_(makes_results),
        samples_(samples),
        costs_(costs) {}

  void run() {
    {
      Loop loop(device_, bytes_, makes_results_);
      steady(loop, "plain PyTorch", "");
    }
    // The CPU's tensors are managed if they are made while LMS is on.
    enable(false, kRoomy);
    {
      Loop loop(device_, bytes_, makes_results_);
      const std::string pressed = "no plans, blocks have left";
      steady(loop, "no plans", "plain PyTorch");
      press();
      steady(loop, pressed, "plain PyTorch");
      enable(true, kRoomy);
      press();
      steady(loop, "recording", pressed);
      if (stat("plan.shapes") != 0) throw Error("recording: a step was found");
      restarted(loop, pressed);
      following(loop, pressed);
    }
    torch::disable(device_.str());
  }

 private:
  /// Limits in units of a quarter of what the tensors take. A loop that fills less than three
  /// quarters of the limit is no step to plan.
  static constexpr std::int64_t kRoomy = 32;
  static constexpr std::int64_t kFilled = 5;

  void enable(bool plan, std::int64_t quarters) {
    torch::Options options;
    options.device = device_.str();
    options.limit = bytes_ * kOperators / 4 * quarters;
    options.min_block = bytes_;
    options.plan = plan;
    options.plan_at_once = true;
    options.plan_seconds = 0.1;
    torch::enable(options);
  }

  /// A block leaves: the planner wakes, if it is on.
  void press() {
    const at::Tensor scratch =
        at::ones({bytes_}, at::TensorOptions().device(device_).dtype(at::kFloat)).add_(1);
    c10::Stack stack{scratch};
    c10::Dispatcher::singleton().findSchemaOrThrow("lms::evict", "").callBoxed(&stack);
    if (!stack.at(0).toBool()) throw Error("no block could be made to leave");
    torch::step(device_.str());
  }

  std::int64_t stat(const std::string& key) { return torch::memory_stats(device_.str()).at(key); }
  double moved() { return static_cast<double>(stat("evictions") + stat("page_ins")); }

  Cost& add(const std::string& mode, const std::string& base) {
    costs_.push_back({makes_results_ ? "results" : "in place", mode, base, {}, 0});
    return costs_.back();
  }

  void steady(Loop& loop, const std::string& mode, const std::string& base) {
    const bool on = torch::is_enabled(device_.str());
    Cost& cost = add(mode, base);
    for (int i = 0; i < 10; ++i) loop.step();
    const double before = on ? moved() : 0;
    for (int i = 0; i < samples_; ++i) cost.samples.push_back(loop.step().both());
    if (on) cost.moves = (moved() - before) / samples_ / kOperators;
  }

  /// Planning begins anew again and again. The second half of the step in which the step becomes
  /// known is tracked; the one after is timed, and a plan made at its end.
  void restarted(Loop& loop, const std::string& base) {
    std::vector<double> tracked;
    std::vector<double> timed;
    const int restarts = std::max(3, samples_ / 4);
    for (int i = 0; i < restarts; ++i) {
      enable(true, kFilled);
      press();
      Loop::Halves halves{};
      for (int steps = 0; stat("plan.shapes") == 0; ++steps) {
        if (steps == kMostSteps) throw Error("the step was not found");
        halves = loop.step();
      }
      tracked.push_back(halves.second);
      timed.push_back(loop.step().first);
      loop.step();
      if (stat("plan.planned") != 1) {
        throw Error("the step after the one that was found is not timed");
      }
    }
    add("tracking", base).samples = std::move(tracked);
    add("timing", base).samples = std::move(timed);
  }

  void following(Loop& loop, const std::string& base) {
    for (int i = 0; i < kMostSteps && stat("plan.refined") == 0; ++i) loop.step();
    const auto steps = stat("plan.steps");
    const auto divergences = stat("plan.divergences");
    steady(loop, "following", base);
    if (stat("plan.steps") - steps != samples_ + 10 || stat("plan.divergences") != divergences) {
      throw Error("following: not every step was carried out under the plan");
    }
  }

  c10::Device device_;
  std::int64_t bytes_;
  bool makes_results_;
  int samples_;
  std::vector<Cost>& costs_;
};

}  // namespace

void operator_costs(const std::string& device, std::int64_t bytes, int samples,
                    std::vector<Cost>& costs) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  c10::Device parsed(device);
  if (parsed.type() != c10::kCPU) {
    at::globalContext().lazyInitDevice(parsed.type());
    if (!parsed.has_index()) parsed = c10::Device(parsed.type(), 0);
  }
  for (const bool makes_results : {false, true}) {
    Modes(parsed, bytes, makes_results, samples, costs).run();
  }
}

}  // namespace lms::bench
