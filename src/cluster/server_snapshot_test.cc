#include "cluster/server_snapshot.h"

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "cluster/prefix_blocks.h"

namespace loramux::server_snapshot_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ServerSnapshot Example() {
  ServerSnapshot snapshot;
  snapshot.instance = "3f1c-a.b_9";
  snapshot.version = 12;
  snapshot.draining = true;
  snapshot.profile = "H100 80GB, llama-3-8b";
  snapshot.base_model = "base/modèle";
  snapshot.running = 3;
  snapshot.waiting = 4;
  snapshot.waiting_prompt_tokens = 5000;
  snapshot.running_prompt_tokens = 600;
  snapshot.running_context = 7000;
  snapshot.max_running = 64;
  snapshot.max_batch_tokens = 2048;
  snapshot.lane_waiting = {1, 0, 3};
  snapshot.page_tokens = 16;
  snapshot.page_bytes = 2 << 20;
  snapshot.device_pages = 1000;
  snapshot.free_pages = 10;
  snapshot.history_pages = 200;
  snapshot.idle_adapter_pages = 30;
  snapshot.adapters = {{"law \"x\"", "00ff", AdapterPlace::kHost, 8, 1 << 20, 0, 0},
                       {"sql", std::string(64, 'a'), AdapterPlace::kDevice, 128, std::int64_t{1} << 30, 2, 1},
                       {"t", "", AdapterPlace::kArriving, 0, 0, 0, 5},
                       {"u", "1", AdapterPlace::kDisk, 1, 1, 0, 5}};
  snapshot.prefixes = {0, 1, 77, 0x80000000u, 0xffffffffu};
  return snapshot;
}

// The example with one change, parsed: the message of the error, or "" for none.
std::string ErrorWith(const std::function<void(json&)>& change) {
  json object = json::parse(ServerSnapshotAsJson(Example()));
  change(object);
  const auto parsed = ParseServerSnapshot(object.dump());
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(ServerSnapshot, IsReadAsItWasWritten) {
  const auto parsed = ParseServerSnapshot(ServerSnapshotAsJson(Example()));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(*parsed, Example());
  ServerSnapshot small;
  small.instance = "a";
  small.version = 1;
  const auto parsed_small = ParseServerSnapshot(ServerSnapshotAsJson(small));
  ASSERT_TRUE(parsed_small.ok()) << parsed_small.error().message;
  EXPECT_EQ(*parsed_small, small);
}

TEST(ServerSnapshot, PrefixesOfAnyNumberSurvive) {
  Prng prng(3);
  for (std::size_t count = 0; count < 40; ++count) {
    ServerSnapshot snapshot = Example();
    snapshot.prefixes.clear();
    for (std::size_t i = 0; i < count; ++i) {
      snapshot.prefixes.push_back(static_cast<std::uint32_t>((i << 25) + prng.NextBelow(1 << 25)));
    }
    const auto parsed = ParseServerSnapshot(ServerSnapshotAsJson(snapshot));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    ASSERT_EQ(parsed->prefixes, snapshot.prefixes);
  }
}

TEST(ServerSnapshot, PrefixesAreLittleEndianBase64) {
  const json object = json::parse(ServerSnapshotAsJson(Example()));
  EXPECT_EQ(object["prefixes"], "AAAAAAEAAABNAAAAAAAAgP////8=");
}

TEST(ServerSnapshot, WhatIsOfferedMayBeLeftOut) {
  ServerSnapshot snapshot = Example();
  snapshot.offered = {1, 0x8000000000000000u, 0xffffffffffffffffu};
  snapshot.offered_version = 7;
  const std::string text = ServerSnapshotAsJson(snapshot);
  EXPECT_EQ(json::parse(text)["offered"], "AQAAAAAAAAAAAAAAAAAAgP//////////");
  const auto parsed = ParseServerSnapshot(text);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(*parsed, snapshot);
  for (const auto& wrong : {json("AQAAAAAAAAABAAAAAAAAAA=="), json("AQAAAA=="), json(3), json(nullptr),
                            json(std::string(kMaxOffered * 12, 'A'))}) {
    EXPECT_THAT(ErrorWith([&](json& object) { object["offered"] = wrong; }), HasSubstr("offered: expected base64"));
  }
  EXPECT_THAT(ErrorWith([&](json& object) { object["offered_version"] = -1; }), HasSubstr("offered_version: expected"));
}

TEST(ServerSnapshot, FindsAdaptersAndPrefixes) {
  const ServerSnapshot snapshot = Example();
  ASSERT_NE(snapshot.Find("sql"), nullptr);
  EXPECT_EQ(snapshot.Find("sql")->rank, 128);
  EXPECT_EQ(snapshot.Find("sq"), nullptr);
  EXPECT_EQ(snapshot.Find("z"), nullptr);
  EXPECT_TRUE(snapshot.HasPrefix(77));
  EXPECT_FALSE(snapshot.HasPrefix(78));
}

TEST(ServerSnapshot, UnknownFieldsAreIgnoredWhateverTheyHold) {
  EXPECT_EQ(ErrorWith([](json& object) {
              object["power"] = {{"watts", {1.5, nullptr, {{"running", -1}}}}, {"running", "x"}};
              object["a"] = json::array({json::array(), json::object(), 1e300});
              object["adapters"][1]["tier"] = {{"name", 3}};
              object["adapters"][1]["x"] = nullptr;
            }),
            "");
}

TEST(ServerSnapshot, EveryFieldIsRequiredAndNamed) {
  const json whole = json::parse(ServerSnapshotAsJson(Example()));
  for (const auto& [key, value] : whole.items()) {
    EXPECT_THAT(ErrorWith([&](json& object) { object.erase(key); }), HasSubstr("snapshot: " + key + " is missing"));
    EXPECT_THAT(ErrorWith([&](json& object) { object[key] = nullptr; }), HasSubstr("snapshot: " + key + ": expected"));
    EXPECT_THAT(ErrorWith([&](json& object) { object[key] = {{"a", 1}}; }), HasSubstr("found an object"));
  }
  for (const auto& [key, value] : whole["adapters"][1].items()) {
    EXPECT_THAT(ErrorWith([&](json& object) { object["adapters"][1].erase(key); }),
                HasSubstr("snapshot: adapters[1]." + key + " is missing"));
    EXPECT_THAT(ErrorWith([&](json& object) { object["adapters"][1][key] = json::array(); }),
                HasSubstr("snapshot: adapters[1]." + key + ": expected"));
  }
}

TEST(ServerSnapshot, NumbersOutOfRangeAreErrors) {
  for (const char* key : {"running", "waiting", "waiting_prompt_tokens", "running_prompt_tokens", "running_context",
                          "max_running", "max_batch_tokens", "page_tokens", "page_bytes", "device_pages", "free_pages",
                          "history_pages", "idle_adapter_pages"}) {
    for (const json& wrong :
         {json(-1), json(1.0), json("1"), json(true), json(std::numeric_limits<std::int64_t>::max()),
          json(std::numeric_limits<std::uint64_t>::max())}) {
      EXPECT_THAT(ErrorWith([&](json& object) { object[key] = wrong; }),
                  HasSubstr("snapshot: " + std::string(key) + ": expected a whole number from 0 to 2^"))
          << wrong;
    }
  }
  EXPECT_THAT(ErrorWith([](json& object) { object["version"] = 0; }), HasSubstr("version: expected"));
  EXPECT_EQ(ErrorWith([](json& object) { object["version"] = std::numeric_limits<std::int64_t>::max(); }), "");
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][2]["rank"] = 65537; }),
              HasSubstr("adapters[2].rank: expected a whole number from 0 to 65536, found 65537"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][0]["bytes"] = -5; }),
              HasSubstr("adapters[0].bytes: expected a whole number from 0 to 2^44, found -5"));
  EXPECT_THAT(ErrorWith([](json& object) { object["lane_waiting"][1] = "x"; }),
              HasSubstr("lane_waiting[1]: expected a whole number from 0 to 2^30, found 'x'"));
}

TEST(ServerSnapshot, TextsAreChecked) {
  const std::string long_name(1025, 'n');
  EXPECT_THAT(ErrorWith([](json& object) { object["instance"] = ""; }), HasSubstr("instance: expected 1 to 128"));
  EXPECT_THAT(ErrorWith([](json& object) { object["instance"] = "a\r\nX: y"; }), HasSubstr("instance: expected"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][1]["digest"] = "a&b"; }),
              HasSubstr("adapters[1].digest: expected"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][1]["place"] = "moon"; }),
              HasSubstr("adapters[1].place: expected \"device\", \"arriving\", \"host\" or \"disk\", found 'moon'"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][1]["name"] = ""; }), HasSubstr("adapters[1].name"));
  EXPECT_THAT(ErrorWith([&](json& object) { object["base_model"] = long_name; }), HasSubstr("base_model: expected"));
  EXPECT_LT(ErrorWith([&](json& object) { object["base_model"] = std::string(100000, 'n'); }).size(), 1000u);
}

TEST(ServerSnapshot, OrderIsChecked) {
  EXPECT_THAT(ErrorWith([](json& object) { std::swap(object["adapters"][0], object["adapters"][1]); }),
              HasSubstr("adapters[1].name: expected names in ascending order"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"][1]["name"] = object["adapters"][0]["name"]; }),
              HasSubstr("ascending order"));
  for (const char* wrong : {"AQAAAAAAAAA=",  // 1, 0
                            "AQAAAAEAAAA=",  // 1, 1
                            "AQAAAA",        // no padding
                            "AQAAAB==",      // bits after the last byte
                            "AQAA",          // three bytes
                            "AQA*AA==", "=", "A===", "====", "AQAAAA==AQAAAA=="}) {
    EXPECT_THAT(ErrorWith([&](json& object) { object["prefixes"] = wrong; }), HasSubstr("prefixes: expected base64"))
        << wrong;
  }
}

TEST(ServerSnapshot, AFieldThatIsThereTwiceIsAnError) {
  std::string text = ServerSnapshotAsJson(Example());
  text.insert(1, "\"running\":1,");
  const auto parsed = ParseServerSnapshot(text);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message, HasSubstr("running is there twice"));
}

TEST(ServerSnapshot, WhatIsNoJsonObjectIsAnError) {
  const std::string whole = ServerSnapshotAsJson(Example());
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("3"), std::string("null"), std::string("\"x\""), whole + "}",
        whole + " {}", whole.substr(0, whole.size() - 1), std::string(100, '['), "{\"a\":" + std::string(99, '['),
        std::string("{\"instance\":\"\xff\"}"), std::string("{\"a\":1e999}"), whole + std::string(1, '\0')}) {
    const auto parsed = ParseServerSnapshot(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr("snapshot: ")) << text;
  }
  for (std::size_t end = 0; end < whole.size(); ++end) {
    ASSERT_FALSE(ParseServerSnapshot(std::string_view(whole).substr(0, end)).ok()) << end;
  }
  const auto large = ParseServerSnapshot(std::string(kMaxSnapshotBytes + 1, ' '));
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.error().message, HasSubstr("expected at most 16,777,216 bytes"));
}

TEST(ServerSnapshot, ListsAreBounded) {
  EXPECT_THAT(ErrorWith([](json& object) { object["lane_waiting"] = std::vector<int>(1025, 0); }),
              HasSubstr("lane_waiting: expected at most 1024"));
  EXPECT_THAT(ErrorWith([](json& object) { object["adapters"] = std::vector<int>(3, 0); }),
              HasSubstr("adapters[0]: expected an object, found 0"));
  ServerSnapshot snapshot = Example();
  snapshot.adapters.clear();
  for (int i = 0; i < 65537; ++i) snapshot.adapters.push_back({.name = "a" + std::to_string(100000 + i)});
  const auto parsed = ParseServerSnapshot(ServerSnapshotAsJson(snapshot));
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message, HasSubstr("adapters: expected at most 65536"));
}

}  // namespace
}  // namespace loramux::server_snapshot_test
