#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <numeric>
#include <string>
#include <vector>

namespace lms::bench {

/// CPU time of the calling thread, in nanoseconds. What other threads do is not in it.
inline double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// CPU time per operator in one way of running a loop; a sample is of a step, or of half a step.
struct Cost {
  std::string loop;             ///< what the operators do
  std::string mode;             ///< how they are run
  std::string base;             ///< the mode beside which planning is what is added; "": none
  std::vector<double> samples;  ///< nanoseconds
  double moves = 0;             ///< blocks that leave or come, per operator

  [[nodiscard]] double mean() const {
    return std::accumulate(samples.begin(), samples.end(), 0.0) /
           static_cast<double>(samples.size());
  }
  [[nodiscard]] double median() const {
    auto sorted = samples;
    std::ranges::sort(sorted);
    const std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }
};

/// Appends the costs of the pilot and the engine alone, on a simulated device. Throws Error if the
/// pilot does not do what is to be measured.
void pilot_costs(int samples, std::vector<Cost>& costs);

/// Appends the costs of operators of PyTorch on `device`, plain and under LMS. `bytes`: of each
/// tensor. LMS must be off, and is afterwards, unless it throws: like pilot_costs().
void operator_costs(const std::string& device, std::int64_t bytes, int samples,
                    std::vector<Cost>& costs);

}  // namespace lms::bench
