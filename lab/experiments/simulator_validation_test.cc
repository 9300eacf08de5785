#include <array>
#include <fstream>

#include <gtest/gtest.h>

#include "base/text_file.h"
#include "lab/experiments/validation_report.h"
#include "lab/experiments/validation_run.h"

namespace loramux::simulator_validation_test {
namespace {

TEST(ValidationWorkloadTest, ArrivalsAndLengthsAsAsked) {
  const EngineLoad load{.rate = 500,
                        .seconds = 8,
                        .adapters = 4,
                        .input_mean = 60,
                        .output_mean = 20,
                        .max_input = 200,
                        .max_output = 64,
                        .vocab = 50};
  const std::vector<EngineRequest> requests = DrawRequests(load);
  ASSERT_NEAR(static_cast<double>(requests.size()), 4000, 300);  // Poisson: 63 is a standard deviation
  double input = 0, output = 0;
  TimeNs before = 0;
  std::vector<int> asked(4, 0);
  for (const EngineRequest& request : requests) {
    EXPECT_LE(before, request.due);
    EXPECT_LT(request.due, 8 * kNsPerSecond);
    before = request.due;
    EXPECT_GE(request.prompt.size(), 2U);
    EXPECT_LE(request.prompt.size(), 200U);
    EXPECT_GE(request.output_tokens, 2);
    EXPECT_LE(request.output_tokens, 64);
    for (const TokenId token : request.prompt) EXPECT_LT(token, 50);
    input += static_cast<double>(request.prompt.size()) / static_cast<double>(requests.size());
    output += static_cast<double>(request.output_tokens) / static_cast<double>(requests.size());
    ++asked.at(request.adapter);
  }
  EXPECT_NEAR(input, 60, 4);
  EXPECT_NEAR(output, 20, 2);
  for (std::size_t i = 1; i < asked.size(); ++i) EXPECT_LT(asked[i], asked[i - 1]);
}

TEST(ValidationWorkloadTest, OneSeedOneWorkload) {
  const EngineLoad load{.rate = 50, .seconds = 1};
  EngineLoad other = load;
  other.seed = 2;
  const auto a = DrawRequests(load), b = DrawRequests(load), c = DrawRequests(other);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].due, b[i].due);
    EXPECT_EQ(a[i].prompt, b[i].prompt);
  }
  EXPECT_NE(a.front().prompt, c.front().prompt);
}

TEST(ValidationWorkloadTest, TheSimulatorIsAskedTheSameAtTheTimesOfSending) {
  const std::vector<EngineRequest> requests = DrawRequests({.rate = 20, .seconds = 1, .adapters = 2});
  std::vector<TimeNs> sent;
  for (const EngineRequest& request : requests) sent.push_back(request.due + 7);
  const Workload workload = AsWorkload(requests, sent, {8, 16});
  ASSERT_EQ(workload.requests.size(), requests.size());
  EXPECT_EQ(workload.adapter_ranks, (std::vector<std::int64_t>{8, 16}));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(workload.requests[i].arrival, requests[i].due + 7);
    EXPECT_EQ(workload.requests[i].adapter, static_cast<std::int32_t>(requests[i].adapter));
    EXPECT_EQ(workload.requests[i].input_tokens, static_cast<std::int32_t>(requests[i].prompt.size()));
    EXPECT_EQ(workload.requests[i].output_tokens, requests[i].output_tokens);
  }
}

// Presets after other systems bring the work of those programs, which the real run does not have.
TEST(ValidationWorkloadTest, TheSimulatedProgramIsThisOne) {
  const ValidationHouse house{.ranks = {8}, .host_bytes = 1 << 20};
  const std::vector<EngineRequest> requests = {{.prompt = std::vector<TokenId>(16, 1), .output_tokens = 8}};
  RealRun real{.device_pages = 64, .bytes_per_rank = 64, .adapter_pages = {1}};
  real.geometry.kv.page_tokens = 16;
  real.geometry.page_bytes = 1024;
  real.run.requests.emplace_back();
  PerformanceProfile profile;
  profile.mbgmv.model.step = 1e-3;
  const Preset published = FindPreset("chameleon").value();
  ASSERT_GT(published.program.request_seconds, 0);
  Preset here = published;
  here.program = {};
  const auto simulated = RunSimulated(house, published, requests, real, profile);
  const auto expected = RunSimulated(house, here, requests, real, profile);
  ASSERT_TRUE(simulated.ok() && expected.ok());
  EXPECT_GT(simulated->requests.at(0).last_token, 7 * kNsPerMs);
  EXPECT_EQ(simulated->requests.at(0).last_token, expected->requests.at(0).last_token);
}

// A request is simulated with a model fitted to the steps of the other turns, which include almost none of the steps
// that served it.
TEST(ValidationTurnsTest, StepsAndRequestsBelongToTheirTurns) {
  constexpr TimeNs kTenth = kTurn / 10;
  EngineRun run;
  run.requests = {{.sent = kTenth}, {.sent = 11 * kTenth}, {.sent = 25 * kTenth}};
  run.steps = {{.begin = kTenth, .seconds_ns = 7 * kTenth},
               {.begin = 9 * kTenth, .gap = kTenth, .seconds_ns = 2 * kTenth},  // into the next turn
               {.begin = 11 * kTenth, .gap = 0, .seconds_ns = 8 * kTenth},
               {.begin = 21 * kTenth, .gap = 2 * kTenth, .seconds_ns = kTenth}};
  run.end = 30 * kTenth;
  const std::array<EngineRun, 2> turns = StepsByTurns(run);
  ASSERT_EQ(turns[0].steps.size(), 3U);
  ASSERT_EQ(turns[1].steps.size(), 1U);
  EXPECT_EQ(turns[0].steps[1].seconds_ns, 2 * kTenth);
  EXPECT_EQ(turns[0].steps[2].seconds_ns, kTenth);
  EXPECT_EQ(turns[1].steps[0].seconds_ns, 8 * kTenth);
  EXPECT_EQ(turns[0].requests.size(), 3U);
  EXPECT_EQ(turns[1].requests.size(), 3U);
  EXPECT_EQ(turns[0].end, run.end);
  EXPECT_EQ(turns[1].end, run.end);

  std::array<SimulatedRun, 2> simulated;
  for (std::int32_t turn = 0; turn < 2; ++turn) {
    for (const ServedRequest& request : run.requests) {
      simulated[static_cast<std::size_t>(turn)].requests.push_back({.sent = request.sent, .tokens = turn});
    }
  }
  const SimulatedRun merged = ByTurns(simulated);
  ASSERT_EQ(merged.requests.size(), 3U);
  EXPECT_EQ(merged.requests[0].tokens, 0);
  EXPECT_EQ(merged.requests[1].tokens, 1);
  EXPECT_EQ(merged.requests[2].tokens, 0);
}

// Steps should take 10 or 20 ms, by the models of their turns.
TEST(ValidationTurnsTest, TheOwnPaceIsThatOfTheStepsOfBothTurns) {
  std::array<PerformanceProfile, 2> profiles;
  profiles[0].mbgmv.model.step = 10e-3;
  profiles[1].mbgmv.model.step = 20e-3;
  std::array<EngineRun, 2> turns;
  turns[0].steps = {{.begin = 0, .seconds_ns = 30 * kNsPerMs},
                    {.begin = 30 * kNsPerMs, .seconds_ns = 500 * kNsPerMs, .plain = false},  // it waited
                    {.begin = 530 * kNsPerMs, .seconds_ns = 5 * kNsPerMs}};                  // long after the first
  turns[1].steps = {{.begin = 200 * kNsPerMs, .seconds_ns = 30 * kNsPerMs},
                    {.begin = 230 * kNsPerMs, .seconds_ns = 36 * kNsPerMs}};
  const Pace pace = OwnPaceOf(turns, profiles);
  EXPECT_DOUBLE_EQ(pace.At(0), 2);  // 60 ms of 30
  EXPECT_DOUBLE_EQ(pace.At(229 * kNsPerMs), 2);
  EXPECT_DOUBLE_EQ(pace.At(230 * kNsPerMs), 1.8);
  EXPECT_DOUBLE_EQ(pace.At(530 * kNsPerMs), 0.5);
}

TEST(ValidationReportTest, FiguresOfWhatWasSentAfterTheWarmUp) {
  const std::vector<ServedRequest> requests = {
      {.sent = 0, .first_token = 90 * kNsPerMs, .last_token = 900 * kNsPerMs, .tokens = 2},  // warm-up
      {.sent = kNsPerMs, .first_token = 3 * kNsPerMs, .last_token = 9 * kNsPerMs, .tokens = 4},
      {.sent = 2 * kNsPerMs, .first_token = 6 * kNsPerMs, .last_token = 16 * kNsPerMs, .tokens = 6},
      {.sent = 3 * kNsPerMs, .first_token = 9 * kNsPerMs, .last_token = 9 * kNsPerMs, .tokens = 1}};
  const LatencyFigures figures = FiguresOf(requests, kNsPerMs);
  EXPECT_DOUBLE_EQ(figures.tpot_ms, 2);
  EXPECT_DOUBLE_EQ(figures.ttft_p50_ms, 4);
  EXPECT_DOUBLE_EQ(figures.ttft_p90_ms, 5.6);
}

ValidationRun SomeRun(const std::string& preset, double tpot_ratio, double p90_ratio) {
  ValidationRun run{.preset = preset,
                    .load_percent = 40,
                    .rate = 10,
                    .saturation = 25,
                    .requests = 30,
                    .real = {.tpot_ms = 2, .ttft_p50_ms = 3, .ttft_p90_ms = 4},
                    .fitted_steps = 77,
                    .fit_error = 0.01,
                    .busy = 0.5};
  run.simulated = {.tpot_ms = 2 * tpot_ratio, .ttft_p50_ms = 3, .ttft_p90_ms = 4 * p90_ratio};
  run.even = run.beside = run.linear = run.once = run.simulated;
  return run;
}

TEST(ValidationReportTest, RunsSurviveTheirFile) {
  const std::string file = testing::TempDir() + "/validation_runs.jsonl";
  ASSERT_TRUE(
      WriteTextFile(file, RunAsJsonLine(SomeRun("fifo", 1.01, 1.2)) + RunAsJsonLine(SomeRun("loramux", 1, 1))).ok());
  const auto runs = ReadRuns(file);
  ASSERT_TRUE(runs.ok()) << runs.error().message;
  ASSERT_EQ(runs->size(), 2U);
  EXPECT_EQ(RunAsJsonLine(runs->front()), RunAsJsonLine(SomeRun("fifo", 1.01, 1.2)));
  EXPECT_EQ(runs->back().preset, "loramux");
  EXPECT_EQ(runs->back().fitted_steps, 77);
  ASSERT_TRUE(WriteTextFile(file, RunAsJsonLine(SomeRun("fifo", 1, 1)) + "{\"preset\": 3}\n").ok());
  const auto broken = ReadRuns(file);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos) << broken.error().message;
}

// Each repetition is compared with its own real run, however much the machine's speed changes before the next.
TEST(ValidationReportTest, AMachineThatChangesBetweenRepetitionsChangesNoDifference) {
  ValidationReport report{.command = "c", .machine = "m", .date = "d", .setting = "s", .runs = {}};
  struct Repetition {
    double machine, tpot_ratio;
  };
  for (const auto& [machine, tpot_ratio] : {Repetition{1, 1.05}, Repetition{1.5, 1.01}, Repetition{0.6, 1.01}}) {
    ValidationRun& run = report.runs.emplace_back(SomeRun("fifo", tpot_ratio, 1));
    run.real.tpot_ms *= machine;
    run.simulated.tpot_ms *= machine;
  }
  EXPECT_EQ(OutsideBounds(report), 0);  // comparing the medians would give 1.05
  for (ValidationRun& run : report.runs) run.simulated.tpot_ms = run.real.tpot_ms * 1.04;
  EXPECT_EQ(OutsideBounds(report), 1);
}

// Medians count; a single disturbed repetition does not.
TEST(ValidationReportTest, CountsFiguresOutsideTheirBounds) {
  ValidationReport report{.command = "c", .machine = "m", .date = "d", .setting = "s", .runs = {}};
  report.runs = {SomeRun("fifo", 1.02, 1.09), SomeRun("fifo", 0.98, 0.95), SomeRun("fifo", 1.3, 1.5)};
  EXPECT_EQ(OutsideBounds(report), 0);
  report.runs.push_back(SomeRun("loramux", 0.96, 1.09));  // TPOT
  report.runs.push_back(SomeRun("s-lora", 1.031, 0.89));  // both
  EXPECT_EQ(OutsideBounds(report), 3);
  const std::string folder = testing::TempDir() + "/validation_report";
  ASSERT_TRUE(WriteReport(report, folder).ok());
  const auto text = ReadTextFile(folder + "/simulator_validation.md");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("6 of 9 figures are within"), std::string::npos) << *text;
  EXPECT_NE(text->find("**-4.0**"), std::string::npos) << *text;
  EXPECT_NE(text->find("-2.0 to +30.0"), std::string::npos) << *text;
}

}  // namespace
}  // namespace loramux::simulator_validation_test
