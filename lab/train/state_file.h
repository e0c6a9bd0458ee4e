#pragma once

// Named tensors and facts in one file, in the safetensors format: 8 bytes with the length of a JSON
// header, the header, the tensors' bytes. Files from here open in Python with the safetensors
// package.

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lms::train {

/// A file of state that cannot be written, or read, or does not fit. The message names the file.
class StateError : public Error {
 public:
  using Error::Error;
};

struct State {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  std::map<std::string, std::string> facts;

  /// Throws StateError if it is not there.
  [[nodiscard]] const torch::Tensor& tensor(const std::string& name) const;
  [[nodiscard]] const std::string& fact(const std::string& name) const;
};

/// Writes beside `path`, syncs, and renames: at any moment, whatever happens, `path` is what it was
/// or what it is to be. Throws StateError; then nothing has changed, and no temporary is left.
void save_state(const std::string& path, const State& state);

/// The file's tensors, on the CPU, in memory that LMS does not manage. Throws StateError for a file
/// that is not whole: lengths, types, and the sum over all bytes are checked.
State load_state(const std::string& path);

/// Running sum of bytes, for telling states apart; not cryptographic. The same bytes give the same
/// sum however they are cut.
class Fingerprint {
 public:
  void add(const void* bytes, std::size_t size);
  void add(const std::string& text);
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] std::string text() const;  ///< 16 hexadecimal digits

 private:
  void mix(std::uint64_t word);

  std::uint64_t lanes_[4] = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0,
                             0x082efa98ec4e6c89};
  std::uint64_t words_ = 0;
  std::uint64_t partial_ = 0;
  unsigned partial_bytes_ = 0;
};

/// Names, types, shapes and bytes of tensors on any device.
std::string fingerprint(const std::vector<std::pair<std::string, torch::Tensor>>& tensors);

namespace detail {
/// The JSON header, at least `least` bytes long (spaces fill it up), and the bytes of the data.
std::string state_header(const State& state, std::size_t least, std::size_t* data_bytes);
/// Copies a tensor to plain memory of tensor.nbytes() bytes.
void copy_out(const torch::Tensor& tensor, void* to);
}  // namespace detail

}  // namespace lms::train
