// lms_pipeline_rate DATA CROP BATCH SECONDS WORKERS...: samples per second that the input pipeline
// makes with the studies' augmentations, for each number of workers, when nobody keeps it waiting.
//
//   lms_pipeline_rate 'camvid:data/camvid?repeat=100' 360 16 10 1 2 4 8 16

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "lab/datasets/augment.h"
#include "lab/datasets/loader.h"
#include "lab/datasets/open.h"
#include "lab/datasets/wrap.h"

namespace {

using namespace lms::data;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// All that the studies use, edges too.
std::vector<Transform> transforms_for(const Dataset& dataset, std::int64_t crop) {
  const Sample first = dataset.get(0, 0);
  if (first.input.shape.size() == 4) {
    return {random_crop3d({crop, crop, crop}, {.rotation = 10, .scale = 0.1, .warp = 2}),
            random_axes3d(), random_flip3d(), random_intensity3d(0.1, 0.1)};
  }
  std::vector<Transform> all = {random_scale_crop(0.5, 2, crop, crop), random_flip()};
  if (first.input.shape[0] == 3) {
    all.push_back(color_jitter(0.25, 0.25, 0.25, 0.25));
    all.push_back(random_blur(0.15, 1.3, 0.5));
    all.push_back(normalize({kImageNetMean.begin(), kImageNetMean.end()},
                            {kImageNetDeviation.begin(), kImageNetDeviation.end()}));
  }
  if (first.target.shape.size() == 2) all.push_back(label_edges(dataset.classes()));
  return all;
}

void measure(const DatasetPtr& data, std::size_t batch, double seconds, std::size_t workers) {
  Loader loader(data, {.batch = batch, .workers = workers, .ahead = 4});
  (void)loader.next();
  const Clock::time_point begin = Clock::now();
  const LoaderStatistics before = loader.statistics();
  std::size_t samples = 0;
  while (seconds_since(begin) < seconds) samples += loader.next()->names.size();
  const double elapsed = seconds_since(begin);
  const LoaderStatistics after = loader.statistics();
  const auto count = static_cast<double>(samples);
  std::printf("| %zu | %.1f | %.1f | %.0f %% |\n", workers, count / elapsed,
              1000 * (after.seconds_in_workers - before.seconds_in_workers) / count,
              100 * (after.seconds_in_workers - before.seconds_in_workers) /
                  (elapsed * static_cast<double>(workers)));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "lms_pipeline_rate DATA CROP BATCH SECONDS WORKERS...\n");
    return 2;
  }
  try {
    const std::int64_t crop = std::max(1, std::atoi(argv[2]));
    const auto batch = static_cast<std::size_t>(std::max(1, std::atoi(argv[3])));
    const double seconds = std::atof(argv[4]);
    const DatasetPtr base = open_dataset(std::string(argv[1]));
    const DatasetPtr data = transformed(base, transforms_for(*base, crop));
    std::printf("| workers | samples/s | ms a sample and worker | workers busy |\n");
    std::printf("| ---: | ---: | ---: | ---: |\n");
    for (int i = 5; i < argc; ++i) {
      measure(data, batch, seconds, static_cast<std::size_t>(std::max(1, std::atoi(argv[i]))));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
