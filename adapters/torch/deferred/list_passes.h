#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapters/torch/deferred/deferrable.h"
#include "adapters/torch/fused/list_pass.h"

namespace lms::torch {

/// Parts that follow each other on the same tensors, to run as one operator, `lms::list_pass`, in
/// one pass over memory: what one of them makes and no one else wants is never in memory.
class ListPass {
 public:
  /// The longest run of such parts at the head of `parts`, which run in this order, with nothing
  /// between; none if that is less than two, has parts that no tensor connects with the others,
  /// uses more than `most` bytes, or somebody else has what they make. Nobody changes the parts
  /// meanwhile.
  static std::optional<ListPass> of(std::span<const std::shared_ptr<Part>> parts, Bytes most);

  [[nodiscard]] std::size_t parts() const { return parts_.size(); }
  [[nodiscard]] const Part& first() const { return *parts_.front(); }

  template <typename Function>
  void for_each_use(Function function) const {
    for (const auto& part : parts_) {
      for (const StorageUse& use : part->uses) function(use);
    }
  }

  /// Whether one kernel gives the bits of the operators; runs these, on tensors of its own, where
  /// that is not known. The caller is as a part is that runs.
  [[nodiscard]] bool may_run(PassKernels& kernels) const;
  /// Runs it, as an operator of its own. False: it cannot be run, and nothing was written.
  [[nodiscard]] bool run(PassKernels* kernels);

  /// The operator's kernel has begun to write.
  [[nodiscard]] bool has_run() const { return has_run_; }

  /// The operator's kernel. On the thread that is in run().
  static void compute(c10::Stack& stack);

 private:
  ListPass() = default;

  /// Of the next part; false: it cannot be the next.
  bool take(const std::shared_ptr<Part>& part);
  [[nodiscard]] bool is_connected() const;
  [[nodiscard]] bool is_wanted_by_others() const;
  [[nodiscard]] Bytes bytes() const;
  void compute_here();
  /// The parts' own operators, one after the other, on other tensors: by register and position.
  void run_operators(std::vector<std::vector<at::Tensor>>& tensors, std::size_t positions,
                     std::optional<double> number) const;
  [[nodiscard]] bool same_bits(PassKernels& kernels, std::int64_t elements,
                               std::optional<double> number) const;

  std::vector<std::shared_ptr<Part>> parts_;
  PassProgram program_;
  std::size_t positions_ = 0;
  /// By register, then position. (One for all: one.)
  std::vector<std::vector<at::Tensor>> tensors_;
  /// Of each storage in `tensors_`: which register, which position.
  std::unordered_map<const c10::StorageImpl*, std::pair<std::uint8_t, std::size_t>> places_;
  /// By position, then number.
  std::vector<std::vector<double>> numbers_;
  PassKernels* kernels_ = nullptr;  ///< null: by the parts' operators
  bool has_run_ = false;
};

}  // namespace lms::torch
