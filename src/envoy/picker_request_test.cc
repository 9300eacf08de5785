#include "envoy/picker_request.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/must.h"
#include "cluster/prefix_blocks.h"

namespace loramux::picker_request_test {
namespace {

using testing::IsEmpty;

const ProxyHeaders kJson = {{"content-type", "application/json; charset=utf-8"}};

TEST(PickerRequest, ReadsWhatAPolicyNeeds) {
  const std::string prompt(1000, 'p');
  const RouteRequest request =
      Must(RouteRequestOf(kJson, R"({"model": "reverse", "prompt": ")" + prompt + R"(", "max_tokens": 7})"));
  EXPECT_EQ(request.adapter, "reverse");
  EXPECT_EQ(request.prompt_tokens, 250);
  EXPECT_EQ(request.output_tokens, 7);
  EXPECT_EQ(request.prefix, PrefixBlocks("reverse", prompt));
  EXPECT_FALSE(request.prefix.empty());
}

TEST(PickerRequest, AChatsTextIsItsMessages) {
  const std::string words(600, 'w');
  const RouteRequest one = Must(RouteRequestOf(kJson, R"({"model": "m", "messages": [{"role": "user", "content": ")" +
                                                          words + R"("}], "max_completion_tokens": 3})"));
  const RouteRequest same_start = Must(RouteRequestOf(
      kJson, R"({"messages": [{"content": ")" + words + R"( and more", "role": "user"}], "model": "m"})"));
  ASSERT_GE(one.prefix.size(), 2u);
  EXPECT_EQ(one.prefix[1], same_start.prefix[1]);
  EXPECT_EQ(one.output_tokens, 3);
}

TEST(PickerRequest, WhatIsNotJsonGoesAnywhere) {
  for (const char* type : {"multipart/form-data; boundary=x", "text/plain"}) {
    const RouteRequest request = Must(RouteRequestOf({{"content-type", type}}, "{not json"));
    EXPECT_THAT(request.adapter, IsEmpty());
  }
  EXPECT_THAT(Must(RouteRequestOf(kJson, "")).adapter, IsEmpty());
  EXPECT_THAT(Must(RouteRequestOf(kJson, R"({"prompt": "no model"})")).adapter, IsEmpty());
}

TEST(PickerRequest, WhatIsNoObjectIsRefused) {
  for (const char* body : {"{", "[1]", "7", R"({"model": )"}) {
    const auto wrong = RouteRequestOf({}, body);
    ASSERT_FALSE(wrong.ok()) << body;
    EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(PickerRequest, AnAdapterMayBeNamedBesideTheModel) {
  EXPECT_EQ(Must(RouteRequestOf(kJson, R"({"model": "base", "lora_path": "reverse"})")).adapter, "reverse");
}

TEST(PickerRequest, AnswersWithoutALimitHaveATypicalLength) {
  const std::int64_t typical = Must(RouteRequestOf(kJson, R"({"prompt": "x"})")).output_tokens;
  EXPECT_GT(typical, 16);
  EXPECT_EQ(Must(RouteRequestOf(kJson, R"({"max_tokens": 100000})")).output_tokens, typical);
  EXPECT_EQ(Must(RouteRequestOf(kJson, R"({"max_tokens": 16})")).output_tokens, 16);
}

}  // namespace
}  // namespace loramux::picker_request_test
