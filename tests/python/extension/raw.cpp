// An extension as others write them: functions and a class that work through data_ptr(), seen by no
// dispatcher. Of CUDA tensors by the runtime that PyTorch has loaded, on the current stream.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#ifdef LMS_TEST_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.nbytes() == from.nbytes() && to.is_contiguous() && from.is_contiguous());
#ifdef LMS_TEST_CUDA
  if (to.is_cuda()) {
    const auto error = cudaMemcpyAsync(to.data_ptr(), from.data_ptr(), to.nbytes(),
                                       cudaMemcpyDefault, c10::cuda::getCurrentCUDAStream());
    TORCH_CHECK(error == cudaSuccess, cudaGetErrorString(error));
    return;
  }
#endif
  std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
}

at::Tensor duplicate(const at::Tensor& tensor) {
  const at::Tensor made = at::empty_like(tensor);
  copy_bytes(made, tensor);
  return made;
}

/// As multi-tensor optimizers are called: lists of lists.
void copy_all(const std::vector<std::vector<at::Tensor>>& lists) {
  for (std::size_t i = 0; i < lists.at(0).size(); ++i) copy_bytes(lists[0][i], lists[1][i]);
}

/// Its backward pass, too, uses addresses: of its input, and of a tensor of its own.
struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor) {
    at::Tensor mine;
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      mine = duplicate(tensor);
    }
    context->save_for_backward({tensor, mine});
    return duplicate(tensor);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list /*gradients*/) {
    const auto saved = context->get_saved_variables();
    return {duplicate(saved[0])};
  }
};

/// The gradient of `tensor` is `tensor`.
at::Tensor twice(const at::Tensor& tensor) { return Twice::apply(tensor).view(-1); }

/// From nothing: written through an address that nobody asks for in sight.
at::Tensor counted(std::int64_t size, const std::string& device) {
  const at::Tensor made = at::zeros({size}, at::device(device).dtype(at::kFloat));
  const at::Tensor also = at::ones({size}, made.options());  // another operator ends in between
  copy_bytes(made, at::arange(size, made.options()) + also);
  return made;
}

void fails(const at::Tensor& /*tensor*/) { throw std::invalid_argument("as it should"); }

class Holder {
 public:
  explicit Holder(const at::Tensor& tensor) : held_(duplicate(tensor)) {}
  void write(const at::Tensor& to) const { copy_bytes(to, held_); }
  static at::Tensor twin(const at::Tensor& tensor) { return duplicate(tensor); }

 private:
  at::Tensor held_;
};

/// Keeps the caller's tensor itself.
class Window {
 public:
  explicit Window(at::Tensor tensor) : held_(std::move(tensor)) {}
  [[nodiscard]] at::Tensor read() const { return duplicate(held_); }
  void fill() const { copy_bytes(held_, at::full_like(held_, 3)); }

 private:
  at::Tensor held_;
};

/// Python may override what it calls.
class Virtual {
 public:
  virtual ~Virtual() = default;
  virtual at::Tensor run(const at::Tensor& tensor) { return duplicate(tensor); }
  at::Tensor call(const at::Tensor& tensor) { return run(tensor); }
};
class Overridden : public Virtual {
 public:
  using Virtual::Virtual;
  at::Tensor run(const at::Tensor& tensor) override {
    PYBIND11_OVERRIDE(at::Tensor, Virtual, run, tensor);
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("copy", &copy_bytes, pybind11::arg("to"), pybind11::arg("source"));
  module.def("duplicate", &duplicate);
  module.def("copy_all", &copy_all);
  module.def("twice", &twice);
  module.def("counted", &counted, pybind11::arg("size"), pybind11::arg("device") = "cpu");
  module.def("fails", &fails);
  module.def("answer", [] { return 42; });
  pybind11::class_<Holder>(module, "Holder")
      .def(pybind11::init<const at::Tensor&>())
      .def("write", &Holder::write)
      .def_static("twin", &Holder::twin);
  pybind11::class_<Window>(module, "Window")
      .def(pybind11::init<at::Tensor>())
      .def("read", &Window::read)
      .def("fill", &Window::fill);
  pybind11::class_<Virtual, Overridden>(module, "Virtual")
      .def(pybind11::init<>())
      .def("run", &Virtual::run)
      .def("call", &Virtual::call);
  module.def_submodule("inner").def("duplicate", &duplicate);
}

#define LMS_TEST_LIBRARY(name, module) TORCH_LIBRARY(name, module)
LMS_TEST_LIBRARY(TORCH_EXTENSION_NAME, library) {
  // Composite: PyTorch takes it for a function of its own operators.
  library.def("twice", &twice);
}
