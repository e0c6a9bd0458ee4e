#include "trace/trace_io.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "trace/gz_file.h"

namespace lms {
namespace {

class TraceIo : public ::testing::Test {
 protected:
  TraceIo() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("lms-" + std::string(test->name()) + "-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~TraceIo() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  /// The message with which loading `text` fails.
  std::string failure(const std::string& text) {
    write_gz_file(path("bad.json"), text);
    try {
      (void)load_trace(path("bad.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "loaded";
  }
  void expect_failure(const std::string& text, const std::string& part) {
    const std::string message = failure(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("bad.json"), std::string::npos) << message;
  }

  std::filesystem::path folder_;
};

void expect_equal(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.version, b.version);
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    EXPECT_EQ(a.blocks[i].bytes, b.blocks[i].bytes);
    EXPECT_EQ(a.blocks[i].born_in_step, b.blocks[i].born_in_step);
    EXPECT_EQ(a.blocks[i].movable, b.blocks[i].movable);
    EXPECT_EQ(a.blocks[i].carried_from, b.blocks[i].carried_from);
  }
  ASSERT_EQ(a.operators.size(), b.operators.size());
  for (std::size_t i = 0; i < a.operators.size(); ++i) {
    const TraceOperator& x = a.operators[i];
    const TraceOperator& y = b.operators[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.reads, y.reads);
    EXPECT_EQ(x.writes, y.writes);
    EXPECT_EQ(x.allocs, y.allocs);
    EXPECT_EQ(x.frees, y.frees);
    EXPECT_EQ(x.ms, y.ms);
    EXPECT_EQ(x.workspace, y.workspace);
    EXPECT_EQ(x.repeatable, y.repeatable);
    EXPECT_EQ(x.spared, y.spared);
    EXPECT_EQ(x.replay_ms, y.replay_ms);
    EXPECT_EQ(x.replay_reads, y.replay_reads);
    ASSERT_EQ(x.temporaries.size(), y.temporaries.size());
    for (std::size_t k = 0; k < x.temporaries.size(); ++k) {
      EXPECT_EQ(x.temporaries[k].bytes, y.temporaries[k].bytes);
      EXPECT_EQ(x.temporaries[k].begin, y.temporaries[k].begin);
      EXPECT_EQ(x.temporaries[k].end, y.temporaries[k].end);
    }
  }
}

Trace step_with_everything() {
  TraceBuilder builder;
  const auto weight = builder.existing(Bytes{5} << 40U);
  const auto batch = builder.existing(7);
  const auto ahead = builder.existing(9);
  builder.unmovable(batch);
  builder.run("aten::conv \"2d\"\n", {weight, batch}, {}, 1.0 / 3, 12);
  builder.repeatable();
  const auto fresh = builder.result(9);
  builder.temporary(5, 1, 2);
  builder.temporary(12, 2, 3);
  builder.run("aten::sgd", {fresh}, {weight}, 1e-9);
  builder.repeatable(1e-10);
  builder.reads_again({batch, weight});
  builder.spared(weight);
  builder.dies(ahead);
  builder.carried(ahead, fresh);
  return builder.build();
}

TEST_F(TraceIo, GivesBackAnEqualTrace) {
  const Trace trace = step_with_everything();
  for (const char* name : {"step.json", "step.json.gz"}) {
    save_trace(trace, path(name));
    expect_equal(load_trace(path(name)), trace);
  }
  save_trace(Trace{}, path("step.json"));
  expect_equal(load_trace(path("step.json")), Trace{});
}

TEST_F(TraceIo, PacksOnlyWhenAsked) {
  save_trace(step_with_everything(), path("plain.json"));
  save_trace(step_with_everything(), path("packed.json.gz"));
  const auto first_byte = [&](const char* name) {
    std::FILE* file = std::fopen(path(name).c_str(), "rb");
    const int byte = std::fgetc(file);
    std::fclose(file);
    return byte;
  };
  EXPECT_EQ(first_byte("plain.json"), '{');
  EXPECT_EQ(first_byte("packed.json.gz"), 0x1f);
}

RC_GTEST_FIXTURE_PROP(TraceIo, TimesSurviveToTheLastBit, ()) {
  Trace trace = step_with_everything();
  trace.operators[0].ms = *rc::gen::suchThat(
      rc::gen::arbitrary<double>(), [](double ms) { return std::isfinite(ms) && ms >= 0; });
  save_trace(trace, path("step.json"));
  RC_ASSERT(load_trace(path("step.json")).operators[0].ms == trace.operators[0].ms);
}

TEST_F(TraceIo, SaysWhatIsWrongWithAFile) {
  EXPECT_THROW(load_trace(path("missing.json")), Error);
  expect_failure("", "no JSON");
  expect_failure("{\"a\":1}", "no trace of LMS");
  expect_failure("[]", "no trace of LMS");
  const std::string head = R"({"format":"lms-trace","version":)";
  expect_failure(head + "1}", "its version is 1, this LMS reads versions 2 to 3");
  expect_failure(head + "3}", "\"names\" is missing");
  expect_failure(head + R"("2"})", "something else than an integer");
  const std::string lists = head + R"(3,"names":["op"],"blocks":)";
  expect_failure(lists + "3}", "\"blocks\" is no list");
  expect_failure(lists + "[[1,0,1]]}", "block 0 has 3 fields, not 4");
  expect_failure(lists + "[[1,0,2,-1]]}", "block 0 holds a flag that is neither 0 nor 1");
  expect_failure(lists + "[[1.5,0,1,-1]]}", "block 0 holds something else than an integer");
  expect_failure(lists + "[[18446744073709551615,0,1,-1]]}", "out of range");
  const std::string one = lists + R"([[1,0,1,-1]],"operators":)";
  expect_failure(one + "[[1,0,0,0,[],[],[],[],[],[],-1]]}", "operator 0 has no name");
  expect_failure(one + "[[0,0,0,0,[-1],[],[],[],[],[],-1]]}",
                 "operator 0 holds an integer out of range");
  expect_failure(one + "[[0,0,0,0,[],[],[],[],[[1,0]],[],-1]]}", "operator 0 has 2 fields, not 3");
  expect_failure(one + R"([[0,"x",0,0,[],[],[],[],[],[],-1]]})", "operator 0 holds no time");
  expect_failure(one + R"([[0,0,0,0,[],[],[],[],[],[],"x"]]})",
                 "operator 0 holds no time to run it again");
  expect_failure(one + "[[0,0,0,0,[4],[],[],[],[],[],-1]]}", "names the unknown block 4");
  expect_failure(one + "[[0,0,0,0,[0],[],[],[],[],[0],-1]]}", "spares the unwritten block 0");
  expect_failure(one + "[[0,0,0,0,[0],[],[],[],[]]]}", "operator 0 has 9 fields, not 11");
  EXPECT_EQ(failure(one + "[[0,0,0,0,[0],[],[],[],[],[],-1]]}"), "loaded");
}

TEST_F(TraceIo, LoadsTheVersionBeforeReplays) {
  write_gz_file(path("old.json"), R"({"format":"lms-trace","version":2,"names":["op"],)"
                                  R"("blocks":[[7,0,1,-1]],)"
                                  R"("operators":[[0,2.5,3,1,[0],[0],[],[],[]]]})");
  const Trace trace = load_trace(path("old.json"));
  EXPECT_EQ(trace.version, kTraceVersion);
  ASSERT_EQ(trace.operators.size(), 1U);
  EXPECT_EQ(trace.operators[0].writes, std::vector<TraceBlockId>{0});
  EXPECT_TRUE(trace.operators[0].repeatable);
  EXPECT_TRUE(trace.operators[0].spared.empty());
  EXPECT_EQ(trace.operators[0].again_ms(), 2.5);
  EXPECT_NE(failure(R"({"format":"lms-trace","version":2,"names":["op"],"blocks":[[7,0,1,-1]],)"
                    R"("operators":[[0,2.5,3,1,[0],[0],[],[],[],[],-1]]})")
                .find("operator 0 has 11 fields, not 9"),
            std::string::npos);
}

TEST_F(TraceIo, NoticesWhatIsCutOff) {
  save_trace(step_with_everything(), path("whole.json.gz"));
  const auto size = std::filesystem::file_size(path("whole.json.gz"));
  for (const auto left : {size - 1, size / 2}) {
    std::filesystem::copy_file(path("whole.json.gz"), path("cut.json.gz"),
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path("cut.json.gz"), left);
    EXPECT_THROW(load_trace(path("cut.json.gz")), Error) << left;
  }
  save_trace(step_with_everything(), path("whole.json"));
  std::filesystem::resize_file(path("whole.json"),
                               std::filesystem::file_size(path("whole.json")) / 2);
  EXPECT_THROW(load_trace(path("whole.json")), Error);
}

TEST_F(TraceIo, SaysWhereItCannotWrite) {
  try {
    save_trace(Trace{}, path("no/such/folder.json"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no/such/folder.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace lms
