#include "envoy/endpoint_picker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "envoy/picker_world_for_test.h"

namespace loramux::endpoint_picker_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

RouteRequest For(std::string adapter) {
  RouteRequest request;
  request.adapter = std::move(adapter);
  request.prompt_tokens = 10;
  return request;
}

TEST(EndpointPicker, TheChosenServerComesFirstThenTheNextBest) {
  PickerWorld world;
  Pick pick = Must(world.picker->Choose(For("x"), {}));
  EXPECT_THAT(pick.servers, ElementsAre("a", "b", "c"));
  EXPECT_THAT(pick.addresses, ElementsAre("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"));
  EXPECT_EQ(world.State("a").in_flight, 1);  // only the first one counts
  EXPECT_EQ(world.State("b").in_flight, 0);
  EXPECT_EQ(world.State("c").in_flight, 0);
  world.picker->Answered(pick, {.served = "10.0.0.1:8000", .details = "via_upstream"});
  EXPECT_EQ(world.State("a").in_flight, 1);
  world.picker->End(pick, AttemptEnd::kAnswered);
  world.picker->End(pick, AttemptEnd::kAnswered);  // once only
  EXPECT_EQ(world.State("a").in_flight, 0);
}

TEST(EndpointPicker, TheNameOfTheBaseModelMeansNoAdapter) {
  PickerWorld world;
  Pick pick = Must(world.picker->Choose(For("base"), {}));
  EXPECT_THAT(pick.request.adapter, IsEmpty());
  Pick named = Must(world.picker->Choose(For("base:x"), {}));
  EXPECT_EQ(named.request.adapter, "x");
  for (Pick* one : {&pick, &named}) world.picker->End(*one, AttemptEnd::kCancelled);
}

TEST(EndpointPicker, TheCatalogueNamesTheContent) {
  PickerWorld world;
  world.picker->SetCatalogue({{"x", {.digest = "d1"}}});
  Pick pick = Must(world.picker->Choose(For("x"), {}));
  EXPECT_EQ(pick.request.digest, "d1");
  Pick other = Must(world.picker->Choose(For("y"), {}));
  EXPECT_THAT(other.request.digest, IsEmpty());
  for (Pick* one : {&pick, &other}) world.picker->End(*one, AttemptEnd::kCancelled);
}

TEST(EndpointPicker, ASubsetIsKept) {
  PickerWorld world;
  const std::vector<std::string> subset = {"10.0.0.3:8000", "10.9.9.9:1", "10.0.0.2:8000"};
  Pick pick = Must(world.picker->Choose(For("x"), subset));
  EXPECT_THAT(pick.servers, UnorderedElementsAre("b", "c"));
  world.picker->End(pick, AttemptEnd::kCancelled);
  for (const std::vector<std::string>& foreign : {std::vector<std::string>{}, {"10.9.9.9:1"}}) {
    const auto none = world.picker->Choose(For("x"), foreign);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(none.error().message, HasSubstr("pool"));
  }
}

TEST(EndpointPicker, AnotherServerThatAnsweredTakesOverTheAttempt) {
  PickerWorld world;
  Pick pick = Must(world.picker->Choose(For("x"), {}));
  world.picker->Answered(pick, {.served = "10.0.0.3:8000"});
  EXPECT_EQ(world.State("a").in_flight, 0);
  EXPECT_EQ(world.State("b").in_flight, 0);
  EXPECT_EQ(world.State("c").in_flight, 1);
  EXPECT_EQ(world.State("a").failures, 1);  // the proxy went past it
  EXPECT_EQ(world.State("b").failures, 1);
  EXPECT_EQ(world.State("c").failures, 0);
  world.picker->End(pick, AttemptEnd::kAnswered);
  EXPECT_EQ(world.State("c").in_flight, 0);
}

TEST(EndpointPicker, AServerThatTheProxyCannotReachIsEjected) {
  PickerWorld world;
  for (int i = 0; i < 3; ++i) {
    Pick pick = Must(world.picker->Choose(For("x"), {}));
    ASSERT_EQ(pick.servers.front(), "a");
    world.picker->Answered(pick, {.served = "10.0.0.2:8000"});
    world.picker->End(pick, AttemptEnd::kAnswered);
  }
  EXPECT_TRUE(world.State("a").ejected);
  Pick pick = Must(world.picker->Choose(For("x"), {}));
  EXPECT_THAT(pick.servers, UnorderedElementsAre("b", "c"));
  world.picker->End(pick, AttemptEnd::kCancelled);
}

TEST(EndpointPicker, TheProxysOwnAnswersCountOnlyIfServersWereSilent) {
  PickerWorld world;
  const auto report = [&](const char* details) {
    Pick pick = Must(world.picker->Choose(For("x"), {}));
    EXPECT_EQ(pick.servers.front(), "a");
    world.picker->Answered(pick, {.details = details});
    EXPECT_EQ(world.State("a").in_flight, 0);
    world.picker->End(pick, AttemptEnd::kAnswered);
    return world.State("a").failures;
  };
  EXPECT_EQ(report("request_payload_too_large"), 0);
  EXPECT_EQ(report("stream_idle_timeout"), 0);
  EXPECT_EQ(report("upstream_reset_before_response_started{remote_connection_failure}"), 1);
  EXPECT_EQ(report("upstream_response_timeout"), 2);
}

TEST(EndpointPicker, AServerThatBeganNothingHasNotFailed) {
  PickerWorld world;
  Pick pick = Must(world.picker->Choose(For("x"), {}));
  world.picker->Answered(pick, {.served = "10.0.0.1:8000", .not_started = true});
  EXPECT_EQ(world.State("a").in_flight, 0);
  EXPECT_EQ(world.State("a").failures, 0);
  world.picker->End(pick, AttemptEnd::kAnswered);
}

TEST(EndpointPicker, WithoutServersItSaysWhy) {
  PickerWorld world;
  world.picker->SetServers({});
  const auto none = world.picker->Choose(For("x"), {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace loramux::endpoint_picker_test
