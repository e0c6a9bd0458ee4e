// A convolution on CUDA without a GPU that wants a workspace, as cuDNN's do: its sizes, in the
// order in which its algorithms are tried. Which of them has run is remembered.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

std::vector<std::int64_t> sizes;
std::size_t first = 0;
int calls = 0;

at::Tensor convolve(const at::Tensor& x, const at::Tensor& /*weight*/, c10::SymIntArrayRef /*of*/,
                    const std::optional<at::Tensor>& /*bias*/, c10::SymIntArrayRef /*stride*/,
                    c10::SymIntArrayRef /*padding*/, c10::SymIntArrayRef /*dilation*/) {
  ++calls;
  for (; first < sizes.size(); ++first) {
    try {
      const at::Tensor workspace = at::empty({sizes[first]}, x.options().dtype(at::kByte));
      return x.clone();
    } catch (const c10::OutOfMemoryError&) {
      continue;
    }
  }
  TORCH_CHECK(false, "no algorithm was found");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("conv_depthwise3d", &convolve); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("wants", [](std::vector<std::int64_t> wanted) {
    sizes = std::move(wanted);
    first = 0;
  });
  module.def(
      "calls", [] { return std::exchange(calls, 0); }, "since the last time");
  module.def("algorithm", [] { return first; });
}
