#include "lab/train/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace lms::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostHeader = std::size_t{256} << 20;
constexpr const char* kNoSum = "................";

constexpr std::array<std::pair<const char*, torch::ScalarType>, 8> kTypes = {
    {{"F32", torch::kFloat32},
     {"F64", torch::kFloat64},
     {"F16", torch::kFloat16},
     {"BF16", torch::kBFloat16},
     {"I64", torch::kInt64},
     {"I32", torch::kInt32},
     {"U8", torch::kUInt8},
     {"BOOL", torch::kBool}}};

const char* type_name(torch::ScalarType type) {
  for (const auto& [name, each] : kTypes) {
    if (each == type) return name;
  }
  throw StateError(std::string("tensors of type ") + c10::toString(type) + " cannot be saved");
}

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw StateError(path + ": " + what + ": " + std::strerror(error));
}

class File {
 public:
  File(std::string path, int flags) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
    if (file_ < 0) fail(path_, "cannot be opened", errno);
  }
  ~File() {
    if (file_ >= 0) ::close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(const void* bytes, std::size_t size, std::size_t at) const {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t done = ::pwrite(file_, from, size, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail(path_, "cannot be written", done < 0 ? errno : EIO);
      from += done;
      at += static_cast<std::size_t>(done);
      size -= static_cast<std::size_t>(done);
    }
  }
  void read(void* bytes, std::size_t size, std::size_t at) const {
    char* to = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t done = ::pread(file_, to, size, static_cast<off_t>(at));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(path_, "cannot be read", errno);
      if (done == 0) throw StateError(path_ + ": ends early, at byte " + std::to_string(at));
      to += done;
      at += static_cast<std::size_t>(done);
      size -= static_cast<std::size_t>(done);
    }
  }
  [[nodiscard]] std::size_t size() const {
    struct stat status = {};
    if (::fstat(file_, &status) != 0) fail(path_, "cannot be read", errno);
    return static_cast<std::size_t>(status.st_size);
  }
  void sync() const {
    if (::fsync(file_) != 0) fail(path_, "cannot be synced", errno);
  }
  void close() {
    const int result = ::close(file_);
    file_ = -1;
    if (result != 0) fail(path_, "cannot be written", errno);
  }

 private:
  std::string path_;
  int file_ = -1;
};

void sync_folder(const std::filesystem::path& path) {
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);  // some file systems cannot sync folders; the rename has been done all the same
  ::close(file);
}

/// Plain memory, which LMS never moves.
torch::Tensor plain_tensor(torch::IntArrayRef shape, torch::ScalarType type) {
  const std::size_t bytes =
      static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  auto memory = std::shared_ptr<char[]>(new char[std::max<std::size_t>(bytes, 1)]);
  return torch::from_blob(
      memory.get(), shape, [memory](void*) {}, torch::dtype(type));
}

torch::Tensor read_tensor(const File& file, const std::string& path, const std::string& name,
                          const Json& entry, std::size_t data, std::size_t* next) {
  const std::string type = entry.at("dtype");
  const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
  const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
  const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const auto& each) { return type == each.first; });
  if (found == kTypes.end()) throw StateError(path + ": " + name + ": unknown type " + type);
  std::size_t bytes = c10::elementSize(found->second);
  for (const std::int64_t side : shape) {
    if (side < 0 || (side > 0 && bytes > SIZE_MAX / 2 / static_cast<std::size_t>(side))) {
      throw StateError(path + ": " + name + ": a shape that cannot be");
    }
    bytes *= static_cast<std::size_t>(side);
  }
  if (begin != *next || end < begin || end - begin != bytes || data + end > file.size()) {
    throw StateError(path + ": " + name + ": its bytes are not where they should be");
  }
  *next = end;
  torch::Tensor tensor = plain_tensor(shape, found->second);
  file.read(tensor.data_ptr(), bytes, data + begin);
  return tensor;
}

}  // namespace

const torch::Tensor& State::tensor(const std::string& name) const {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return tensor;
  }
  throw StateError("there is no tensor '" + name + "' in the checkpoint");
}

const std::string& State::fact(const std::string& name) const {
  const auto found = facts.find(name);
  if (found == facts.end()) throw StateError("the checkpoint does not say '" + name + "'");
  return found->second;
}

void Fingerprint::mix(std::uint64_t word) {
  std::uint64_t& lane = lanes_[words_++ % 4];
  lane = std::rotl((lane ^ word) * 0x9fb21c651e98df25, 31);
}

void Fingerprint::add(const void* bytes, std::size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0 && (partial_bytes_ != 0 || size < 8)) {
    partial_ |= static_cast<std::uint64_t>(static_cast<unsigned char>(*from))
                << (8 * partial_bytes_);
    ++from;
    --size;
    if (++partial_bytes_ == 8) {
      mix(partial_);
      partial_ = 0;
      partial_bytes_ = 0;
    }
  }
  for (; size >= 8; from += 8, size -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, 8);
    mix(word);
  }
  if (size > 0) add(from, size);
}

void Fingerprint::add(const std::string& text) {
  const std::uint64_t size = text.size();
  add(&size, sizeof(size));
  add(text.data(), text.size());
}

std::uint64_t Fingerprint::value() const {
  std::uint64_t sum = words_ * 8 + partial_bytes_;
  for (const std::uint64_t part : {lanes_[0], lanes_[1], lanes_[2], lanes_[3], partial_}) {
    sum = std::rotl((sum ^ part) * 0xd6e8feb86659fd93, 29);
    sum ^= sum >> 32;
  }
  return sum;
}

std::string Fingerprint::text() const {
  std::array<char, 20> digits = {};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(value()));
  return digits.data();
}

namespace detail {

void copy_out(const torch::Tensor& tensor, void* to) {
  const torch::NoGradGuard no_grad;
  torch::from_blob(to, tensor.sizes(), torch::dtype(tensor.scalar_type())).copy_(tensor);
}

std::string state_header(const State& state, std::size_t least, std::size_t* data_bytes) {
  // Written piece by piece: ordered objects of nlohmann's are searched for every key that is added.
  std::string text = R"({"__metadata__":)" + Json(state.facts).dump();
  std::size_t at = 0;
  for (const auto& [name, tensor] : state.tensors) {
    const Json entry = {{"dtype", type_name(tensor.scalar_type())},
                        {"shape", tensor.sizes().vec()},
                        {"data_offsets", {at, at + tensor.nbytes()}}};
    text.append(",").append(Json(name).dump()).append(":").append(entry.dump());
    at += tensor.nbytes();
  }
  text += "}";
  text.resize((std::max(text.size(), least) + 7) / 8 * 8, ' ');
  *data_bytes = at;
  return text;
}

}  // namespace detail

namespace {

constexpr const char* kHeaderSum = "header_checksum";

/// Of a header in which the place of the sum itself, `said`, is blank. Nothing where it is not.
std::optional<std::string> header_sum(std::string header, const std::string& said) {
  const std::string before = std::string("\"") + kHeaderSum + "\":\"";
  const std::size_t at = header.find(before + said + "\"");
  if (at == std::string::npos) return std::nullopt;
  header.replace(at + before.size(), said.size(), kNoSum);
  Fingerprint sum;
  sum.add(header);
  return sum.text();
}

}  // namespace

std::string fingerprint(const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  Fingerprint sum;
  std::vector<char> buffer;
  for (const auto& [name, tensor] : tensors) {
    sum.add(name);
    sum.add(type_name(tensor.scalar_type()));
    for (const std::int64_t side : tensor.sizes()) sum.add(&side, sizeof(side));
    buffer.resize(tensor.nbytes());
    detail::copy_out(tensor, buffer.data());
    sum.add(buffer.data(), buffer.size());
  }
  return sum.text();
}

void save_state(const std::string& path, const State& given) {
  State state = given;
  state.facts["checksum"] = kNoSum;
  state.facts[kHeaderSum] = kNoSum;
  const std::string temporary = path + ".part";
  try {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    std::size_t data_bytes = 0;
    std::string header = detail::state_header(state, 0, &data_bytes);
    std::size_t at = 8 + header.size();
    Fingerprint sum;
    std::vector<char> buffer;
    for (const auto& [name, tensor] : state.tensors) {
      buffer.resize(tensor.nbytes());
      detail::copy_out(tensor, buffer.data());
      sum.add(buffer.data(), buffer.size());
      file.write(buffer.data(), buffer.size(), at);
      at += buffer.size();
    }
    state.facts["checksum"] = sum.text();
    header = detail::state_header(state, 0, &data_bytes);
    state.facts[kHeaderSum] = header_sum(header, kNoSum).value();
    header = detail::state_header(state, 0, &data_bytes);
    const std::uint64_t length = header.size();
    file.write(&length, sizeof(length), 0);
    file.write(header.data(), header.size(), 8);
    file.sync();
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "cannot be replaced", errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(path);
}

State load_state(const std::string& path) {
  const File file(path, O_RDONLY);
  const std::size_t size = file.size();
  std::uint64_t length = 0;
  if (size < sizeof(length)) throw StateError(path + ": too short for a checkpoint");
  file.read(&length, sizeof(length), 0);
  if (length == 0 || length > kMostHeader || length > size - 8) {
    throw StateError(path + ": not a whole checkpoint (its header's length is " +
                     std::to_string(length) + ")");
  }
  std::string text(length, '\0');
  file.read(text.data(), text.size(), 8);
  State state;
  try {
    const Json header = Json::parse(text);
    std::size_t next = 0;
    Fingerprint sum;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        state.facts = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      state.tensors.emplace_back(name, read_tensor(file, path, name, entry, 8 + length, &next));
      const torch::Tensor& tensor = state.tensors.back().second;
      sum.add(tensor.data_ptr(), tensor.nbytes());
    }
    if (8 + length + next != size) {
      throw StateError(path + ": has " + std::to_string(size) + " bytes, and its header tells of " +
                       std::to_string(8 + length + next));
    }
    const auto said = state.facts.find("checksum");
    if (said != state.facts.end() && said->second != sum.text()) {
      throw StateError(path + ": damaged: the sum over its bytes is " + sum.text() + ", not " +
                       said->second);
    }
    const auto of_header = state.facts.find(kHeaderSum);
    if (of_header != state.facts.end() &&
        header_sum(std::move(text), of_header->second) != of_header->second) {
      throw StateError(path + ": damaged: the sum over its header is not " + of_header->second);
    }
  } catch (const Json::exception& error) {
    throw StateError(path + ": not a checkpoint: " + error.what());
  }
  return state;
}

}  // namespace lms::train
