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
      Must(PickerRequestOf(kJson, R"({"model": "reverse", "prompt": ")" + prompt + R"(", "max_tokens": 7})")).route;
  EXPECT_EQ(request.adapter, "reverse");
  EXPECT_EQ(request.prompt_tokens, 250);
  EXPECT_EQ(request.output_tokens, 7);
  EXPECT_EQ(request.prefix, PrefixBlocks("reverse", prompt));
  EXPECT_FALSE(request.prefix.empty());
}

TEST(PickerRequest, AChatsTextIsItsMessages) {
  const std::string words(600, 'w');
  const RouteRequest one = Must(PickerRequestOf(kJson, R"({"model": "m", "messages": [{"role": "user", "content": ")" +
                                                           words + R"("}], "max_completion_tokens": 3})"))
                               .route;
  const RouteRequest same_start = Must(PickerRequestOf(kJson, R"({"messages": [{"content": ")" + words +
                                                                  R"( and more", "role": "user"}], "model": "m"})"))
                                      .route;
  ASSERT_GE(one.prefix.size(), 2u);
  EXPECT_EQ(one.prefix[1], same_start.prefix[1]);
  EXPECT_EQ(one.output_tokens, 3);
}

TEST(PickerRequest, WhatIsNotJsonGoesAnywhere) {
  for (const char* type : {"multipart/form-data; boundary=x", "text/plain"}) {
    const RouteRequest request = Must(PickerRequestOf({{"content-type", type}}, "{not json")).route;
    EXPECT_THAT(request.adapter, IsEmpty());
  }
  EXPECT_THAT(Must(PickerRequestOf(kJson, "")).route.adapter, IsEmpty());
  EXPECT_THAT(Must(PickerRequestOf(kJson, R"({"prompt": "no model"})")).route.adapter, IsEmpty());
}

TEST(PickerRequest, WhatIsNoObjectIsRefused) {
  for (const char* body : {"{", "[1]", "7", R"({"model": )"}) {
    const auto wrong = PickerRequestOf({}, body);
    ASSERT_FALSE(wrong.ok()) << body;
    EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument);
  }
}

// llm-d's names of the headers, and their older ones.
TEST(PickerRequest, HeadersSteer) {
  const auto with = [](const char* name, const char* value) { return ProxyHeaders{{name, value}}; };
  const std::string body = R"({"prompt": "x", "model": "alias", "n": 1})";
  for (const char* name : {"x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"}) {
    const PickerRequest request = Must(PickerRequestOf(with(name, "re\"al"), body));
    EXPECT_EQ(request.route.adapter, "re\"al");
    EXPECT_EQ(request.body, R"({"prompt": "x", "model": "re\"al", "n": 1})");
    EXPECT_EQ(Must(PickerRequestOf(with(name, "real"), "{ }")).body, R"({"model":"real" })");
    EXPECT_EQ(Must(PickerRequestOf(with(name, "real"), R"({"prompt":"x"})")).body, R"({"model":"real","prompt":"x"})");
  }
  EXPECT_EQ(Must(PickerRequestOf({}, body)).body, std::nullopt);
  for (const char* name : {"x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"}) {
    EXPECT_EQ(Must(PickerRequestOf(with(name, "12.5"), body)).route.tpot_objective, 12'500'000);
    for (const char* wrong : {"0", "-1", "fast", "1e12", "nan", "5 "}) {
      EXPECT_FALSE(PickerRequestOf(with(name, wrong), body).ok()) << wrong;
    }
  }
  EXPECT_EQ(Must(PickerRequestOf(with("x-session-id", "chat-1"), body)).route.session_id, "chat-1");
  EXPECT_EQ(Must(PickerRequestOf(with("x-session-token", "00ff"), body)).route.session_token, "00ff");
}

TEST(PickerRequest, AnAdapterMayBeNamedBesideTheModel) {
  EXPECT_EQ(Must(PickerRequestOf(kJson, R"({"model": "base", "lora_path": "reverse"})")).route.adapter, "reverse");
}

TEST(PickerRequest, AnswersWithoutALimitHaveATypicalLength) {
  const std::int64_t typical = Must(PickerRequestOf(kJson, R"({"prompt": "x"})")).route.output_tokens;
  EXPECT_GT(typical, 16);
  EXPECT_EQ(Must(PickerRequestOf(kJson, R"({"max_tokens": 100000})")).route.output_tokens, typical);
  EXPECT_EQ(Must(PickerRequestOf(kJson, R"({"max_tokens": 16})")).route.output_tokens, 16);
}

}  // namespace
}  // namespace loramux::picker_request_test
