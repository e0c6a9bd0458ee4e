#include "lab/datasets/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "lab/datasets/augment.h"
#include "lab/datasets/open.h"
#include "lab/datasets/random.h"
#include "lab/datasets/wrap.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::error_of;
using std::chrono::microseconds;

/// Samples that tell index and seed, after a delay that differs from sample to sample.
class Slow : public Dataset {
 public:
  explicit Slow(std::size_t size, int most_delay = 0) : size_(size), most_delay_(most_delay) {}

  [[nodiscard]] std::size_t size() const override { return size_; }
  [[nodiscard]] std::size_t classes() const override { return 2; }
  [[nodiscard]] Sample get(std::size_t index, std::uint64_t seed) const override {
    ++calls;
    if (most_delay_ > 0) {
      std::this_thread::sleep_for(
          microseconds(mixed(seed, index) % static_cast<unsigned>(most_delay_)));
    }
    for (const std::size_t bad : broken) {
      if (index == bad) throw DataError("sample " + std::to_string(index) + " is broken");
    }
    const std::int64_t width = index == odd ? 3 : 2;
    Sample sample;
    sample.name = std::to_string(index);
    sample.input = {
        {1, 1, width},
        std::vector<float>(static_cast<std::size_t>(width), static_cast<float>(seed >> 40U))};
    sample.target = {{1, width},
                     std::vector<std::uint8_t>(static_cast<std::size_t>(width),
                                               static_cast<std::uint8_t>(index))};
    sample.extras = {sample.target};
    return sample;
  }

  std::vector<std::size_t> broken;
  std::size_t odd = SIZE_MAX;
  mutable std::atomic<int> calls = 0;

 private:
  std::size_t size_;
  int most_delay_;
};

/// All that a batch holds, as text.
std::string text_of(const Batch& batch) {
  std::string text = std::to_string(batch.epoch) + "/" + std::to_string(batch.index) + ":";
  for (const std::string& name : batch.names) text += " " + name;
  const auto add = [&](const auto& stack) {
    text += " |";
    std::int64_t count = 1;
    for (const std::int64_t side : stack.shape) {
      text += " " + std::to_string(side);
      count *= side;
    }
    text += " =";
    for (std::int64_t i = 0; i < count; ++i) text += " " + std::to_string(stack.data()[i]);
  };
  add(batch.input);
  add(batch.target);
  for (const auto& extra : batch.extras) add(extra);
  return text;
}

std::vector<std::string> all_of(Loader& loader) {
  std::vector<std::string> texts;
  while (true) {
    try {
      const std::optional<Batch> batch = loader.next();
      if (!batch) return texts;
      texts.push_back(text_of(*batch));
    } catch (const DataError& error) {
      texts.emplace_back(error.what());
    }
  }
}

TEST(Loader, BatchesDoNotDependOnWorkers) {
  const auto slow = std::make_shared<Slow>(23, 300);
  std::vector<std::string> expected;
  for (const std::size_t workers : {1, 2, 4, 9}) {
    for (const std::size_t ahead : {1, 3}) {
      Loader loader(slow, {.batch = 4, .workers = workers, .ahead = ahead, .seed = 7, .epochs = 3});
      const std::vector<std::string> texts = all_of(loader);
      ASSERT_EQ(texts.size(), 15U);
      if (expected.empty()) expected = texts;
      EXPECT_EQ(texts, expected) << workers << " workers, " << ahead << " ahead";
    }
  }
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), 15U);
  Loader other(slow, {.batch = 4, .seed = 8, .epochs = 3});
  EXPECT_NE(all_of(other), expected);
}

TEST(Loader, RealPipelinesDoNotDependOnWorkers) {
  const auto data =
      transformed(open_dataset("synthetic:?size=40x50&count=9"),
                  {random_scale_crop(0.5, 2, 24, 24), random_flip(),
                   color_jitter(0.3, 0.3, 0.3, 0.1), random_blur(0.2, 1.3, 0.5), label_edges(5),
                   normalize({0.5F, 0.5F, 0.5F}, {0.2F, 0.2F, 0.2F})});
  std::vector<std::string> expected;
  for (const std::size_t workers : {1, 2, 4}) {
    Loader loader(data, {.batch = 3, .workers = workers, .seed = 1, .epochs = 2});
    const std::vector<std::string> texts = all_of(loader);
    ASSERT_EQ(texts.size(), 6U);
    if (expected.empty()) expected = texts;
    EXPECT_EQ(texts, expected) << workers;
  }
}

TEST(Loader, ResumesAtAnyBatch) {
  const auto slow = std::make_shared<Slow>(10, 100);
  const LoaderOptions options{.batch = 3, .workers = 3, .drop_last = false, .seed = 2, .epochs = 3};
  Loader whole(slow, options);
  const std::vector<std::string> expected = all_of(whole);
  ASSERT_EQ(expected.size(), 12U);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    for (std::size_t batch = 0; batch <= 4; ++batch) {
      Loader part(slow, options, epoch, batch);
      const std::vector<std::string> texts = all_of(part);
      const auto from = static_cast<std::ptrdiff_t>(4 * epoch + batch);
      EXPECT_EQ(texts, std::vector<std::string>(expected.begin() + from, expected.end()));
    }
  }
  Loader past(slow, options, 3, 0);
  EXPECT_FALSE(past.next());
  EXPECT_FALSE(past.next());
}

TEST(Loader, EpochsHoldEverySampleOnceInAnOrderOfTheirOwn) {
  const auto slow = std::make_shared<Slow>(12);
  Loader loader(slow, {.batch = 4, .workers = 2, .seed = 3});
  std::set<std::vector<std::string>> orders;
  for (int epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::string> order;
    for (int i = 0; i < 3; ++i) {
      const std::optional<Batch> batch = loader.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->epoch, static_cast<std::size_t>(epoch));
      EXPECT_EQ(batch->index, static_cast<std::size_t>(i));
      order.insert(order.end(), batch->names.begin(), batch->names.end());
    }
    EXPECT_EQ(std::set<std::string>(order.begin(), order.end()).size(), 12U);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 5U);
  Loader plain(slow, {.batch = 5, .shuffle = false, .drop_last = false, .epochs = 1});
  EXPECT_EQ(plain.next()->names, (std::vector<std::string>{"0", "1", "2", "3", "4"}));
  plain.next();
  EXPECT_EQ(plain.next()->input.shape, (std::vector<std::int64_t>{2, 1, 1, 2}));
  EXPECT_FALSE(plain.next());
}

TEST(Loader, ErrorsComeInPlaceOfTheirBatch) {
  for (const std::size_t workers : {1, 2, 5}) {
    const auto slow = std::make_shared<Slow>(12, 400);
    slow->broken = {4, 3, 10};
    Loader loader(slow,
                  {.batch = 3, .workers = workers, .ahead = 4, .shuffle = false, .epochs = 1});
    const std::vector<std::string> texts = all_of(loader);
    ASSERT_EQ(texts.size(), 4U);
    EXPECT_TRUE(texts[0].starts_with("0/0: 0 1 2"));
    EXPECT_EQ(texts[1], "sample 3 is broken");  // the first of its batch, whoever failed first
    EXPECT_TRUE(texts[2].starts_with("0/2: 6 7 8"));
    EXPECT_EQ(texts[3], "sample 10 is broken");
  }
}

TEST(Loader, SamplesOfABatchAreAlikeInShape) {
  for (std::size_t odd = 3; odd < 6; ++odd) {
    const auto slow = std::make_shared<Slow>(9, 200);
    slow->odd = odd;
    Loader loader(slow, {.batch = 3, .workers = 3, .shuffle = false, .epochs = 1});
    const std::vector<std::string> texts = all_of(loader);
    ASSERT_EQ(texts.size(), 3U);
    const std::string other = odd == 3 ? "4" : std::to_string(odd);
    EXPECT_TRUE(texts[1].starts_with("samples of one batch differ in shape: 3 has input 1x1x" +
                                     std::string(odd == 3 ? "3" : "2")))
        << texts[1];
    EXPECT_NE(texts[1].find("but " + other + " has"), std::string::npos) << texts[1];
    EXPECT_TRUE(texts[2].starts_with("0/2: 6 7 8"));
  }
}

class Failing : public BatchMemory {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    if (++calls == 4) throw std::bad_alloc();  // of the second batch: three pieces a batch
    pieces += bytes;
    return heap->allocate(bytes);
  }
  std::atomic<int> calls = 0;
  std::atomic<std::size_t> pieces = 0;
  std::shared_ptr<BatchMemory> heap = heap_memory();
};

TEST(Loader, MemoryIsTheCallersAndMayFail) {
  const auto memory = std::make_shared<Failing>();
  Loader loader(
      std::make_shared<Slow>(6),
      {.batch = 2, .workers = 1, .ahead = 1, .shuffle = false, .epochs = 1, .memory = memory});
  const std::optional<Batch> first = loader.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->input.memory.use_count(), 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first->input.data()) % 64, 0U);
  EXPECT_THROW((void)loader.next(), std::bad_alloc);
  EXPECT_EQ(loader.next()->names, (std::vector<std::string>{"4", "5"}));
  EXPECT_EQ(first->target.data()[2], 1);  // batches outlive those that follow
}

TEST(Loader, EndsWhileWorkersAreBusy) {
  for (int round = 0; round < 30; ++round) {
    const auto slow = std::make_shared<Slow>(1000, 500);
    {
      Loader loader(slow, {.batch = 7, .workers = 4, .ahead = 5});
      for (int i = 0; i < round % 3; ++i) (void)loader.next();
    }
    const int calls = slow->calls;
    std::this_thread::sleep_for(microseconds(200));
    EXPECT_EQ(slow->calls, calls);  // nobody is left
  }
}

TEST(Loader, OnlySoManyBatchesAhead) {
  const auto slow = std::make_shared<Slow>(1000);
  Loader loader(slow, {.batch = 2, .workers = 3, .ahead = 4});
  for (int wait = 0; wait < 20000 && slow->calls < 8; ++wait) {
    std::this_thread::sleep_for(microseconds(500));
  }
  std::this_thread::sleep_for(microseconds(3000));
  EXPECT_EQ(slow->calls, 8);
  (void)loader.next();
  for (int wait = 0; wait < 20000 && slow->calls < 10; ++wait) {
    std::this_thread::sleep_for(microseconds(500));
  }
  EXPECT_EQ(slow->calls, 10);
  EXPECT_EQ(loader.statistics().batches, 1U);
}

TEST(Loader, WhatCannotWorkIsAnError) {
  const auto slow = std::make_shared<Slow>(3);
  EXPECT_NE(error_of([&] {
              Loader loader(slow, {.batch = 4});
            }).find("3 samples, fewer than one batch of 4"),
            std::string::npos);
  Loader small(slow, {.batch = 4, .drop_last = false, .epochs = 1});
  EXPECT_EQ(small.next()->names.size(), 3U);
  EXPECT_THROW(Loader(slow, {.batch = 0}), BadSetting);
  EXPECT_THROW(Loader(slow, {.workers = 0}), BadSetting);
  EXPECT_THROW(Loader(slow, {.batch = 1}, 0, 4), BadSetting);
}

TEST(Wrap, PartsShuffleRepeatAndConcatenate) {
  const DatasetPtr slow = std::make_shared<Slow>(10);
  const auto names = [](const DatasetPtr& data) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < data->size(); ++i) all.push_back(data->get(i, 0).name);
    return all;
  };
  EXPECT_EQ(names(subset(slow, {3, 1})), (std::vector<std::string>{"3", "1"}));
  EXPECT_NE(error_of([&] { (void)subset(slow, {10}); }), "");
  const auto [some, rest] = split(slow, 0.3, 1);
  EXPECT_EQ(some->size(), 3U);
  std::vector<std::string> both = names(some);
  for (const std::string& name : names(rest)) both.push_back(name);
  EXPECT_EQ(std::set<std::string>(both.begin(), both.end()).size(), 10U);
  EXPECT_NE(error_of([&] { (void)split(subset(slow, {1}), 0.5, 1); }), "");
  EXPECT_NE(names(shuffled(slow, 1)), names(slow));
  EXPECT_EQ(names(shuffled(slow, 1)), names(shuffled(slow, 1)));
  const DatasetPtr twice = repeated(subset(slow, {4}), 3);
  EXPECT_EQ(twice->size(), 3U);
  EXPECT_NE(twice->get(0, 5).input.values, twice->get(1, 5).input.values);  // another seed
  EXPECT_EQ(concatenated({slow, twice})->get(11, 0).name, "4");
}

TEST(Wrap, CachesDecodeOnce) {
  const auto slow = std::make_shared<Slow>(4);
  const DatasetPtr some = cached(slow, 30);  // a sample has 13 bytes: two fit
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(some->get(i, 1).name, std::to_string(i));
  }
  EXPECT_EQ(slow->calls, 2 + 3 * 2);
}

TEST(Wrap, ErrorsOfTransformsNameTheSample) {
  const DatasetPtr wrong = transformed(std::make_shared<Slow>(3), {random_crop3d({1, 1, 1})});
  EXPECT_TRUE(error_of([&] { (void)wrong->get(2, 0); }).starts_with("2: random_crop3d"));
}

TEST(Open, SpecsAreParsedAndWritten) {
  const DataSpec spec = parse_spec("voc:/data/a?b/VOC2012/?split=val&missing=skip");
  EXPECT_EQ(spec.kind, "voc");
  EXPECT_EQ(spec.path, "/data/a?b/VOC2012");
  EXPECT_EQ(spec.with("split", "train").text(), "voc:/data/a?b/VOC2012?missing=skip&split=train");
  for (const char* bad : {"", "voc", ":x", "voc:x?y", "voc:x?=1", "voc:x?a=1&a=2"}) {
    EXPECT_NE(error_of([&] { (void)parse_spec(bad); }), "") << bad;
  }
}

TEST(Open, UnknownNamesAreErrorsThatNameThoseThereAre) {
  const auto error = [](const std::string& spec) {
    return error_of([&] { (void)open_dataset(spec); });
  };
  EXPECT_NE(error("vok:/x").find("no kind of data \"vok\"; there are cityscapes, voc"),
            std::string::npos);
  EXPECT_NE(error("synthetic:?sise=3").find("no option \"sise\"; there are task, size"),
            std::string::npos);
  EXPECT_NE(error("voc:/nowhere/at/all").find("\"/nowhere/at/all\" is no folder"),
            std::string::npos);
  EXPECT_NE(error("synthetic:?size=0"), "");
  EXPECT_NE(error("synthetic:?size=3x3x3"), "");
  EXPECT_NE(error("synthetic:?size=1000000"), "");
  EXPECT_NE(error("synthetic:?classes=many"), "");
  EXPECT_NE(error("synthetic:?cache=4GB"), "");
  EXPECT_TRUE(takes_option("voc", "split"));
  EXPECT_FALSE(takes_option("brats", "split"));
  EXPECT_NE(describe_kinds().find("cityscapes: "), std::string::npos);
}

TEST(Open, SyntheticSourcesOfEveryTask) {
  const auto images = open_dataset("synthetic:?size=30x40&classes=4&count=7");
  EXPECT_EQ(images->size(), 7U);
  const Sample image = images->get(3, 0);
  EXPECT_EQ(image.input.shape, (std::vector<std::int64_t>{3, 30, 40}));
  EXPECT_EQ(images->get(3, 9).input.values, image.input.values);
  EXPECT_NE(images->get(4, 0).input.values, image.input.values);
  for (const std::uint8_t label : image.target.values) EXPECT_TRUE(label < 4 || label == kVoid);
  const auto val = open_dataset("synthetic:?size=30x40&classes=4&count=7&split=val");
  EXPECT_NE(val->get(3, 0).input.values, image.input.values);

  const Sample volume = open_dataset("synthetic:?task=volumes&size=9x8x7&classes=2")->get(0, 0);
  EXPECT_EQ(volume.input.shape, (std::vector<std::int64_t>{4, 9, 8, 7}));
  EXPECT_EQ(volume.target.shape, (std::vector<std::int64_t>{2, 9, 8, 7}));
  EXPECT_GT(std::count(volume.target.values.begin(), volume.target.values.end(), 1), 0);

  Loader loader(open_dataset("synthetic:?task=classes&size=16&classes=3&repeat=2&count=5"),
                {.batch = 10, .epochs = 1});
  const std::optional<Batch> batch = loader.next();
  EXPECT_EQ(batch->target.shape, (std::vector<std::int64_t>{10}));
  EXPECT_EQ(batch->input.shape, (std::vector<std::int64_t>{10, 3, 16, 16}));
}

TEST(Open, PartsAreDisjoint) {
  const auto train = open_dataset("synthetic:?count=10&size=4&part=train&share=0.3");
  const auto val = open_dataset("synthetic:?count=10&size=4&part=val&share=0.3");
  EXPECT_EQ(train->size(), 7U);
  EXPECT_EQ(val->size(), 3U);
  std::set<std::string> names;
  for (const auto& data : {train, val}) {
    for (std::size_t i = 0; i < data->size(); ++i) names.insert(data->get(i, 0).name);
  }
  EXPECT_EQ(names.size(), 10U);
  EXPECT_EQ(open_dataset("synthetic:?count=10&size=4&first=2&repeat=3&cache=1MiB")->size(), 6U);
}

}  // namespace
}  // namespace lms::data
