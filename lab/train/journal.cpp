#include "lab/train/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text_file.h"

namespace lms::train {
namespace {

/// For facts that grow from step to step.
constexpr std::size_t kHeaderRoom = 4096;

std::string file_name(const std::string& path, int which) {
  return path + "-" + std::to_string(which) + ".safetensors";
}

std::string boot() {
  std::string text = read_text_file("/proc/sys/kernel/random/boot_id").value_or("unknown");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// The length at the head of a file is what makes it an entry.
void set_length(char* bytes, std::uint64_t length) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(bytes)).store(length);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace

Journal::Journal(const std::string& path, const State& like) : path_(path) {
  std::size_t data_bytes = 0;
  header_bytes_ = detail::state_header(like, 0, &data_bytes).size() + kHeaderRoom;
  for (int which = 0; which < 2; ++which) {
    const std::string name = file_name(path, which);
    // New files: what an earlier run left may still be wanted until the first entry is whole.
    const std::string temporary = name + ".part";
    const int file = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) throw StateError(temporary + ": cannot be made: " + std::strerror(errno));
    Mapping& mapping = files_[which];
    mapping.size = 8 + header_bytes_ + data_bytes;
    // With its space taken now, a write cannot fail later.
    const int error = ::posix_fallocate(file, 0, static_cast<off_t>(mapping.size));
    void* bytes = MAP_FAILED;
    if (error == 0) {
      bytes = ::mmap(nullptr, mapping.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    ::close(file);
    if (bytes == MAP_FAILED) {
      ::unlink(temporary.c_str());
      throw StateError(
          name + ": no room for a journal of " + std::to_string(mapping.size) +
          " bytes (journal=0 does without): " + std::strerror(error != 0 ? error : errno));
    }
    mapping.bytes = static_cast<char*>(bytes);
  }
}

Journal::~Journal() {
  for (int which = 0; which < 2; ++which) {
    if (files_[which].bytes != nullptr) ::munmap(files_[which].bytes, files_[which].size);
    if (!named_[which]) ::unlink((file_name(path_, which) + ".part").c_str());
  }
}

void Journal::write(const State& given) {
  State state = given;
  state.facts["boot"] = boot();
  std::size_t data_bytes = 0;
  const std::string header = detail::state_header(state, header_bytes_, &data_bytes);
  const Mapping& mapping = files_[next_];
  if (8 + header.size() + data_bytes != mapping.size) {
    throw StateError("the journal's entries are not all alike");
  }
  set_length(mapping.bytes, 0);
  std::memcpy(mapping.bytes + 8, header.data(), header.size());
  char* at = mapping.bytes + 8 + header.size();
  for (const auto& [name, tensor] : state.tensors) {
    detail::copy_out(tensor, at);
    at += tensor.nbytes();
  }
  set_length(mapping.bytes, header.size());
  if (!named_[next_]) {
    const std::string name = file_name(path_, next_);
    if (::rename((name + ".part").c_str(), name.c_str()) != 0) {
      throw StateError(name + ": cannot be replaced: " + std::strerror(errno));
    }
    named_[next_] = true;
  }
  next_ = 1 - next_;
}

void Journal::remove(const std::string& path) {
  for (int which = 0; which < 2; ++which) ::unlink(file_name(path, which).c_str());
}

std::optional<State> Journal::latest(const std::string& path) {
  std::optional<State> best;
  for (int which = 0; which < 2; ++which) {
    const std::string name = file_name(path, which);
    if (::access(name.c_str(), R_OK) != 0) continue;
    try {
      State state = load_state(name);
      if (state.fact("boot") != boot()) continue;
      if (!best || std::stoll(state.fact("step")) > std::stoll(best->fact("step"))) {
        best = std::move(state);
      }
    } catch (const StateError&) {
      continue;  // half written: the other one is whole
    }
  }
  return best;
}

}  // namespace lms::train
