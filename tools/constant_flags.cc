#include "tools/constant_flags.h"

#include <array>
#include <string>

#include <fmt/format.h>

namespace loramux {
namespace {

// One constant: most are numbers with a unit and a range.
struct Constant {
  const char* names;
  FlagTarget target;
  const char *unit, *help;
  std::pair<double, double> range;
};

TimeNs Nanoseconds(double seconds) { return static_cast<TimeNs>(seconds * static_cast<double>(kNsPerSecond)); }

void AddLookaheadFlag(CommandLine& line, const std::string& group, DocumentConstants& c) {
  line.Add({.names = "--prefetch-lookahead",
            .target = &c.prefetch_lookahead,
            .unit = "N",
            .group = group,
            .help = "Waiting requests whose adapters are loaded ahead, with presets whose steps wait for adapters "
                    "(vLLM-LoRA: 10)",
            .default_text = "the preset's",
            .range = {{0, 1 << 20}}});
}

}  // namespace

void AddConstantFlags(CommandLine& line, ConstantFlags& flags) {
  DocumentConstants& c = flags.constants;
  const std::array constants = std::to_array<Constant>({
      {"--score-frequency",
       &c.score.frequency,
       "WEIGHT",
       "F of the score of --cache chameleon (Chameleon 4.2)",
       {0, 1e6}},
      {"--score-recency", &c.score.recency, "WEIGHT", "R of that score", {0, 1e6}},
      {"--score-size", &c.score.size, "WEIGHT", "S of that score", {0, 1e6}},
      {"--size-input-weight",
       &c.input_weight,
       "WEIGHT",
       "A of the weighted request size of mlq (Chameleon 4.3.1)",
       {0, 1e6}},
      {"--size-output-weight", &c.output_weight, "WEIGHT", "B of that size", {0, 1e6}},
      {"--most-lanes", &c.most_lanes, "N", "K_max: the most lanes of mlq (Chameleon 4.3.2)", {1, kMaxLanes}},
      {"--lane-refresh",
       &flags.lane_refresh,
       "SECONDS",
       "T_refresh: time after which lanes are fitted again (Chameleon 4.3.2)",
       {0.001, 86400}},
      {"--expect-bin",
       &flags.expect_bin,
       "SECONDS",
       "Width of the 240 bins of --adapter-prefetch histogram; 60 in Shahrad et al.",
       {0.001, 3600}},
      {"--expect-variation",
       &c.expectation.least_variation,
       "RATIO",
       "Least coefficient of variation of the bins' counts for which an adapter is expected (Shahrad et al.)",
       {0, 1000}},
      {"--swap-upper",
       &c.swapping.upper,
       "SHARE",
       "Share of the device's pages above which --cache fastlibra frees pages (FastLibra 5.3)",
       {0, 1}},
      {"--swap-lower", &c.swapping.lower, "SHARE", "Share below which it brings pages back", {0, 1}},
      {"--swap-interval",
       &flags.swap_interval,
       "SECONDS",
       "Time between two looks at these thresholds (FastLibra 5.3)",
       {0.001, 3600}},
      {"--batch-window",
       &flags.batch_window,
       "SECONDS",
       "Time over which the mean batch is taken, for the number of adapters wanted (FastLibra 5.1)",
       {0.001, 3600}},
  });
  const std::string group = "Constants of the source documents";
  for (const Constant& constant : constants) {
    line.Add({.names = constant.names,
              .target = constant.target,
              .unit = constant.unit,
              .group = group,
              .help = constant.help,
              .range = constant.range});
  }
  AddLookaheadFlag(line, group, c);
}

Result<DocumentConstants> ConstantsOf(const ConstantFlags& flags) {
  DocumentConstants constants = flags.constants;
  if (constants.swapping.lower > constants.swapping.upper) {
    return InvalidArgument(fmt::format("--swap-lower: expected at most --swap-upper, {:g}, found {:g}",
                                       constants.swapping.upper, constants.swapping.lower),
                           "--swap-lower");
  }
  constants.lane_refresh = Nanoseconds(flags.lane_refresh);
  constants.expectation.bin = Nanoseconds(flags.expect_bin);
  constants.swapping.interval = Nanoseconds(flags.swap_interval);
  constants.batch_window = Nanoseconds(flags.batch_window);
  return constants;
}

}  // namespace loramux
