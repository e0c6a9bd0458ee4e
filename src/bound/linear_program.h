#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace lms {

/// "No limit", of columns and rows.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// A linear program: minimise the sum of cost times value over the columns, within the limits of
/// columns and rows.
struct LinearProgram {
  using Column = std::int32_t;
  using Term = std::pair<Column, double>;

  /// A new variable.
  Column column(double cost, double least, double most) {
    costs.push_back(cost);
    column_least.push_back(least);
    column_most.push_back(most);
    return static_cast<Column>(costs.size() - 1);
  }
  /// least <= sum of factor times variable <= most.
  void row(double least, double most, const std::vector<Term>& terms) {
    row_least.push_back(least);
    row_most.push_back(most);
    for (const auto& [column, factor] : terms) {
      columns.push_back(column);
      factors.push_back(factor);
    }
    row_begin.push_back(static_cast<std::int32_t>(columns.size()));
  }

  std::vector<double> costs, column_least, column_most;
  std::vector<double> row_least, row_most;
  std::vector<std::int32_t> row_begin = {0};  ///< of row i: terms [row_begin[i], row_begin[i + 1])
  std::vector<Column> columns;                ///< of all terms
  std::vector<double> factors;
};

/// The least value, or nothing if no values keep to the limits. Solved with HiGHS, whose library is
/// loaded at the first call: the file that the environment variable LMS_HIGHS names, else the
/// system's, else the one that was there when LMS was built. Throws Error if there is none, or if
/// it fails. Thread-safe.
std::optional<double> minimum(const LinearProgram& program);

}  // namespace lms
