#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/torch/operators/deferral.h"
#include "adapters/torch/operators/pass_step.h"
#include "adapters/torch/operators/repeatable.h"

namespace lms::torch {

/// How the hook treats an operator.
enum class OpKind : std::uint8_t {
  kPlain,        ///< pin the inputs, run, unpin
  kList,         ///< as kPlain, but may run in chunks of its lists
  kTransparent,  ///< does its work through other operators, each of which is hooked: not pinned
  kKeep,         ///< not understood: what it touches stays resident for good
};

/// An operator's rule for being computed again by a kernel of LMS's own (fused/rule.h).
struct FusedRole {
  static constexpr std::uint8_t kNoRule = UINT8_MAX;
  std::uint8_t rule = kNoRule;
  std::uint8_t role = 0;  ///< which of the rule's operators it is
};

/// Whether an operator's kernel may work on tensors that lie below (slices/in_place_rule.cpp).
enum class InPlaceRule : std::uint8_t {
  kNever,
  kOperands,    ///< on those that it only reads; on the CPU it may write there, too
  kReadsOnce,   ///< it reads each byte about once
  kReadsOften,  ///< again and again: slow there
};

struct Cut;
struct CallToCut;
using CutRule = std::vector<Cut> (*)(const CallToCut& call);

/// What the hook must know of one operator, read from its schema once.
struct OpInfo {
  struct Argument {
    std::uint32_t index;  ///< position among the operator's arguments
    bool writes;          ///< the operator may change the bytes
  };

  std::string name;                 ///< "aten::add.Tensor"
  std::vector<Argument> arguments;  ///< those that can hold tensors or storages
  std::uint32_t argument_count = 0;
  OpKind kind = OpKind::kPlain;
  bool may_rerun = false;  ///< running it again after a failure gives the same result
  /// May not be run again, and makes results beside what it writes.
  bool makes_once = false;
  Rerun rerun = Rerun::kNever;  ///< what is known of running it again after a success
  Deferral deferral = Deferral::kNever;
  PassStep step;  ///< what it is in one pass with others
  FusedRole fused;
  CutRule cut = nullptr;  ///< how it can run in parts (slices/cut.h); null: it cannot
  InPlaceRule in_place = InPlaceRule::kNever;
  bool reads_rows = false;  ///< it may make rows of what it reads and nobody has made (slices/)
  /// It ends whatever other threads do. (A collective, or a function of Python, may wait for them.)
  bool ends_alone = false;
  /// OpKind::kKeep for what lies within sparse tensors alone: who has one has its values.
  bool keeps_inside = false;
  bool takes_stream = false;
  /// A collective: its work goes on after it has returned, on tensors of its own too.
  bool goes_on = false;
  /// Its kernel allocates under a lock of PyTorch's that other threads' operators want: of a
  /// generator, or of the plans of Fourier transforms.
  bool locks = false;
  /// Its results are complete when it returns. (Those of a factory may still be filled through raw
  /// pointers.)
  bool completes_results = false;
  /// Not PyTorch's own, it may work through addresses in its backward pass, too, unheard of.
  bool may_go_unseen = false;
  /// Of its arguments it asks sizes, strides and types alone: their bytes need not be here.
  bool reads_geometry = false;
  /// It works in place, and its kernel may ask for memory when it has written some.
  bool may_write_before_it_asks = false;
  bool has_outputs = false;  ///< tensors of `out=`, which it may give other memory
  std::uint64_t key = 0;     ///< of the operator, the same in every process
  /// Its kernel is one of several, which take more or less memory beside the results (cuDNN's).
  bool has_algorithms = false;

  static constexpr std::size_t kNoArgument = SIZE_MAX;
  bool backward = false;                ///< it is part of a backward pass
  bool random = false;                  ///< it draws random numbers
  std::size_t generator = kNoArgument;  ///< position of the one that says from where
  std::size_t dropout = kNoArgument;    ///< of one that is 0 if it draws none
};

/// run_operator(), for those that it asks what to do.
using RunOperator = void (*)(const OpInfo&, const c10::SafeKernelFunction&,
                             const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack&);

/// The facts about `op` when it runs at backend key `key`; no arguments: nothing to hook for, as it
/// takes no tensors or looks at none of their bytes.
OpInfo describe(const c10::OperatorHandle& op, c10::DispatchKey key);

}  // namespace lms::torch
