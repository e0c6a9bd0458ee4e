#include <gtest/gtest.h>
#include <lms/options.h>

#include <set>
#include <string>

#include "base/error.h"

namespace lms::torch {
namespace {

std::string refusal(const std::string& name, const std::string& value) {
  Options options;
  try {
    set_option(options, name, value);
  } catch (const BadSetting& error) {
    return error.what();
  }
  return "";
}

TEST(Options, EveryFieldIsReadBackAlike) {
  std::set<std::string> names;
  for (const OptionKey& key : option_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    Options options;
    const std::string before = key.get(options);
    const std::string other = key.kind == OptionKey::Kind::kFlag
                                  ? before == "true" ? "false" : "true"
                              : key.kind == OptionKey::Kind::kMaybe ? "true"
                              : key.kind == OptionKey::Kind::kText  ? "other"
                                                                    : "3";
    set_option(options, key.name, other);
    EXPECT_EQ(key.get(options), other) << key.name;
    // Of the other fields none has changed.
    for (const OptionKey& unchanged : option_keys()) {
      if (unchanged.name == key.name) continue;
      EXPECT_EQ(unchanged.get(options), unchanged.get({})) << key.name;
    }
    set_option(options, key.name, before);
    EXPECT_EQ(key.get(options), before) << key.name;
  }
}

TEST(Options, AmountsAreExactAndFlagsHaveWords) {
  Options options;
  set_option(options, "limit", "9007199254740993");
  EXPECT_EQ(options.limit, 9007199254740993);
  for (const char* word : {"false", "0", "no", "off"}) {
    options.plan = true;
    set_option(options, "plan", word);
    EXPECT_FALSE(options.plan) << word;
  }
  set_option(options, "recompute", "off");
  EXPECT_EQ(options.recompute, false);
  set_option(options, "recompute", "auto");
  EXPECT_FALSE(options.recompute.has_value());
}

TEST(Options, WhatIsRefusedSaysWhatWouldDo) {
  EXPECT_EQ(refusal("limit", "12GiB"), "limit: '12GiB' is not a whole number of bytes");
  EXPECT_EQ(refusal("plan", "perhaps"), "plan: 'perhaps' is not true or false");
  EXPECT_EQ(refusal("plan_seconds", "-1"),
            "plan_seconds: '-1' is not a number of seconds from 0 to 1e6");
  EXPECT_NE(refusal("plan_seconds", "nan"), "");
  const std::string unknown = refusal("limits", "1");
  EXPECT_TRUE(unknown.starts_with("unknown setting 'limits' (valid: device, limit, host_limit,"))
      << unknown;
}

}  // namespace
}  // namespace lms::torch
