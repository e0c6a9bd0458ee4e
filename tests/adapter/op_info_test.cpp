#include "adapters/torch/operators/op_info.h"

#include <gtest/gtest.h>

#include <map>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::find_operator;
using K = c10::DispatchKey;

/// Arguments that can hold tensors, and whether the operator writes them.
std::map<std::string, bool> writes_of(const c10::OperatorHandle& op, K key = K::CPU) {
  std::map<std::string, bool> writes;
  for (const auto& argument : describe(op, key).arguments) {
    writes[op.schema().arguments()[argument.index].name()] = argument.writes;
  }
  return writes;
}

TEST(OpInfo, ReadsAndWritesAreTheSchemas) {
  using Writes = std::map<std::string, bool>;
  EXPECT_EQ(writes_of(find_operator("aten::add", "Tensor")),
            (Writes{{"self", false}, {"other", false}}));
  EXPECT_EQ(writes_of(find_operator("aten::add", "out")),
            (Writes{{"self", false}, {"other", false}, {"out", true}}));
  EXPECT_EQ(writes_of(find_operator("aten::add_", "Tensor")),
            (Writes{{"self", true}, {"other", false}}));
  EXPECT_EQ(writes_of(find_operator("aten::index_put_")),
            (Writes{{"self", true}, {"indices", false}, {"values", false}}));
}

TEST(OpInfo, RunningStatisticsAreWrittenThoughTheSchemaIsSilent) {
  const auto op = find_operator("aten::native_batch_norm");
  for (const auto& argument : op.schema().arguments()) {
    ASSERT_TRUE(argument.alias_info() == nullptr) << "the schema is silent no longer";
  }
  auto writes = writes_of(op);
  EXPECT_TRUE(writes.at("running_mean"));
  EXPECT_TRUE(writes.at("running_var"));
  EXPECT_FALSE(writes.at("input"));
  EXPECT_FALSE(writes.at("weight"));
  EXPECT_FALSE(describe(op, K::CPU).may_rerun);
}

TEST(OpInfo, OnlyPureOperatorsMayRunAgain) {
  EXPECT_TRUE(describe(find_operator("aten::mm"), K::CPU).may_rerun);
  EXPECT_TRUE(describe(find_operator("aten::convolution"), K::CUDA).may_rerun);
  EXPECT_FALSE(describe(find_operator("aten::add_", "Tensor"), K::CPU).may_rerun);
  EXPECT_FALSE(describe(find_operator("aten::mm", "out"), K::CPU).may_rerun);
  EXPECT_FALSE(describe(find_operator("aten::bernoulli"), K::CPU).may_rerun) << "it draws numbers";
  EXPECT_FALSE(describe(find_operator("aten::native_dropout"), K::CUDA).may_rerun);
}

TEST(OpInfo, CollectivesAndForeignStoragesAreKept) {
  for (const auto& [name, overload] : {std::pair{"c10d::allreduce_", ""},
                                       {"c10d::broadcast_", ""},
                                       {"_c10d_functional::all_reduce", ""},
                                       {"_c10d_functional::wait_tensor", ""},
                                       {"aten::_lazy_clone", ""}}) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    ASSERT_TRUE(op.has_value()) << name;
    EXPECT_EQ(describe(*op, K::CPU).kind, OpKind::kKeep) << name;
    EXPECT_FALSE(describe(*op, K::CPU).may_rerun) << name;
  }
  const auto add = find_operator("aten::add", "Tensor");
  for (const K key : {K::SparseCPU, K::SparseCsrCUDA, K::QuantizedCPU, K::NestedTensorCUDA}) {
    EXPECT_EQ(describe(add, key).kind, OpKind::kKeep) << c10::toString(key);
  }
  EXPECT_EQ(describe(add, K::CPU).kind, OpKind::kPlain);
  EXPECT_EQ(describe(add, K::CUDA).kind, OpKind::kPlain);
}

TEST(OpInfo, ListsAreSplitWhereTheirKernelTakesThemWhole) {
  for (const char* overload : {"List", "Scalar", "ScalarList"}) {
    const auto op = find_operator("aten::_foreach_add", overload);
    EXPECT_EQ(describe(op, K::CUDA).kind, OpKind::kList) << overload;
    // On the CPU they are loops over operators, each hooked by itself.
    EXPECT_EQ(describe(op, K::CPU).kind, OpKind::kTransparent) << overload;
  }
  for (const char* name : {"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_",
                           "aten::_fused_adagrad_"}) {
    EXPECT_EQ(describe(find_operator(name), K::CPU).kind, OpKind::kList) << name;
    EXPECT_EQ(describe(find_operator(name), K::CUDA).kind, OpKind::kList) << name;
  }
}

TEST(OpInfo, StreamsAndOperatorsWithoutTensors) {
  EXPECT_TRUE(describe(find_operator("aten::record_stream"), K::CUDA).takes_stream);
  EXPECT_FALSE(describe(find_operator("aten::mm"), K::CUDA).takes_stream);
  EXPECT_TRUE(describe(find_operator("aten::empty", "memory_format"), K::CPU).arguments.empty());
}

}  // namespace
}  // namespace lms::torch
