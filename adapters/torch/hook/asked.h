#pragma once

#include <optional>
#include <utility>

namespace lms::torch {

/// A question that is answered once.
template <typename Question>
class Asked {
 public:
  explicit Asked(Question question) : question_(std::move(question)) {}
  bool operator()() {
    if (!answer_) answer_ = question_();
    return *answer_;
  }

 private:
  Question question_;
  std::optional<bool> answer_;
};

}  // namespace lms::torch
