#include "lab/train/event_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace lms::train {
namespace {

// Field numbers of tensorflow.Event, Summary, Summary.Value and SessionLog.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kStatus = 1;
constexpr std::uint64_t kStart = 1;

template <typename T>
void put_bytes(std::string& to, T value) {
  std::array<char, sizeof(T)> bytes = {};
  std::memcpy(bytes.data(), &value, sizeof(T));
  to.append(bytes.data(), bytes.size());
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

void put_key(std::string& to, int field, unsigned wire) {
  put_varint(to, static_cast<std::uint64_t>(field) << 3 | wire);
}

void put_count(std::string& to, int field, std::uint64_t value) {
  put_key(to, field, 0);
  put_varint(to, value);
}

void put_text(std::string& to, int field, std::string_view text) {
  put_key(to, field, 2);
  put_varint(to, text.size());
  to.append(text);
}

std::string event_of(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, kWallTime, 1);
  put_bytes(event, wall_time);
  put_count(event, kStep, static_cast<std::uint64_t>(step));
  return event;
}

std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table = {};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0x82f63b78U : 0U);
    table[i] = value;
  }
  return table;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> remainders = make_table();
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ remainders[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

EventFile::EventFile(const std::string& path, double wall_time, std::int64_t restart_step)
    : path_(path), file_(std::fopen(path.c_str(), "ab")) {
  if (!file_) throw Error(path + ": cannot be written: " + std::strerror(errno));
  std::string event;
  put_key(event, kWallTime, 1);
  put_bytes(event, wall_time);
  put_text(event, kFileVersion, "brain.Event:2");
  record(event);
  if (restart_step >= 0) {
    std::string log;
    put_count(log, kStatus, kStart);
    std::string start = event_of(wall_time, restart_step);
    put_text(start, kSessionLog, log);
    record(start);
  }
  flush();
}

void EventFile::scalars(std::int64_t step, double wall_time,
                        const std::vector<std::pair<std::string, float>>& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_text(value, kTag, tag);
    put_key(value, kSimpleValue, 5);
    put_bytes(value, number);
    put_text(summary, kSummaryValue, value);
  }
  std::string event = event_of(wall_time, step);
  put_text(event, kSummary, summary);
  record(event);
}

void EventFile::record(const std::string& event) {
  std::string head;
  put_bytes(head, static_cast<std::uint64_t>(event.size()));
  std::string bytes = head;
  put_bytes(bytes, masked_crc32c(head));
  bytes += event;
  put_bytes(bytes, masked_crc32c(event));
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    throw Error(path_ + ": cannot be written: " + std::strerror(errno));
  }
}

void EventFile::flush() {
  if (std::fflush(file_.get()) != 0) {
    throw Error(path_ + ": cannot be written: " + std::strerror(errno));
  }
}

}  // namespace lms::train
