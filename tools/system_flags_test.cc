// `serve` and `simulate` mean the same by the same flags.
#include <gtest/gtest.h>

#include "runtime/choose_device.h"
#include "simulate/simulated_server.h"
#include "tools/idle_flags.h"
#include "tools/runtime_flags.h"
#include "tools/system_flags.h"

namespace loramux::system_flags_test {
namespace {

constexpr std::int64_t kMaxModelLen = 3000;

// What the server makes of the flags when it starts, with the model's longest sequence.
SystemSpec Served(std::string_view preset, const SettingFlags& settings) {
  RuntimeFlags flags;
  flags.preset = preset;
  flags.settings = settings;
  SystemSpec spec = RuntimeOptionsOf(flags).value().spec;
  EXPECT_TRUE(Complete(spec, kMaxModelLen).ok());
  return spec;
}

// What the simulator makes of the same flags.
SystemSpec Simulated(std::string_view preset, const SettingFlags& settings) {
  SimulationOptions options{.preset = FindPreset(preset).value()};
  EXPECT_TRUE(settings.ApplyTo(options.preset.spec).ok());
  return SpecOf(options, kMaxModelLen).value();
}

// Left out are the size of a page and of the memory, a simulation's draw, and the policy for cold starts where a preset
// leaves it open.
void ExpectSame(std::string_view preset, const SettingFlags& settings) {
  const SystemSpec served = Served(preset, settings), simulated = Simulated(preset, settings);
  for (const Setting& setting : kSettings) {
    if (setting.key == "page_tokens" || setting.key == "total_tokens" || setting.key == "swap_draw") continue;
    if (setting.key == "cold_start_policy" && !settings.Gives("--cold-start")) continue;
    EXPECT_EQ(setting.get(served), setting.get(simulated)) << setting.key;
  }
}

// A value that the flag takes, and that differs from the default.
SettingValue Another(const Setting& setting) {
  SettingValue value = setting.get(SystemSpec());
  if (auto* on = std::get_if<bool>(&value)) *on = !*on;
  if (auto* number = std::get_if<double>(&value)) *number = (*number + setting.flag_range.high) / 2;
  if (auto* text = std::get_if<std::string>(&value)) *text = setting.key == "cache" ? "gdsf" : "mlq";
  if (auto* number = std::get_if<std::int64_t>(&value)) {
    if (!setting.values.empty()) {
      *number = (*number + 1) % static_cast<std::int64_t>(setting.values.size());
    } else {
      *number = setting.is_time() ? 7 * kNsPerSecond : static_cast<std::int64_t>(setting.flag_range.high) / 2;
    }
  }
  return value;
}

TEST(SystemFlags, MeanTheSameInServeAndSimulate) {
  for (const Preset& preset : Presets()) {
    if (preset.all_on_device) continue;  // only simulated
    SCOPED_TRACE(preset.name);
    ExpectSame(preset.name, {});
    for (const Setting& setting : kSettings) {
      if (setting.flag.empty() || setting.use != SettingUse::kEverywhere) continue;
      // A server computes prompts in chunks where it is told their size, the simulator as the preset has it. The time
      // of a step needs a profile (below).
      if (setting.group == SettingGroup::kBatching && !preset.spec.chunked_prefill && setting.key != "max_running")
        continue;
      if (setting.key == "max_decode_step") continue;
      SCOPED_TRACE(setting.flag);
      const std::string flag(setting.flag.substr(0, setting.flag.find(',')));
      SettingFlags settings;
      settings.Give(flag, Another(setting));
      ASSERT_TRUE(settings.Gives(flag));
      SystemSpec spec;
      ASSERT_TRUE(settings.ApplyTo(spec).ok());
      EXPECT_EQ(setting.get(spec), Another(setting));
      ExpectSame(preset.name, settings);
    }
  }
}

TEST(SystemFlags, RefuseWhatIsNoValue) {
  SettingFlags settings;
  SystemSpec spec;
  settings.Give("--cold-start", std::string("soon"));
  const Status unknown = settings.ApplyTo(spec);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message, "--cold-start: expected wait, assist or auto, found 'soon'");
  EXPECT_EQ(unknown.error().param, "--cold-start");
  settings = {};
  settings.Give("--swap-lower", 0.9);
  settings.Give("--swap-upper", 0.8);
  const Status crossed = settings.ApplyTo(spec);
  ASSERT_FALSE(crossed.ok());
  EXPECT_EQ(crossed.error().message, "--swap-lower: expected at most --swap-upper, 0.8, found 0.9");
}

// The time of a step is predicted, so a server needs a profile for it; the simulator has the model of its device. It
// must also be possible: otherwise every request would run alone.
TEST(SystemFlags, ABoundOnDecodingStepsNeedsAModel) {
  RuntimeFlags serve;
  serve.settings.Give("--max-decode-step", 100 * kNsPerMs);
  const auto made = RuntimeOptionsOf(serve);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("--max-decode-step: expected --profile FILE"), std::string::npos)
      << made.error().message;
  const PerformanceModel model{.step = 0.02};
  EXPECT_TRUE(CheckMaxDecodeStep({.max_decode_step = 20 * kNsPerMs}, &model).ok());
  const Status impossible = CheckMaxDecodeStep({.max_decode_step = 19 * kNsPerMs}, &model);
  ASSERT_FALSE(impossible.ok());
  EXPECT_NE(impossible.error().message.find("expected at least 0.02 seconds"), std::string::npos)
      << impossible.error().message;
  EXPECT_TRUE(CheckMaxDecodeStep({}, nullptr).ok());
  const SystemSpec simulated = Simulated("loramux", serve.settings);
  EXPECT_EQ(simulated.max_decode_step, 100 * kNsPerMs);
  EXPECT_NE(simulated.costs, nullptr);
}

// The flags that the warnings of `flags` name as without effect.
std::vector<std::string> Idle(RuntimeFlags flags, std::vector<std::string> given) {
  flags.given = std::move(given);
  std::vector<std::string> names;
  for (const std::string& warning : WarningsOfIdle(flags, RuntimeOptionsOf(flags).value())) {
    names.push_back(warning.substr(0, warning.find(": no effect: ")));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(IdleFlags, AreNamedOnlyIfTheyWereGiven) {
  RuntimeFlags flags;
  flags.max_cpu_loras = 8;
  EXPECT_EQ(Idle(flags, {"--max-cpu-loras"}), Names{"--max-cpu-loras"});
  EXPECT_EQ(Idle(flags, {}), Names{});
  flags.max_cpu_loras = 0;  // no bound, as it is
  EXPECT_EQ(Idle(flags, {"--max-cpu-loras"}), Names{});
}

TEST(IdleFlags, OnADeviceAndOnACpu) {
  RuntimeFlags cpu;
  cpu.lora_variant = "bgmv";
  cpu.assist_cores = 2;
  cpu.settings.Give("--cold-start", std::string("assist"));
  const Names given = {"--assist-cores", "--cold-start"};
  EXPECT_EQ(Idle(cpu, given), Names{"--assist-cores"});
  RuntimeFlags device = cpu;
  device.options.device = ChooseDevice("emulated", /*batch_invariant=*/false).value();
  const auto refused = RuntimeOptionsOf(device);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "--lora-variant");
  device.lora_variant = "mbgmv";
  EXPECT_EQ(Idle(device, given), Names{});
  device.host_memory = "0";
  EXPECT_EQ(Idle(device, given), (Names{"--cold-start", "--assist-cores"}));
  device.settings.Give("--cold-start", std::string("wait"));
  EXPECT_EQ(Idle(device, given), Names{"--assist-cores"});
}

TEST(IdleFlags, OfAPartAndABoundForAdapters) {
  const Names given = {"--adapter-share", "--max-loras-bound"};
  RuntimeFlags flags;
  EXPECT_EQ(Idle(flags, given), Names{"--max-loras-bound"});
  flags.settings.Give("--max-loras", std::int64_t{4});
  flags.settings.Give("--adapter-memory", std::int64_t{1} << 20);
  EXPECT_EQ(Idle(flags, given), Names{"--adapter-share"});
}

TEST(IdleFlags, OfACacheRegime) {
  const Names score = {"--score-frequency", "--score-size"}, swap = {"--swap-lower"}, window = {"--batch-window"};
  const auto idle = [](const std::string& cache, const Names& given) {
    RuntimeFlags flags;
    flags.settings.Give("--cache", cache);
    return !Idle(flags, given).empty();
  };
  EXPECT_TRUE(idle("lru", score) && idle("lru", swap) && idle("lru", window));
  EXPECT_TRUE(idle("lru", {"--usage-window"}));
  for (const char* cache : {"chameleon", "loramux", "gdsf"}) EXPECT_FALSE(idle(cache, {"--usage-window"})) << cache;
  EXPECT_TRUE(idle("loramux", {"--score-time-unit"}) && idle("fastlibra-wos", {"--score-time-unit"}));
  EXPECT_FALSE(idle("fastlibra-wol", {"--score-time-unit"}));
  EXPECT_TRUE(idle("s-lora", {"--swap-out"}));
  EXPECT_FALSE(idle("lru", {"--adapters-in-host"}));
  EXPECT_FALSE(idle("loramux", {"--swap-out"}));
  EXPECT_FALSE(idle("chameleon", score));
  EXPECT_FALSE(idle("fastlibra", swap) || idle("fastlibra", window) || idle("loramux", window));
  EXPECT_FALSE(idle("fastlibra-wos", swap));
  EXPECT_TRUE(idle("fastlibra-wos", window));
  RuntimeFlags history;
  history.settings.Give("--enable-prefix-caching", true);
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{});
  history.preset = "s-lora";
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{"--enable-prefix-caching"});
  history.settings.Give("--enable-prefix-caching", false);
  EXPECT_EQ(Idle(history, {"--enable-prefix-caching"}), Names{});
}

TEST(IdleFlags, OfAQueueOrderOrAPreset) {
  const Names lanes = {"--request-size", "--lane-count", "--size-input-weight", "--ttft-objective"};
  const auto idle = [&](const std::string& order) {
    RuntimeFlags flags;
    flags.settings.Give("--schedule", order);
    return Idle(flags, lanes);
  };
  EXPECT_EQ(idle("mlq"), Names{});
  EXPECT_EQ(idle("mlq-static"), (Names{"--lane-count", "--ttft-objective"}));
  EXPECT_EQ(idle("objective"), (Names{"--request-size", "--lane-count", "--size-input-weight"}));
  EXPECT_EQ(idle("sjf"), lanes);
  RuntimeFlags preset;
  preset.preset = "chameleon-output-only";
  EXPECT_EQ(Idle(preset, {"--size-input-weight", "--size-output-weight", "--tenant-weight"}),
            (Names{"--size-input-weight, --size-output-weight", "--tenant-weight"}));
  EXPECT_EQ(Idle(preset, {"--prefetch-lookahead"}), Names{});
  preset.preset = "s-lora";
  EXPECT_EQ(Idle(preset, {"--prefetch-lookahead"}), Names{"--prefetch-lookahead"});
  preset.preset = "vllm-lora-prefetch";
  EXPECT_EQ(Idle(preset, {"--prefetch-lookahead"}), Names{});
  EXPECT_EQ(Idle(preset, {"--cold-start"}), Names{});  // it waits
  preset.settings.Give("--cold-start", std::string("auto"));
  EXPECT_EQ(Idle(preset, {"--cold-start"}), Names{"--cold-start"});
}

TEST(IdleFlags, OfAModelOnTheDisk) {
  RuntimeFlags flags;
  EXPECT_EQ(Idle(flags, {"--revision"}), Names{"--revision"});
  flags.model_name = "org/name";
  EXPECT_EQ(Idle(flags, {"--revision"}), Names{});
}

}  // namespace
}  // namespace loramux::system_flags_test
