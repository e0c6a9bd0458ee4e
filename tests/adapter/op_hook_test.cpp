#include "adapters/torch/hook/op_hook.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_reshape_alias.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

bool is_wrapped(const c10::OperatorHandle& op) {
  return op.dumpState().find("LMS (Large Model Support)") != std::string::npos;
}

/// At the key of ordinary CPU tensors.
bool is_wrapped_for_cpu(const c10::OperatorHandle& op) {
  const std::string table = "\n" + op.dumpComputedTable();
  const std::size_t line = table.find("\nCPU: ");
  if (line == std::string::npos) return false;
  const std::size_t end = table.find('\n', line + 1);
  return table.substr(line, end - line).find("LMS (Large Model Support)") != std::string::npos;
}

TEST(OpHook, WrapsAndUnwraps) {
  const auto mm = find_operator("aten::mm");
  const auto own = find_operator("lms::stats");
  ASSERT_FALSE(is_wrapped(mm));
  const std::string before = mm.dumpComputedTable();
  {
    const OpHook hook(c10::DeviceType::CPU);
    EXPECT_GT(hook.wrapped(), 1000U);
    EXPECT_TRUE(is_wrapped_for_cpu(mm));
    EXPECT_FALSE(is_wrapped(own));
    EXPECT_NE(mm.dumpComputedTable(), before);
  }
  EXPECT_FALSE(is_wrapped(mm));
  EXPECT_EQ(mm.dumpComputedTable(), before);
}

std::vector<std::string> some_results() {
  const at::Tensor a = numbers(64 * 64, 0.1).view({64, 64});
  const at::Tensor b = a.mm(a.t()).softmax(0);
  const at::Tensor c = b.cumsum(1).index_select(0, b.argmax(1));
  return {bytes_of(a), bytes_of(b), bytes_of(c)};
}

TEST(OpHook, ChangesNoResult) {
  const auto expected = some_results();
  {
    const ManagedCpu managed(kMiB, /*stress=*/true);
    EXPECT_EQ(some_results(), expected);
    EXPECT_GT(managed.count("evictions"), 3);
    EXPECT_GT(managed.count("page_ins"), 3);
  }
  EXPECT_EQ(some_results(), expected);
}

using Views = std::map<std::string, std::function<std::vector<at::Tensor>(const at::Tensor&)>>;

/// Every operator that is left alone because it looks at no byte, called on a 4 × 6 matrix.
const Views& views() {
  static const auto one = [](auto call) {
    return [call](const at::Tensor& x) { return std::vector<at::Tensor>{call(x)}; };
  };
  static const Views views = {
      {"aten::_conj", one([](const at::Tensor& x) {
         return at::_conj(at::view_as_complex(x.view({4, 3, 2})));
       })},
      {"aten::_neg_view", one([](const at::Tensor& x) { return at::_neg_view(x); })},
      {"aten::_reshape_alias",
       one([](const at::Tensor& x) { return at::_reshape_alias(x, {24}, {1}); })},
      {"aten::_unsafe_view", one([](const at::Tensor& x) { return at::_unsafe_view(x, {24}); })},
      {"aten::alias", one([](const at::Tensor& x) { return at::alias(x); })},
      {"aten::as_strided", one([](const at::Tensor& x) {
         return x.as_strided({3, 3}, {2, 1}, 5);
       })},
      {"aten::detach", one([](const at::Tensor& x) { return x.detach(); })},
      {"aten::diagonal", one([](const at::Tensor& x) { return x.diagonal(); })},
      {"aten::expand", one([](const at::Tensor& x) {
         return x.expand({5, 4, 6});
       })},
      {"aten::permute", one([](const at::Tensor& x) {
         return x.permute({1, 0});
       })},
      {"aten::select.int", one([](const at::Tensor& x) { return x.select(0, 2); })},
      {"aten::slice.Tensor", one([](const at::Tensor& x) { return x.slice(0, 1, 3); })},
      {"aten::split.Tensor", [](const at::Tensor& x) { return x.split(2); }},
      {"aten::split_with_sizes",
       [](const at::Tensor& x) {
         return x.split_with_sizes({1, 3});
       }},
      {"aten::squeeze", one([](const at::Tensor& x) { return x.squeeze(); })},
      {"aten::squeeze.dim", one([](const at::Tensor& x) { return x.squeeze(0); })},
      {"aten::squeeze.dims", one([](const at::Tensor& x) {
         return x.squeeze({0, 1});
       })},
      {"aten::t", one([](const at::Tensor& x) { return x.t(); })},
      {"aten::transpose.int", one([](const at::Tensor& x) { return x.transpose(0, 1); })},
      {"aten::unbind.int", [](const at::Tensor& x) { return x.unbind(); }},
      {"aten::unfold", one([](const at::Tensor& x) { return x.unfold(1, 2, 2); })},
      {"aten::unsafe_split.Tensor", [](const at::Tensor& x) { return x.unsafe_split(2); }},
      {"aten::unsafe_split_with_sizes",
       [](const at::Tensor& x) {
         return x.unsafe_split_with_sizes({1, 3});
       }},
      {"aten::unsqueeze", one([](const at::Tensor& x) { return x.unsqueeze(1); })},
      {"aten::view", one([](const at::Tensor& x) {
         return x.view({2, 12});
       })},
      {"aten::view.dtype", one([](const at::Tensor& x) { return x.view(at::kInt); })},
      {"aten::view_as_complex", one([](const at::Tensor& x) {
         return at::view_as_complex(x.view({4, 3, 2}));
       })},
      {"aten::view_as_real", one([](const at::Tensor& x) {
         return at::view_as_real(at::view_as_complex(x.view({4, 3, 2})));
       })},
  };
  return views;
}

TEST(OpHook, LeavesViewsAlone) {
  std::vector<std::string> left_alone;
  const OpHook hook(c10::DeviceType::CPU);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const bool aliases = std::ranges::any_of(op->schema().returns(), [](const auto& result) {
      return result.alias_info() != nullptr && !result.alias_info()->isWrite();
    });
    if (views().contains(c10::toString(name))) {
      EXPECT_FALSE(is_wrapped_for_cpu(*op)) << name;
    } else if (aliases && !is_wrapped_for_cpu(*op)) {
      left_alone.push_back(c10::toString(name));
    }
  }
  // Composites, whose parts are operators of their own, are no concern of the hook's.
  for (const auto& name : left_alone) {
    const auto op = *c10::Dispatcher::singleton().findSchema(
        {name.substr(0, name.find('.')),
         name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1)});
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) << name;
  }
}

TEST(OpHook, ViewsLookAtNoByte) {
  for (const auto& [name, view] : views()) {
    // Whoever looked for bytes there would end the process.
    const std::int64_t bytes = 24 * sizeof(float);
    const auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::kCPU), nullptr,
        /*resizable=*/false);
    const at::Tensor nowhere = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        caffe2::TypeMeta::Make<float>());
    nowhere.unsafeGetTensorImpl()->set_sizes_contiguous({4, 6});
    const auto results = view(nowhere);
    EXPECT_FALSE(results.empty()) << name;
    for (const at::Tensor& result : results) {
      EXPECT_TRUE(result.is_alias_of(nowhere)) << name;
    }
  }
}

TEST(OpHook, ViewsBringNothingBack) {
  ManagedCpu managed(kMiB);
  const at::Tensor x = numbers(64 * 64, 0.3);
  const std::string expected = bytes_of(x);
  ASSERT_GE(managed.reclaim(), static_cast<Bytes>(x.nbytes()));
  const std::int64_t before = managed.count("page_ins");
  const at::Tensor rows = x.view({64, 64}).t().unsqueeze(0).expand({3, 64, 64});
  EXPECT_EQ(managed.count("page_ins"), before);
  EXPECT_EQ(bytes_of(rows[2].t().reshape({-1})), expected);
  EXPECT_GT(managed.count("page_ins"), before);
}

TEST(OpHook, TensorsLikeOthersBringNothingBack) {
  ManagedCpu managed(kMiB);
  const at::Tensor x = numbers(64 * 64, 0.3);
  ASSERT_GE(managed.reclaim(), static_cast<Bytes>(x.nbytes()));
  const std::int64_t before = managed.count("page_ins");
  const std::map<std::string, at::Tensor> made = {
      {"empty_like", at::empty_like(x)},
      {"full_like", at::full_like(x, 3)},
      {"new_empty", x.new_empty({64, 64})},
      {"new_empty_strided", x.new_empty_strided({64, 64}, {1, 64})},
      {"new_full", x.new_full({64, 64}, 3)},
      {"new_ones", x.new_ones({64, 64})},
      {"new_zeros", x.new_zeros({64, 64})},
      {"ones_like", at::ones_like(x)},
      {"rand_like", at::rand_like(x)},
      {"randn_like", at::randn_like(x)},
      {"zeros_like", at::zeros_like(x)},
  };
  EXPECT_EQ(managed.count("page_ins"), before);
  for (const auto& [name, tensor] : made) {
    EXPECT_EQ(tensor.numel(), x.numel()) << name;
    EXPECT_EQ(tensor.scalar_type(), x.scalar_type()) << name;
  }
  // They leave like any other tensor, but for the three that nobody has filled.
  EXPECT_EQ(managed.reclaim(), static_cast<Bytes>((made.size() - 3) * x.nbytes()));
  EXPECT_TRUE(at::equal(made.at("zeros_like"), at::zeros({64 * 64})));
  EXPECT_TRUE(at::equal(made.at("new_full"), at::full({64, 64}, 3.F)));
}

at::Tensor twice(const at::Tensor& x) {
  // Raw, as a kernel reads it: LMS must have brought the bytes.
  at::Tensor result = at::empty(x.sizes(), x.options());
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    result.mutable_data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  }
  return result;
}

TEST(OpHook, OperatorsRegisteredLaterAreWrapped) {
  ManagedCpu managed(kMiB);
  at::Tensor x = numbers(4096, 0.2);
  ::torch::Library library(::torch::Library::FRAGMENT, "lms_adapter_test", std::nullopt, __FILE__,
                           __LINE__);
  library.def("twice(Tensor x) -> Tensor");
  ::torch::Library kernels(::torch::Library::IMPL, "lms_adapter_test", c10::DispatchKey::CPU,
                           __FILE__, __LINE__);
  kernels.impl("twice", &twice);
  const auto op = find_operator("lms_adapter_test::twice");
  const std::string expected = bytes_of(x.mul(2));
  EXPECT_TRUE(is_wrapped(op)) << "another operator has run since";
  EXPECT_GT(managed.reclaim(), 0);
  const auto before = managed.count("page_ins");
  EXPECT_EQ(bytes_of(testing::call(op, {x}).front().toTensor()), expected);
  EXPECT_EQ(managed.count("page_ins"), before + 1);
}

}  // namespace
}  // namespace lms::torch
