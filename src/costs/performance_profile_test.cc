#include "costs/performance_profile.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace loramux::performance_profile_test {
namespace {

using nlohmann::json;

CpuAssist SomeAssist() {
  CpuAssist assist{.layers = 6, .cores = 3, .per_token = 1e-5};
  assist.groups[0] = {.hand_off = 2e-5, .per_token_rank = 3e-7, .base_share = 0.25};
  assist.groups[4] = {.hand_off = 4e-5, .per_token_rank = 5e-7, .base_share = 0.125};
  return assist;
}

PerformanceProfile::BaseModel SomeBase() {
  return {.name = "demo",
          .digest = "0123abcd",
          .hidden_size = 192,
          .num_layers = 6,
          .num_heads = 5,
          .num_kv_heads = 4,
          .head_dim = 32,
          .intermediate_size = 512,
          .vocab_size = 264,
          .dtype = "BF16",
          .kv_dtype = "F32",
          .page_tokens = 16};
}

// A profile with a different value in every field, so that mixed-up fields show.
PerformanceProfile SomeProfile() {
  PerformanceProfile profile;
  profile.device = "two cores of \xc3\xa9tain, 2 threads";
  profile.device_kind = "emulated";
  profile.threads = 2;
  profile.unix_seconds = 1'790'000'000;
  profile.base = SomeBase();
  profile.ranks = {8, 8, 64};
  profile.lora_targets = "q_proj,v_proj";
  profile.max_batch_tokens = 513;
  profile.max_running = 65;
  profile.max_positions = 1023;
  double next = 1e-9;
  for (FittedModel* fitted : {&profile.mbgmv, &profile.bgmv}) {
    fitted->model.shape = fitted == &profile.bgmv ? LoraCostShape::kBgmv : LoraCostShape::kMbgmv;
    fitted->model.device = profile.device;
    for (const PerformanceTerm& term : PerformanceTerms(fitted->model.shape))
      fitted->model.*term.coefficient = next *= 1.6;
    fitted->model.experts =
        fitted == &profile.bgmv ? PerformanceModel::Experts{8, 2} : PerformanceModel::Experts{64, 6};
    fitted->model.expert_floor = next *= 1.6;
    fitted->model.token_tile = fitted == &profile.bgmv ? 12 : 64;
    fitted->model.dense_floor = next *= 1.6;
    fitted->model.floor = next *= 1.6;
    fitted->model.decode_factors = {{1, 1.25}, {4.5, 0.75 + next}};
    fitted->model.prefill_factors = {{32.25, 1 + next}};
    fitted->model.mixed_factors = {{2, 1 + next}, {3, 1.5}, {4, 0.5}};
    fitted->model.after_prefill = next *= 1.6;
    fitted->model.after_prefill_decay = 0.6;
    fitted->model.after_prefill_per_sequence = next *= 1.6;
    fitted->model.between_steps = 3e-5;
    fitted->model.submit_latency = 5e-5;
    fitted->model.disk = {0.001, 1.5e9};
    fitted->model.host_to_device = {0.002, 2.5e9};
    fitted->model.device_to_host = {0, 3.5e9};
    fitted->model.assist = SomeAssist();
    std::int64_t points = 10;
    for (FitQuality* quality :
         {&fitted->fitted, &fitted->held_out, &fitted->held_out_prefill, &fitted->held_out_decode,
          &fitted->held_out_mixed, &fitted->caraserve_decode, &fitted->engine, &fitted->engine_linear}) {
      *quality = {.points = ++points, .r2 = 1 - next, .mean_error = next *= 1.6, .p90_error = next *= 1.6};
    }
  }
  profile.between_steps = 3e-5;
  profile.submit_latency = 5e-5;
  profile.requests_per_second = 116.5;
  profile.pace = Pace({{0, 1.25}, {50'000'001, 0.875}, {2 * kNsPerSecond, 1}}, 3 * kNsPerSecond);
  profile.repeat_error = 0.0123;
  profile.disk = {.points = 31, .r2 = -4.5, .mean_error = 0.31, .p90_error = 0.32};
  profile.host_to_device = {.points = 41, .r2 = 0.41, .mean_error = 0.42, .p90_error = 0.43};
  profile.device_to_host = {.points = 51, .r2 = 0.51, .mean_error = 0.52, .p90_error = 0.53};
  return profile;
}

std::string ErrorOf(const json& changed) {
  const auto result = ParsePerformanceProfile(changed.dump(), "FILE");
  return result.ok() ? "" : result.error().message;
}

// The path of each scalar and each list in the file.
std::vector<json::json_pointer> Leaves(const json& object) {
  std::vector<json::json_pointer> leaves;
  const json flat = object.flatten();
  for (const auto& [path, value] : flat.items()) leaves.emplace_back(path);
  return leaves;
}

TEST(PerformanceProfileTest, ReadsWhatItWrote) {
  const std::string text = PerformanceProfileAsJson(SomeProfile());
  const auto read = ParsePerformanceProfile(text, "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(PerformanceProfileAsJson(*read), text);  // the text has every field
  StepLoad load{.prefill_tokens = 100,
                .decode_sequences = 5,
                .prefill_attention = 3000,
                .decode_context = 700,
                .adapter_tokens = 40,
                .rank_sum = 80,
                .max_rank = 64,
                .distinct_adapters = 4,
                .token_ranks = 900,
                .prefill_sequences = 3};
  for (const LoraCostShape shape : {LoraCostShape::kBgmv, LoraCostShape::kMbgmv}) {
    EXPECT_EQ(read->ModelOf(shape).shape, shape);
    EXPECT_EQ(read->ModelOf(shape).SecondsOf(load), SomeProfile().ModelOf(shape).SecondsOf(load));
    EXPECT_EQ(read->ModelOf(shape).device, SomeProfile().device);
    EXPECT_EQ(read->ModelOf(shape).between_steps, 3e-5);
    EXPECT_EQ(read->ModelOf(shape).submit_latency, 5e-5);
    for (const StepLoad& other :
         {StepLoad{.decode_sequences = 3, .after_prefill = 2}, StepLoad{.prefill_tokens = 40}}) {
      EXPECT_EQ(read->ModelOf(shape).SecondsOf(other), SomeProfile().ModelOf(shape).SecondsOf(other));
    }
    EXPECT_EQ(read->ModelOf(shape).disk.latency, 0.001);
    EXPECT_EQ(read->ModelOf(shape).host_to_device.bytes_per_second, 2.5e9);
    EXPECT_EQ(read->ModelOf(shape).device_to_host.bytes_per_second, 3.5e9);
  }
  EXPECT_EQ(read->pace.period(), 3 * kNsPerSecond);
  for (const TimeNs at : std::vector<TimeNs>{0, 50'000'000, 50'000'001, 2'999'999'999}) {
    EXPECT_EQ(read->pace.At(at), SomeProfile().pace.At(at));
  }
  EXPECT_EQ(read->ranks, SomeProfile().ranks);
  EXPECT_EQ(read->base.kv_dtype, "F32");
  EXPECT_EQ(read->mbgmv.caraserve_decode.points, 16);
}

TEST(PerformanceProfileTest, EveryFieldMustBeThereAndOfItsType) {
  const json good = json::parse(PerformanceProfileAsJson(SomeProfile()));
  ASSERT_EQ(ErrorOf(good), "");
  const auto leaves = Leaves(good);
  ASSERT_GT(leaves.size(), 100u);
  for (const json::json_pointer& path : leaves) {
    if (path.parent_pointer() == json::json_pointer("/adapters/ranks")) continue;  // a list may be shorter
    if (path.to_string().find("_factors/") != std::string::npos) continue;         // HostileFactors
    if (path.to_string().find("/changes/") != std::string::npos) continue;         // HostilePace
    SCOPED_TRACE(path.to_string());
    json changed = good;
    changed.at(path.parent_pointer()).erase(path.back());
    EXPECT_NE(ErrorOf(changed).find(path.back()), std::string::npos) << ErrorOf(changed);
    for (const json& wrong : {json(nullptr), json(true), json::array({1}), json::object({{"a", 1}})}) {
      changed = good;
      changed[path] = wrong;
      EXPECT_NE(ErrorOf(changed).find(path.back()), std::string::npos) << wrong << ": " << ErrorOf(changed);
    }
    changed = good;
    changed[path] = good.at(path).is_string() ? json(7) : json("7");
    EXPECT_NE(ErrorOf(changed), "");
  }
}

TEST(PerformanceProfileTest, NoOtherFields) {
  const json good = json::parse(PerformanceProfileAsJson(SomeProfile()));
  for (const char* path : {"", "/model", "/adapters", "/largest_step", "/mbgmv", "/mbgmv/seconds", "/bgmv/held_out",
                           "/links", "/links/disk", "/links/disk/fitted"}) {
    json changed = good;
    changed[json::json_pointer(path)]["surprise"] = 1;
    EXPECT_NE(ErrorOf(changed).find("surprise: no such field"), std::string::npos) << path << ": " << ErrorOf(changed);
  }
  json swapped = good;  // coefficients of the other shape
  std::swap(swapped["mbgmv"]["seconds"], swapped["bgmv"]["seconds"]);
  EXPECT_NE(ErrorOf(swapped), "");
}

TEST(PerformanceProfileTest, ValuesAreInRange) {
  const json good = json::parse(PerformanceProfileAsJson(SomeProfile()));
  const std::vector<std::pair<const char*, json>> bad = {{"/threads", 0},
                                                         {"/threads", 2.5},
                                                         {"/unix_seconds", -1},
                                                         {"/model/hidden_size", 1LL << 40},
                                                         {"/model/name", std::string(2000, 'x')},
                                                         {"/mbgmv/seconds/step", -1e-9},
                                                         {"/mbgmv/seconds/per_rank", 1e300},
                                                         {"/bgmv/seconds/floor", -1},
                                                         {"/mbgmv/token_tile", -1},
                                                         {"/mbgmv/held_out/r2", 1.01},
                                                         {"/mbgmv/held_out/points", -1},
                                                         {"/mbgmv/held_out/mean_error", -0.1},
                                                         {"/links/disk/bytes_per_second", 0},
                                                         {"/links/disk/latency_seconds", -1},
                                                         {"/adapters/ranks", json::array({8, 4})},
                                                         {"/adapters/ranks", json::array({0})},
                                                         {"/adapters/ranks", std::vector<int>(70000, 8)},
                                                         {"/largest_step/positions", 0}};
  for (const auto& [path, value] : bad) {
    json changed = good;
    changed[json::json_pointer(path)] = value;
    const std::string error = ErrorOf(changed);
    EXPECT_NE(error, "") << path;
    EXPECT_LT(error.size(), 2000u) << path;
  }
  json timeless = good;
  for (auto& [key, value] : timeless["bgmv"]["seconds"].items()) value = 0;
  EXPECT_NE(ErrorOf(timeless).find("bgmv.seconds"), std::string::npos);
}

TEST(PerformanceProfileTest, HostileTexts) {
  const std::string good = PerformanceProfileAsJson(SomeProfile());
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string(100000, '['), good + "x",
        good.substr(0, good.size() / 2), std::string("\xff\xfe{}"), std::string("{}"),
        std::string(R"({"format": "loramux-performance-profile"})"), std::string(R"({"format": 1, "version": 1})")}) {
    const auto result = ParsePerformanceProfile(text, "FILE");
    ASSERT_FALSE(result.ok()) << text.substr(0, 100);
    EXPECT_EQ(result.error().message.rfind("FILE", 0), 0u) << result.error().message;
  }
  // A proper prefix is an error (the last byte is an optional newline); changed bytes give an error or a sound profile.
  for (std::size_t i = 0; i + 1 < good.size(); i += 7) {
    EXPECT_FALSE(ParsePerformanceProfile(good.substr(0, i), "FILE").ok());
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 5);
    const auto result = ParsePerformanceProfile(changed, "FILE");
    if (result.ok()) {
      EXPECT_GT(result->mbgmv.model.disk.bytes_per_second, 0);
    }
  }
  // Numbers that overflow must not become infinite seconds.
  json huge = json::parse(good);
  std::string text = huge.dump();
  const std::string step = "\"step\":";
  const std::size_t at = text.find(step) + step.size();
  text.replace(at, text.find(',', at) - at, "1e999");
  EXPECT_FALSE(ParsePerformanceProfile(text, "FILE").ok());
}

TEST(PerformanceProfileTest, AnotherVersionSaysWhatToDo) {
  json changed = json::parse(PerformanceProfileAsJson(SomeProfile()));
  changed["version"] = PerformanceProfile::kVersion + 1;
  EXPECT_NE(ErrorOf(changed).find("loramux profile"), std::string::npos);
}

// A profile of version 4 or earlier.
json EarlierVersion(int version) {
  json earlier = json::parse(PerformanceProfileAsJson(SomeProfile()));
  earlier["version"] = version;
  earlier.erase("device_kind");
  earlier.erase("cpu_assist");
  return earlier;
}

TEST(PerformanceProfileTest, AssistanceIsThereWhereItWasMeasured) {
  const PerformanceProfile all = SomeProfile();
  const auto read = ParsePerformanceProfile(PerformanceProfileAsJson(all), "p").value();
  EXPECT_EQ(read.mbgmv.model.assist, all.mbgmv.model.assist);
  EXPECT_EQ(read.bgmv.model.assist, all.mbgmv.model.assist);
  json without = json::parse(PerformanceProfileAsJson(all));
  without.erase("cpu_assist");
  EXPECT_FALSE(ParsePerformanceProfile(without.dump(), "p").value().mbgmv.model.assist.measured());
  json wrong = json::parse(PerformanceProfileAsJson(all));
  wrong["cpu_assist"]["qkv"]["base_share"] = 1.5;
  EXPECT_NE(ErrorOf(wrong).find("cpu_assist.qkv.base_share: expected a number from 0"), std::string::npos)
      << ErrorOf(wrong);
}

json FirstVersion() {
  json first = EarlierVersion(1);
  for (const char* shape : {"mbgmv", "bgmv"}) first[shape].erase("engine");
  first.erase("submit_latency_seconds");
  first.erase("requests_per_second");
  first.erase("pace");
  return first;
}

TEST(PerformanceProfileTest, TheFirstVersionIsLinear) {
  const auto read = ParsePerformanceProfile(FirstVersion().dump(), "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const StepLoad load{.prefill_tokens = 50, .decode_sequences = 5, .prefill_attention = 3000, .decode_context = 700};
  for (const LoraCostShape shape : {LoraCostShape::kBgmv, LoraCostShape::kMbgmv}) {
    EXPECT_EQ(read->ModelOf(shape).SecondsOf(load), SomeProfile().ModelOf(shape).LinearSecondsOf(load));
    EXPECT_EQ(read->ModelOf(shape).between_steps, 3e-5);
    EXPECT_EQ(read->ModelOf(shape).submit_latency, 0);
  }
  // Written again, it has the current version. Version 1 with a field of a later version is an error.
  EXPECT_TRUE(ParsePerformanceProfile(PerformanceProfileAsJson(*read), "FILE").ok());
  json mixed = FirstVersion();
  mixed["requests_per_second"] = 1;
  EXPECT_NE(ErrorOf(mixed).find("requests_per_second: no such field in version 1"), std::string::npos)
      << ErrorOf(mixed);
}

TEST(PerformanceProfileTest, TheSecondVersionHasNoDecay) {
  json second = EarlierVersion(2);
  second.erase("pace");
  for (const char* shape : {"mbgmv", "bgmv"}) second[shape]["engine"].erase("after_prefill_per_sequence_seconds");
  EXPECT_NE(ErrorOf(second).find("after_prefill_decay: no such field in version 2"), std::string::npos)
      << ErrorOf(second);
  for (const char* shape : {"mbgmv", "bgmv"}) second[shape]["engine"].erase("after_prefill_decay");
  const auto read = ParsePerformanceProfile(second.dump(), "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_GT(read->mbgmv.model.after_prefill, 0);
  EXPECT_EQ(read->mbgmv.model.after_prefill_decay, 0);
}

TEST(PerformanceProfileTest, TheThirdVersionIsAlwaysAsFast) {
  json third = EarlierVersion(3);
  EXPECT_NE(ErrorOf(third).find("after_prefill_per_sequence_seconds: no such field in version 3"), std::string::npos)
      << ErrorOf(third);
  for (const char* shape : {"mbgmv", "bgmv"}) third[shape]["engine"].erase("after_prefill_per_sequence_seconds");
  EXPECT_NE(ErrorOf(third).find("pace: no such field in version 3"), std::string::npos) << ErrorOf(third);
  third.erase("pace");
  const auto read = ParsePerformanceProfile(third.dump(), "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->pace.At(0), 1);
  const auto again = ParsePerformanceProfile(PerformanceProfileAsJson(*read), "FILE");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->pace.changes().empty());
}

TEST(PerformanceProfileTest, HostilePace) {
  const json good = json::parse(PerformanceProfileAsJson(SomeProfile()));  // period of 3 s
  json many = json::array(), longest = json::array();
  for (std::size_t i = 0; i <= kMaxPaceChanges; ++i) {
    many.push_back(json::array({static_cast<double>(i) * 1e-4, 1}));
    if (i < kMaxPaceChanges) longest.push_back(many.back());
  }
  const auto one = [](auto... values) { return json::array({json::array({values...})}); };
  for (const json& wrong : {many,
                            json(3),
                            json("[]"),
                            json::object({{"1", 1}}),
                            json::array({1, 2}),
                            one(1),
                            one(1, 1, 1),
                            one(-1, 1),
                            one(1, 0),
                            one(1, -1),
                            one(1, 1e4),
                            one(1, "1"),
                            one("1", 1),
                            one(nullptr, 1),
                            one(3, 1),
                            one(1e300, 1),
                            one(2.9999999999, 1),
                            json::array({json::array({1, 1}), json::array({1, 2})}),
                            json::array({json::array({1, 1}), json::array({1.0000000001, 2})}),
                            json::array({json::array({2, 1}), json::array({1, 2})})}) {
    json changed = good;
    changed["pace"]["changes"] = wrong;
    const std::string error = ErrorOf(changed);
    EXPECT_NE(error.find("pace.changes: "), std::string::npos) << wrong.dump().substr(0, 80) << ": " << error;
    EXPECT_LT(error.size(), 2000u);
  }
  for (const json& right : {json::array(), longest}) {
    json changed = good;
    changed["pace"]["changes"] = right;
    EXPECT_EQ(ErrorOf(changed), "");
  }
  // the last change is at 2 s
  for (const json& wrong : {json(-1), json(1e9), json(0), json(2), json("3"), json(nullptr)}) {
    json changed = good;
    changed["pace"]["period_seconds"] = wrong;
    EXPECT_NE(ErrorOf(changed).find("pace."), std::string::npos) << wrong;
  }
}

TEST(PerformanceProfileTest, HostileFactors) {
  const json good = json::parse(PerformanceProfileAsJson(SomeProfile()));
  json many = json::array(), longest = json::array();
  for (int i = 1; i <= 100000; ++i) {
    many.push_back(json::array({i, 1}));
    if (i <= static_cast<int>(kMaxFactors)) longest.push_back(json::array({i, 1}));
  }
  for (const char* table :
       {"/mbgmv/engine/decode_factors", "/bgmv/engine/prefill_factors", "/mbgmv/engine/mixed_factors"}) {
    const json::json_pointer path(table);
    for (const json& wrong :
         {many, json(nullptr), json(3), json("[]"), json::object({{"1", 1}}), json::array({1, 2}),
          json::array({json::array({1})}), json::array({json::array({1, 1, 1})}), json::array({json::array({0, 1})}),
          json::array({json::array({-1, 1})}), json::array({json::array({1e10, 1})}),
          json::array({json::array({1, 0})}), json::array({json::array({1, -1})}), json::array({json::array({1, 101})}),
          json::array({json::array({1, "1"})}), json::array({json::array({nullptr, 1})}),
          json::array({json::array({1, 1}), json::array({1, 2})}),
          json::array({json::array({2, 1}), json::array({1, 2})})}) {
      json changed = good;
      changed[path] = wrong;
      const std::string error = ErrorOf(changed);
      EXPECT_NE(error.find(path.back()), std::string::npos) << wrong.dump().substr(0, 80) << ": " << error;
      EXPECT_LT(error.size(), 2000u);
    }
    for (const json& right : {json::array(), longest}) {
      json changed = good;
      changed[path] = right;
      EXPECT_EQ(ErrorOf(changed), "");
    }
  }
  // JSON has no NaN, and numbers that overflow are errors.
  std::string text = good.dump();
  const std::size_t at = text.find("1.25", text.find("decode_factors"));
  for (const char* number : {"NaN", "1e999", "-1e999"}) {
    std::string changed = text;
    EXPECT_FALSE(ParsePerformanceProfile(changed.replace(at, 4, number), "FILE").ok()) << number;
  }
}

TEST(PerformanceProfileTest, TheFourthVersionIsOfACpu) {
  json fourth = EarlierVersion(4);
  const auto read = ParsePerformanceProfile(fourth.dump(), "FILE");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->device_kind, "cpu");
  fourth["device_kind"] = "cuda";
  EXPECT_NE(ErrorOf(fourth).find("device_kind: no such field in version 4"), std::string::npos) << ErrorOf(fourth);
  json fifth = json::parse(PerformanceProfileAsJson(SomeProfile()));
  fifth["device_kind"] = "tpu";
  EXPECT_NE(ErrorOf(fifth).find("device_kind: expected one of cpu, cuda, emulated, found \"tpu\""), std::string::npos)
      << ErrorOf(fifth);
}

TEST(PerformanceProfileTest, OtherDevicesAreTold) {
  PerformanceProfile profile = SomeProfile();
  EXPECT_TRUE(CheckSameDevice(profile, "emulated", "another processor, 3 threads", "FILE").ok());
  profile.device_kind = "cpu";
  profile.device = "AMD EPYC, 2 threads";
  const Status status = CheckSameDevice(profile, "cuda", "NVIDIA H100", "FILE");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.error().message,
            "FILE: measured on the device cpu (AMD EPYC, 2 threads), but this is cuda (NVIDIA H100): measure with "
            "`loramux profile --device cuda`, or choose --device cpu");
}

TEST(PerformanceProfileTest, OtherShapesAreTold) {
  PerformanceProfile::BaseModel measured = SomeProfile().base, other = measured;
  other.name = "other";
  other.digest = "fedc";  // other weights of the same shape take equally long
  EXPECT_TRUE(CheckSameShape(measured, other, "FILE").ok());
  other.intermediate_size = 1024;
  const Status status = CheckSameShape(measured, other, "FILE");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("another shape"), std::string::npos);
  EXPECT_NE(status.error().message.find("intermediate_size is 512, not 1024"), std::string::npos)
      << status.error().message;
}

TEST(PerformanceProfileTest, FilesThatAreNone) {
  const auto missing = LoadPerformanceProfile("/no/such/file.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(LoadPerformanceProfile("/dev/zero").ok());
  EXPECT_FALSE(LoadPerformanceProfile("/tmp").ok());
}

}  // namespace
}  // namespace loramux::performance_profile_test
