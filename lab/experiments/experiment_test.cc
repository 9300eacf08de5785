#include "lab/experiments/experiment.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/file.h"
#include "formats/test_files.h"
#include "lab/experiments/assumption_rows.h"
#include "lab/experiments/claims.h"
#include "lab/experiments/fastlibra_load.h"
#include "lab/experiments/lora_batching.h"
#include "lab/experiments/report.h"

namespace loramux::experiment_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Words, ShowsChangesAndFactors) {
  EXPECT_EQ(ShowChange(-0.2464), "-24.6 %");
  EXPECT_EQ(ShowChange(0.05), "+5.0 %");
  EXPECT_EQ(ShowFactor(1.5), "1.50x");
  EXPECT_DOUBLE_EQ(Change(3, 4), -0.25);
  EXPECT_DOUBLE_EQ(Change(3, 0), 0);
}

TEST(Parallel, CallsEachOnceAndReportsTheFirstError) {
  ExperimentContext context{.threads = 3};
  std::vector<int> calls(100, 0);
  EXPECT_TRUE(ParallelFor(context, calls.size(), [&](std::size_t i) -> Status {
                ++calls[i];
                return Ok{};
              }).ok());
  EXPECT_EQ(calls, std::vector<int>(100, 1));
  const Status failed = ParallelFor(context, 50, [&](std::size_t i) -> Status {
    if (i == 7 || i == 31) return InvalidArgument("job " + std::to_string(i), "");
    return Ok{};
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "job 7");
  EXPECT_TRUE(ParallelFor(context, 0, [](std::size_t) -> Status { return InvalidArgument("never", ""); }).ok());
}

SimulationJob SmallJob(double rate) {
  SimulationJob job;
  job.options.device = DescribeDevice(FindDevice("a40").value(), FindModel("llama-7b").value()).value();
  job.options.preset = FindPreset("chameleon").value();
  job.options.preset.spec.objective = kNsPerSecond;
  job.load = {.requests = 200, .rate = rate, .input_mean = 200, .output_mean = 20};
  return job;
}

TEST(Simulations, DoNotDependOnTheNumberOfThreads) {
  std::vector<SimulationJob> jobs;
  for (const double rate : {5.0, 20.0, 40.0, 10.0, 80.0}) jobs.push_back(SmallJob(rate));
  ExperimentContext one{.threads = 1}, several{.threads = 4};
  const auto first = SimulateAll(one, jobs).value(), second = SimulateAll(several, jobs).value();
  ASSERT_EQ(first.size(), jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(first[i].result.end, second[i].result.end);
    EXPECT_EQ(TtftsOf(first[i].result), TtftsOf(second[i].result));
  }
  EXPECT_LT(first[0].summary.ttft.mean, first[4].summary.ttft.mean);  // in the order of the jobs
  const auto loads = FindLoads(one, jobs).value(), again = FindLoads(several, jobs).value();
  for (std::size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(loads[i].rate, again[i].rate);
}

TEST(Simulations, SayWhatIsWrong) {
  std::vector<SimulationJob> jobs = {SmallJob(5)};
  jobs[0].load.trace = "no/such/file.csv";
  ExperimentContext context;
  EXPECT_FALSE(SimulateAll(context, jobs).ok());
  EXPECT_FALSE(FindLoads(context, jobs).ok());
}

// Every way of batching reads each adapter once; they differ by launches: two for a group of products.
TEST(LoraBatching, CountsLaunchesAndBytes) {
  const LoraBatchShape shape{.hidden = 256, .rank = 16, .adapters = 3, .rows = 8};
  const auto count = [&shape](LoraBatching batching) { return CountLoraOnDevice(shape, batching).value(); };
  EXPECT_EQ(count(LoraBatching::kEach).launches, 3 * 4 * 2);
  EXPECT_EQ(count(LoraBatching::kByAdapter).launches, 3 * 2 * 2);
  EXPECT_EQ(count(LoraBatching::kAtOnce).launches, 2 * 2);
  for (const LoraBatching batching : {LoraBatching::kEach, LoraBatching::kByAdapter, LoraBatching::kAtOnce})
    EXPECT_EQ(count(batching).adapter_bytes, shape.AdapterBytes());
}

// A block of 7B is 32 tokens x 4,096 values x 2 bytes; its copy costs 6 us beside the bytes.
TEST(FastLibraLoads, CopyBlocksAndStartInTheHostTier) {
  const SimulationJob job = MakeFastLibraCellJob({}, {.model = 0, .adapters = 20}, "vllm-waits", 1).value();
  EXPECT_EQ(job.options.preset.spec.host_copies, HostCopies::kRegistered);
  const PerformanceModel::Link& link = job.options.device.model.host_to_device;
  EXPECT_EQ(link.piece_bytes, 256 << 10);
  EXPECT_NEAR(link.OccupiedSeconds(2 << 20), (2 << 20) / 25.2e9 + 8 * 6e-6, 1e-7);
}

// Whatever the scale, new conversations begin for twice as long as one takes: otherwise a short run sustains any rate.
TEST(FastLibraLoads, LastLongerThanAConversation) {
  const ExperimentContext tenth{.scale = 0.1};
  const FastLibraScenario &chatbot = FastLibraScenarios()[0], &agent = FastLibraScenarios()[2];
  EXPECT_EQ(FastLibraRequests({}, 1, chatbot), 2160);  // half an hour of 1.2 turns a second
  EXPECT_EQ(FastLibraRequests(tenth, 1, chatbot), 216);
  EXPECT_EQ(FastLibraRequests({}, 0.1, chatbot), 2000);
  EXPECT_EQ(FastLibraRequests({}, 16, chatbot), 10'000);  // 100 are beyond the 99th percentile
  // An agent's conversation takes ten pauses of 3 s and 11 answers of 48 tokens of 50 ms: 56.4 s.
  EXPECT_EQ(FastLibraRequests(tenth, 16, agent), static_cast<std::int64_t>(16 * 11 * 2 * 56.4));
  EXPECT_GT(FastLibraRequests(tenth, 200, agent), 10 * FastLibraRequests(tenth, 16, agent));
}

// FastLibra's half hour: the rate changes as in section 6.5, the adapters in use as in 2.3.2.
TEST(FastLibraLoads, ChangeOverTheRun) {
  ExperimentContext context;
  const FastLibraCell cell{.scenario = 1, .model = 0, .adapters = 100};  // translation: single-turn requests
  const SimulationJob job = MakeFastLibraCellJob(context, cell, "vllm-waits", 1.6).value();
  EXPECT_EQ(job.load.requests, 2880);
  EXPECT_EQ(job.options.preset.spec.cache, "vllm");
  EXPECT_EQ(job.options.preset.spec.cold_start, ColdStart::kStall);
  Workload workload = MakeWorkload(job.load).value();
  ShapeFastLibraLoad(job, cell, "vllm-waits", workload);
  const auto arrives = [](const WorkloadRequest& a, const WorkloadRequest& b) { return a.arrival < b.arrival; };
  EXPECT_TRUE(std::is_sorted(workload.requests.begin(), workload.requests.end(), arrives));
  // "the rank of them to 32 and 64 randomly" (6.1), in blocks of 32 tokens.
  const auto ranks_of_64 = std::ranges::count(workload.adapter_ranks, 64);
  EXPECT_EQ(std::ranges::count(workload.adapter_ranks, 32) + ranks_of_64, 100);
  EXPECT_GT(ranks_of_64, 30);
  EXPECT_LT(ranks_of_64, 70);
  std::int64_t alternate = 0;
  for (std::size_t i = 1; i < workload.adapter_ranks.size(); ++i)
    alternate += workload.adapter_ranks[i] != workload.adapter_ranks[i - 1];
  EXPECT_LT(alternate, 75);
  EXPECT_EQ(job.options.device.page_tokens, 32);
  const double last = static_cast<double>(workload.requests.back().arrival);
  std::set<std::int32_t> before, after;
  std::array<double, 2> rates = {};  // per second of the half hour: before 400 s, and from 900 to 1,300 s
  for (const WorkloadRequest& request : workload.requests) {
    const double seconds = static_cast<double>(request.arrival) / last * kFastLibraSeconds;
    (seconds < 1100 ? before : after).insert(request.adapter);
    if (seconds < 400) rates[0] += 1.0 / 400;
    if (seconds >= 900 && seconds < 1300) rates[1] += 1.0 / 400;
  }
  EXPECT_EQ(before.size(), 41u);
  EXPECT_EQ(after.size(), 75u);
  EXPECT_NEAR(rates[1] / rates[0], 3.6, 0.4);
  ASSERT_EQ(workload.adapter_pages.size(), 100u);  // slots of the largest rank
  EXPECT_EQ(workload.adapter_pages[0], job.options.device.AdapterPages(64));
  // A fifth of the memory holds about 70 adapters, as in figure 4.
  EXPECT_EQ(job.options.device.device_pages / 5 / workload.adapter_pages[0], 72);
}

TEST(FastLibraLoads, KeepAnAdapterForAConversation) {
  ExperimentContext context;
  const FastLibraCell cell{.scenario = 2, .model = 0, .adapters = 20};
  const SimulationJob job = MakeFastLibraCellJob(context, cell, "fastlibra", 0.5).value();
  Workload workload = MakeWorkload(job.load).value();
  ShapeFastLibraLoad(job, cell, "fastlibra", workload);
  EXPECT_TRUE(workload.adapter_pages.empty());
  std::size_t turns = 0;
  for (const WorkloadRequest& request : workload.requests) {
    if (request.next < 0) continue;
    ++turns;
    EXPECT_EQ(workload.requests[static_cast<std::size_t>(request.next)].adapter, request.adapter);
  }
  EXPECT_GT(turns, workload.requests.size() / 2);
  EXPECT_FALSE(MakeFastLibraCellJob(context, cell, "orca", 1).ok());
}

constexpr Experiment kSample = {"xy-1", "xy-1, xy-2", "A title", "Document 5.2, figure 1", nullptr};

ExperimentResult SampleResult() {
  ExperimentResult result{.setting = "A device."};
  result.comparison = {
      {.id = "xy-1", .what = "a | b", .reported = "-20.0 %", .ours = "-10.0 %", .verdict = Verdict::kWeaker},
      {.id = "xy-2", .what = "order", .reported = "yes", .ours = "yes", .verdict = Verdict::kAgrees}};
  result.tables = {{"Loads", {"rate", "ms"}, {{"1", "2"}, {"3", "4"}}}};
  result.plots = {{"p99", "P99", "<svg/>"}};
  result.remarks = {"Because."};
  return result;
}

TEST(Report, HasComparisonTablesPlotsAndRemarks) {
  const std::string text = ExperimentAsMarkdown(kSample, SampleResult(), "loramux-lab run xy-1 --seed 1");
  EXPECT_THAT(
      text, AllOf(HasSubstr("# A title\n"), HasSubstr("| xy-1 | a \\| b | -20.0 % | -10.0 % | weaker | simulated |\n"),
                  HasSubstr("| rate | ms |\n|---|---|\n| 1 | 2 |\n"), HasSubstr("](xy-1_p99.svg)"),
                  HasSubstr("- Because.\n"), HasSubstr("`loramux-lab run xy-1 --seed 1`"), HasSubstr("A device.")));
}

TEST(Report, WritesFilesAndAnIndexOfWhatIsThere) {
  const std::string directory = testing::TempDir() + "/experiment_report";
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(WriteExperiment(directory, kSample, SampleResult(), "command").ok());
  EXPECT_EQ(ReadTextFile(directory + "/xy-1_p99.svg", 1000).value(), "<svg/>");
  Experiment published = kSample;
  published.id = "sl-1";
  ExperimentResult runs;
  runs.comparison = {AtMostRow("sl-1", fmt::format("largest difference {}", kOurTarget), 25, 33, {" %"}),
                     AtMostRow("sl-1", "its own limit", 25, 20, {" %"})};
  ASSERT_TRUE(WriteExperiment(directory, published, runs, "command").ok());
  const std::vector<Experiment> known = {kSample, published, {"zz-9", "zz-9", "Never run", "", nullptr}};
  ASSERT_TRUE(WriteExperimentIndex(directory, known).ok());
  const std::string index = ReadTextFile(directory + "/experiments.md", 100000).value();
  EXPECT_THAT(index, AllOf(HasSubstr("| our own targets, not counted above | 3 | 1 | 1 | 0 | 0 | 1 | 0 | 0 | 0 |"),
                           HasSubstr("| all documents | 1 |"), HasSubstr("| [xy-1](xy-1.md) | a \\| b |"),
                           HasSubstr("| [xy-2](xy-1.md) | order |"), Not(HasSubstr("zz-9"))));
  EXPECT_FALSE(WriteExperiment("/dev/null/x", kSample, SampleResult(), "command").ok());
}

// A row that is opposite or without effect is listed with the assumptions that turn it, or as not measured.
TEST(Report, ListsWhatTurnsRowsThatAreOpposite) {
  const std::string directory = testing::TempDir() + "/experiment_assumptions";
  std::filesystem::remove_all(directory);
  const auto row = [](double ours) { return FactorRow("fl-11", "peak", 1.7, ours); };
  const auto other = [](double ours) { return FactorRow("fl-11", "TTFT", 0.4, ours); };
  const ComparisonRow unknown = FactorRow("fl-11", "TPOT", 0.4, 1.01);
  const Experiment systems = FindExperiments({"fl-11"}).value().front(),
                   one = FindExperiments({"fl-one"}).value().front();
  ExperimentResult result;
  const auto loads = [](double ours) { return FactorRow("fl-11", "loads", 1.3, ours); };
  ComparisonRow squashes = FactorRow("fl-11", "squashes", 0.4, 1.01), nothing = squashes;
  nothing.verdict = Verdict::kNotExercised;
  result.comparison = {row(1.04), other(1.2), unknown, FactorRow("fl-11", "hits", 1.3, 1.3), loads(1.01), squashes};
  ASSERT_TRUE(WriteExperiment(directory, systems, result, "command").ok());
  ExperimentResult assumed;
  assumed.tables = {
      TableOfAssumptions(std::to_array<RowsUnder>({{"as read", {row(1.04), other(1.2), loads(1.2), squashes}},
                                                   {"half of the memory", {row(1.3), other(1.2), loads(1.3), nothing}},
                                                   {"slow copies", {row(2.7)}}}),
                         "two cells")};
  EXPECT_EQ(assumed.tables[0].rows[0].back(), "half of the memory; slow copies");
  EXPECT_EQ(assumed.tables[0].rows[1].back(), "none of 1");
  EXPECT_EQ(assumed.tables[0].rows[1][5], "-");
  assumed.scale = 0.3;
  ASSERT_TRUE(WriteExperiment(directory, one, assumed, "command").ok());
  EXPECT_THAT(ReadTextFile(directory + "/fl-one.md", 100000).value(), HasSubstr(", with 0.3 of the requests\n"));
  const std::vector<Experiment> known = {systems, one};
  ASSERT_TRUE(WriteExperimentIndex(directory, known).ok());
  EXPECT_THAT(
      ReadTextFile(directory + "/experiments.md", 100000).value(),
      AllOf(
          HasSubstr(
              "5 rows: 1 have the document's direction under an assumption, 1 under none that was tried, 1 have it "
              "already where the table has fewer requests or seeds, 2 are not measured."),
          HasSubstr("| [fl-11](fl-11.md) | peak | no effect | half of the memory; slow copies | [fl-one](fl-one.md) |"),
          HasSubstr("| [fl-11](fl-11.md) | TTFT | opposite | none of 1 | [fl-one](fl-one.md) |"),
          HasSubstr("| [fl-11](fl-11.md) | TPOT | no effect | not measured | - |"),
          HasSubstr("| [fl-11](fl-11.md) | loads | no effect | already as the document is read, in this table |"),
          HasSubstr("| [fl-11](fl-11.md) | squashes | no effect | not measured | - |"),
          Not(HasSubstr("| hits | agrees"))));
}

TEST(Claims, AreWrittenFromTheResults) {
  const std::string directory = testing::TempDir() + "/claims";
  std::filesystem::remove_all(directory);
  const Experiment load = FindExperiments({"ch-11"}).value().front();
  ExperimentResult result{.setting = "A device."};
  result.comparison = {FactorRow("ch-11b", "sustained load against S-LoRA: both", 1.5, 1.02),
                       ChangeRow("ch-11", "P99 TTFT against S-LoRA at 9 RPS", -0.807, -1)};
  ASSERT_TRUE(WriteExperiment(directory, load, result, "command").ok());
  result.comparison.clear();
  for (const char* what :
       {"Chameleon: 7B: sustained load, relative to fifo", "Chameleon: 7B: sustained load with 1 s, relative to fifo",
        "FastLibra: chatbot: sustained load, relative to fifo"})
    result.comparison.push_back({"lm-1", what, "at least 0.97x", "1.02x", Verdict::kAgrees});
  ASSERT_TRUE(WriteExperiment(directory, FindExperiments({"lm-1"}).value().front(), result, "command").ok());
  ASSERT_TRUE(WriteClaims(directory, AllExperiments()).ok());
  const std::string page = ReadTextFile(directory + "/claims.md", 100000).value();
  EXPECT_THAT(page, AllOf(HasSubstr("## Chameleon\n"), HasSubstr("All rows: 1 stronger, 1 no effect."),
                          HasSubstr("| 1.50x | 1.02x | **no effect** | "), HasSubstr("[ch-11b](ch-11.md) |"),
                          HasSubstr("| each part alone gains, both together gain most | - | the experiment has no"),
                          HasSubstr("claims_1.svg"), Not(HasSubstr("ch-17")), Not(HasSubstr("## FastLibra")),
                          HasSubstr("| `--preset loramux`: 7B: sustained load, relative to fifo | at least 0.97x | "
                                    "1.02x | **holds** | our own target; [lm-1](lm-1.md) |"),
                          Not(HasSubstr("with 1 s")), Not(HasSubstr("chatbot"))));
  EXPECT_THAT(ReadTextFile(directory + "/claims_1.svg", 100000).value(),
              AllOf(HasSubstr(">no effect</text>"), HasSubstr(">stronger</text>"), HasSubstr("</svg>")));
}

TEST(Claims, NameExperimentsOfTheirDocument) {
  for (const DocumentClaims& document : AllClaims()) {
    EXPECT_LE(document.claims.size(), 8u);  // a page that is read
    for (const Claim& claim : document.claims) {
      const auto found = FindExperiments({std::string(claim.id)});
      ASSERT_TRUE(found.ok()) << claim.id;
      EXPECT_EQ(found.value().front().id, claim.experiment);
      EXPECT_EQ(DocumentOf(found.value().front()), document.document);
    }
  }
}

TEST(Command, FindsExperimentsByIdAndByWhatTheyCover) {
  const auto all = FindExperiments({"all"}).value();
  ASSERT_FALSE(all.empty());
  std::set<std::string_view> ids;
  for (const Experiment& experiment : all) {
    EXPECT_TRUE(ids.insert(experiment.id).second) << experiment.id;
    EXPECT_FALSE(experiment.source.empty());
    EXPECT_EQ(FindExperiments({std::string(experiment.id)}).value().front().id, experiment.id);
  }
  EXPECT_EQ(FindExperiments({"ch-11", "all", "ch-11"}).value().size(), all.size());
  const auto unknown = FindExperiments({"ch-11", "nonsense"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, AllOf(HasSubstr("ch-11"), HasSubstr("'nonsense'")));
}

// Few requests: what the figures say does not count, but that there is one for each policy and setting does.
TEST(Fleets, RunWithFewRequests) {
  for (const auto& [id, rows, tables] : {std::tuple("ca-20", 2u, 2u), std::tuple("fleet", 4u, 4u)}) {
    const Experiment experiment = FindExperiments({id}).value().front();
    ExperimentContext context{.scale = 0.004};
    const ExperimentResult result = experiment.run(context).value();
    EXPECT_EQ(result.comparison.size(), rows);
    ASSERT_EQ(result.tables.size(), tables);
    for (const ExperimentTable& table : result.tables) {
      EXPECT_GE(table.rows.size(), 12u);
      for (const auto& row : table.rows) ASSERT_EQ(row.size(), table.header.size());
    }
    ASSERT_FALSE(result.plots.empty());
    EXPECT_THAT(result.plots.front().svg, HasSubstr("<svg"));
    EXPECT_THAT(ExperimentAsMarkdown(experiment, result, "command"), HasSubstr("loramux"));
  }
}

// Few requests: what the rows say does not count.
TEST(Chameleon, RunsWithFewRequests) {
  const TempFolder data;
  std::string trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < 240; ++i) {
    trace += fmt::format("2023-11-16 18:{:02}:{:02}.5,{},{}\n", i / 60, i % 60, 20 + i * 37 % 1900, 10 + i * 53 % 400);
  }
  std::filesystem::create_directory(data.path() / "traces");
  data.Write("traces/AzureLLMInferenceTrace_conv.csv", trace);
  for (const char* id : {"ch-2", "ch-14", "ch-15", "ch-17", "ch-18", "ch-19", "ch-20", "ch-22"}) {
    ExperimentContext context{.data_dir = data.path().string(), .scale = 0.003};
    const Result<ExperimentResult> result = FindExperiments({id}).value().front().run(context);
    ASSERT_TRUE(result.ok()) << id << ": " << result.error().message;
    EXPECT_FALSE(result->comparison.empty()) << id;
    for (const ExperimentTable& table : result->tables) {
      for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.header.size()) << id << ": " << table.title;
    }
  }
}

// "80 x 4 x 2 x 16 x 8192 x 2 = 167,772,160 bytes", and "floor(12,288 / 160) = 76 adapters". Three of the five rows of
// the document's table do not follow from its formula.
TEST(VllmLora, SizesFollowTheDocumentsFormula) {
  ExperimentContext context{.scale = 0.001};
  const ExperimentResult result = FindExperiments({"vl-f"}).value().front().run(context).value();
  std::vector<double> sizes, budget;
  for (const ComparisonRow& row : result.comparison) {
    if (row.id == "vl-m1") sizes.push_back(row.numbers.front());
    if (row.id == "vl-m2") budget.push_back(row.numbers.front());
  }
  EXPECT_THAT(sizes, testing::ElementsAre(60, 160, 320, 1120, 2240));
  ASSERT_EQ(budget.size(), 3u);
  EXPECT_NEAR(budget[0], 35, 1);
  EXPECT_EQ(budget[1], 76);
  EXPECT_NEAR(budget[2], 80, 1);
  for (const ExperimentTable& table : result.tables) {
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.header.size()) << table.title;
  }
}

// The preset `s-lora` against published runs. Two of them gave it constants.
TEST(SLora, IsAsFastAsItsPublishedRuns) {
  ExperimentContext context;
  const ExperimentResult result = FindExperiments({"sl-1"}).value().front().run(context).value();
  std::size_t tokens = 0;
  for (const ComparisonRow& row : result.comparison) {
    if (row.unit != " ms" || row.what.find("A10G") == std::string::npos) continue;
    ++tokens;
    EXPECT_NEAR(row.numbers.front(), row.reported_number, 0.15 * row.reported_number) << row.what;
  }
  EXPECT_EQ(tokens, 8u);
  for (const ComparisonRow& row : result.comparison) {
    const bool at_one =
        row.unit == " s" && row.what.find("A10G") != std::string::npos && row.what.ends_with(" 1 requests/s");
    if (at_one) {
      EXPECT_NEAR(row.numbers.front(), row.reported_number, 0.25 * row.reported_number) << row.what;
    }
  }
}

}  // namespace
}  // namespace loramux::experiment_test
