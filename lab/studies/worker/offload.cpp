#include "lab/studies/worker/offload.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>

namespace lms::studies {
namespace {

std::atomic<bool> active{false};
std::atomic<std::int64_t> budget{0};
std::atomic<std::int64_t> to_host{0};
std::atomic<std::int64_t> to_device{0};
std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> peak{0};

/// Bytes of the host that are taken as long as this lives.
class Taken {
 public:
  explicit Taken(const at::Tensor& tensor) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    // PyTorch pins powers of two.
    bytes_ = tensor.is_cuda()
                 ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)))
                 : bytes;
    const std::int64_t now = live += bytes_;
    if (now > budget) {
      live -= bytes_;
      throw HostFull("save_on_cpu: " + std::to_string(now) + " bytes of the host are wanted, " +
                     std::to_string(budget.load()) + " may be used");
    }
    std::int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
  ~Taken() { live -= bytes_; }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

 private:
  std::int64_t bytes_ = 0;
};

class OnHost : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    taken_.emplace(tensor);
    device_ = tensor.device();
    // In the same layout: kernels add in another order where it changes.
    host_ =
        at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(tensor.is_cuda()),
                       at::MemoryFormat::Preserve);
    host_.copy_(tensor);
    to_host += static_cast<std::int64_t>(host_.nbytes());
  }

  at::Tensor call_unpack_hook() override {
    to_device += static_cast<std::int64_t>(host_.nbytes());
    return host_.to(device_, host_.scalar_type(), /*non_blocking=*/true, /*copy=*/true);
  }

 private:
  std::optional<Taken> taken_;
  at::Device device_{at::kCPU};
  at::Tensor host_;
};

class OffloadEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!active) return nullptr;
    return std::make_unique<OnHost>();
  }

  static Engine& get() {
    // Its threads run until the process ends.
    static auto* engine = new OffloadEngine();
    return *engine;
  }
};

}  // namespace

OffloadCounts offload_counts() { return {to_host, to_device, live, peak}; }

OffloadScope::OffloadScope(std::int64_t host_budget) {
  static const bool replaced = [] {
    torch::autograd::set_default_engine_stub(&OffloadEngine::get);
    return true;
  }();
  (void)replaced;
  budget = host_budget;
  active = true;
}

OffloadScope::~OffloadScope() { active = false; }

}  // namespace lms::studies
