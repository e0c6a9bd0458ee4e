#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string>
#include <vector>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/slices/below.h"
#include "adapters/torch/slices/run_cuts.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// One call of an operator whose kernel works on some of its operands where they lie below, lent to
/// the call, and makes results there. What lies below needs no room on the device.
///
/// Parts of the operator leave what is lent alone (holds()). What the kernel allocates below is
/// nobody's block until it has ended: then those that are results are.
class InPlace {
 public:
  InPlace(DeviceManager& manager, CalledKernel called, const c10::Stack& arguments);
  ~InPlace();
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

  enum class Outcome : std::uint8_t {
    kDone,
    kCannot,  ///< nothing of it may be below
    kShort,   ///< it found no room, and may be tried again
  };
  /// What of it is to be below.
  enum class What : std::uint8_t {
    kNothing,  ///< but a result that finds no room
    kSome,     ///< what does not fit: results first, then large operands
    kAll,      ///< whatever can be
    /// likewise, and what a convolution allocates besides, if it finds no room: its workspace
    kWorkspace,
  };
  /// `lack`: how much more than the limit all of it asks for, with the kernel's own memory; 0: the
  /// kernel's is not known.
  /// The thread holds no pins, nor does it afterwards, unless it is done. Throws whatever the
  /// kernel throws; that of a kernel that finds no room as well, unless it may be run again.
  Outcome run(What below, Bytes lack, std::vector<c10::IValue>& results);
  /// It was not done since other threads had what it wanted: the thread is alone when it tries
  /// again.
  [[nodiscard]] bool contended() const { return contended_; }
  /// Why there was no room below, if that is why it was not done.
  [[nodiscard]] const std::string& why_full_below() const { return full_below_; }
  /// The results that were born below.
  [[nodiscard]] std::span<const Born> born() const { return born_; }

  /// The call has lent it.
  [[nodiscard]] bool holds(const c10::StorageImpl* storage) const;
  /// Memory below for an allocation of the kernel; `refused`: there is none on the device. Null: it
  /// is not to be below, or cannot.
  c10::DataPtr allocate(const DeviceManager& manager, Bytes bytes, bool refused);

 private:
  struct Operand {
    c10::StorageImpl* storage;
    Use use;
  };
  [[nodiscard]] std::vector<Operand> operands();
  /// Of the operands, those that are to be below; decides about results, too.
  [[nodiscard]] std::vector<Operand> choose(What below, Bytes lack);
  bool prepare(What below, Bytes lack);
  void call(c10::Stack& stack);
  void take_results(const c10::Stack& stack);
  void let_go() noexcept;
  [[nodiscard]] bool may_rerun() const;
  /// Nothing of it may be written below.
  [[nodiscard]] bool operands_alone() const;

  DeviceManager& manager_;
  Below& below_;
  const CalledKernel called_;
  const c10::Stack& arguments_;
  std::vector<Operand> lent_;
  std::vector<Bytes> results_;  ///< foreseen_results()
  std::vector<Bytes> wanted_;   ///< of these, those that are to be below
  bool all_ = false;
  bool workspace_ = false;
  bool contended_ = false;
  Bytes room_ = 0;  ///< on the device, for all of it
  /// What is there of it, with all that has been allocated there, as plans count it.
  Bytes there_ = 0;
  Bytes below_bytes_ = 0;
  std::vector<Born> born_;
  std::string full_below_;
};

/// Of the thread's call in place, if it runs one: InPlace::allocate().
c10::DataPtr allocate_in_place(const DeviceManager& manager, Bytes bytes, bool refused);

/// The results' bytes (result_bytes()); empty: nobody knows.
std::vector<Bytes> foreseen_results(const DeviceManager& manager, const c10::OperatorHandle& op,
                                    std::span<const c10::IValue> arguments);

}  // namespace lms::torch
