#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// The random numbers that one run of an operator drew, so that another run can draw them again.
struct Draws {
  at::Generator before;  ///< as the generator was when the operator began; nobody else's
  /// Where the operator takes a generator; kNoArgument: it draws from its device's.
  std::size_t argument = OpInfo::kNoArgument;
};

/// What an operator that is about to run on `device` will draw; nothing if it draws nothing.
/// `arguments`: all of the schema's. Throws c10::Error while the current stream is being captured.
std::optional<Draws> draws_of(const OpInfo& info, const std::vector<c10::IValue>& arguments,
                              c10::Device device);

/// While it lives, operators on the device draw those numbers. Afterwards its generator is as it
/// was. Other threads that draw from it in the meantime draw the same; where that can be, the order
/// of their numbers was nobody's to say before. No effect if the operator takes a generator:
/// generator() is to be given to it.
class DrawAgain {
 public:
  DrawAgain(const Draws& draws, c10::Device device);
  ~DrawAgain();
  DrawAgain(const DrawAgain&) = delete;
  DrawAgain& operator=(const DrawAgain&) = delete;

  [[nodiscard]] const at::Generator& generator() const { return again_; }

 private:
  at::Generator again_;
  at::Generator device_;  ///< undefined: left alone
  at::Generator kept_;    ///< its state
};

}  // namespace lms::torch
