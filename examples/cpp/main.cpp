// Trains a small network twice, plainly and under a limit that its weights and their optimizer
// state alone exceed three times, and compares: losses and weights must be equal to the last bit.
//
//   lms_example [cpu | cuda]      by default CUDA if there is a device, else the CPU

#include <lms/torch.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kWidth = 2048;
constexpr int kLayers = 6;
constexpr int kBatch = 64;
constexpr int kSteps = 3;
constexpr double kMiB = 1024.0 * 1024.0;

struct Outcome {
  std::vector<float> losses;
  std::vector<torch::Tensor> weights;  ///< on the CPU
  std::int64_t state_bytes = 0;        ///< weights, gradients, and Adam's two moments
};

torch::nn::Sequential make_network() {
  torch::nn::Sequential network;
  for (int i = 0; i < kLayers; ++i) {
    network->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    network->push_back(torch::nn::ReLU());
  }
  return network;
}

// Knows nothing of LMS.
Outcome train(const torch::Device& device) {
  torch::manual_seed(20);
  auto network = make_network();
  const auto data = torch::randn({kBatch, kWidth}).to(device);
  const auto target = torch::randn({kBatch, kWidth}).to(device);
  network->to(device);
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(1e-4));

  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(network->forward(data), target);
    loss.backward();
    optimizer.step();
    outcome.losses.push_back(loss.item<float>());
  }
  for (const auto& weight : network->parameters()) {
    outcome.weights.push_back(weight.detach().to(torch::kCPU, /*non_blocking=*/false,
                                                 /*copy=*/true));
    outcome.state_bytes += 4 * static_cast<std::int64_t>(weight.nbytes());
  }
  return outcome;
}

bool same_bits(const Outcome& one, const Outcome& other) {
  bool same =
      one.losses.size() == other.losses.size() &&
      std::memcmp(one.losses.data(), other.losses.data(), one.losses.size() * sizeof(float)) == 0;
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    same = same && torch::equal(one.weights[i], other.weights[i]);
  }
  return same;
}

int run(const std::string& device) {
  const Outcome plain = train(torch::Device(device));

  const std::int64_t limit = plain.state_bytes / 3;
  Outcome limited;
  std::map<std::string, std::int64_t> stats;
  {
    const lms::torch::Managed lms({.device = device, .limit = limit});
    lms::torch::reset_peak_memory_stats(lms.device());
    limited = train(torch::Device(device));
    stats = lms::torch::memory_stats(lms.device());
  }

  std::cout << "device                    " << device << "\n"
            << "weights, gradients, Adam  " << static_cast<double>(plain.state_bytes) / kMiB
            << " MiB\n"
            << "limit                     " << static_cast<double>(limit) / kMiB << " MiB\n"
            << "most on the device        "
            << static_cast<double>(stats["device.bytes.peak"]) / kMiB << " MiB\n"
            << "moved out, in             " << static_cast<double>(stats["bytes_out"]) / kMiB
            << ", " << static_cast<double>(stats["bytes_in"]) / kMiB << " MiB\n"
            << "evictions, page-ins       " << stats["evictions"] << " ("
            << stats["evictions.clean"] << " clean), " << stats["page_ins"] << "\n";
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    std::cout << "loss of step " << i << "            " << std::hexfloat << plain.losses[i] << "  "
              << limited.losses[i] << std::defaultfloat << "\n";
  }

  const bool same = same_bits(plain, limited);
  const bool moved = stats["evictions"] > 0 && stats["page_ins"] > 0;
  const bool within = stats["device.bytes.peak"] <= limit;
  std::cout << (same ? "losses and weights are equal to the last bit\n"
                     : "FAILED: losses or weights differ\n")
            << (moved ? "" : "FAILED: nothing was moved\n")
            << (within ? "" : "FAILED: the limit was not kept\n");
  return same && moved && within ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : torch::cuda::is_available() ? "cuda" : "cpu");
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
