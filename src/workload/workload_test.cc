#include "workload/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "workload/temp_file_for_test.h"

namespace loramux::workload_test {
namespace {

double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

TEST(Workload, PoissonArrivalsAtTheRate) {
  const Workload workload = MakeWorkload({.requests = 20000, .rate = 8}).value();
  const double span = Seconds(workload.requests.back().arrival);
  EXPECT_NEAR(20000 / span, 8, 0.2);
  double gaps = 0, squares = 0;
  for (std::size_t i = 1; i < workload.requests.size(); ++i) {
    const double gap = Seconds(workload.requests[i].arrival - workload.requests[i - 1].arrival);
    EXPECT_GE(gap, 0);
    gaps += gap;
    squares += gap * gap;
  }
  const double mean = gaps / 19999;
  EXPECT_NEAR(std::sqrt(squares / 19999 - mean * mean) / mean, 1, 0.05);
}

TEST(Workload, ATraceMayNameItsAdapters) {
  const TempFile file("own.csv", "time,prompt_tokens,output_tokens,adapter\n0,9,3,law\n1,9,3,\n2,9,3,sql\n3,9,3,law\n");
  WorkloadOptions options{.trace = file.path(), .poisson = false, .ranks = {8, 64}};
  const Workload workload = MakeWorkload(options).value();
  EXPECT_EQ(workload.adapter_ranks, (std::vector<std::int64_t>{8, 64}));
  std::vector<std::int32_t> adapters;
  for (const WorkloadRequest& request : workload.requests) adapters.push_back(request.adapter);
  EXPECT_EQ(adapters, (std::vector<std::int32_t>{0, -1, 1, 0}));
  EXPECT_EQ(workload.NameOf(1), "sql");
  EXPECT_EQ(workload.NameOf(-1), "base model");
  EXPECT_EQ(MakeWorkload({.requests = 3, .rate = 1, .adapters = 2}).value().NameOf(1), "adapter-1");
  options.adapter_names = {"sql", "law"};
  EXPECT_EQ(MakeWorkload(options).value().adapter_ranks, (std::vector<std::int64_t>{64, 8}));
  options.adapter_names = {"sql", "other"};
  const auto refused = MakeWorkload(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("'law'"), std::string::npos) << refused.error().message;
}

TEST(Workload, ATraceMayBeOfTheBaseModelAlone) {
  const TempFile file("base.csv", "time,prompt_tokens,output_tokens,adapter\n0,9,3,base\n1,9,3,\n");
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, std::vector<std::string>{"sql"}}) {
    const Workload workload =
        MakeWorkload({.trace = file.path(), .poisson = false, .ranks = {8}, .adapter_names = names}).value();
    EXPECT_TRUE(workload.adapter_ranks.empty());
    for (const WorkloadRequest& request : workload.requests) EXPECT_EQ(request.adapter, -1);
  }
}

// Functions b/g, a/f and c/h are invoked three times, twice and once.
TEST(Workload, TheFunctionsThatAreInvokedMostAreTheAdapters) {
  const TempFile file("functions.txt",
                      "app,func,end_timestamp,duration\n"
                      "a,f,1,1\nb,g,3,1\nb,g,5,1\nc,h,6,0\na,f,9,1\nb,g,11,1\n");
  WorkloadOptions options{.trace = file.path(), .poisson = false, .input_mean = 700, .adapters = 2, .ranks = {8, 64}};
  const Workload workload = MakeWorkload(options).value();
  EXPECT_EQ(workload.adapter_names, (std::vector<std::string>{"b/g", "a/f"}));
  EXPECT_EQ(workload.adapter_ranks, (std::vector<std::int64_t>{8, 64}));
  ASSERT_EQ(workload.requests.size(), 5u) << "c/h is none of the two";
  std::vector<std::int32_t> adapters;
  for (const WorkloadRequest& request : workload.requests) adapters.push_back(request.adapter);
  EXPECT_EQ(adapters, (std::vector<std::int32_t>{1, 0, 0, 1, 0}));
  EXPECT_EQ(Seconds(workload.requests[4].arrival), 10);
  options.requests = 4000;  // the trace again and again
  double tokens = 0;
  for (const WorkloadRequest& request : MakeWorkload(options)->requests) tokens += request.input_tokens;
  EXPECT_NEAR(tokens / 4000, 700, 60) << "lengths are drawn";
  options.adapters = 100;
  EXPECT_EQ(MakeWorkload(options)->adapter_names.size(), 3u);
  options.input_scale = 2;
  const auto scaled = MakeWorkload(options);
  ASSERT_FALSE(scaled.ok());
  EXPECT_EQ(scaled.error().param, "--input-scale");
}

TEST(Workload, RecordingsAreReadOnce) {
  const TempFile first("first.csv", "time,input,output\n0,10,3\n"), second("second.csv", "time,input,output\n0,20,4\n");
  WorkloadOptions read{.trace = first.path(), .rate = 1};
  ASSERT_TRUE(ReadRecordings(read).ok());
  std::filesystem::remove(first.path());
  EXPECT_EQ(MakeWorkload(read).value().requests.front().input_tokens, 10);
  read.trace = second.path();  // what was read is of another file
  EXPECT_EQ(MakeWorkload(read).value().requests.front().input_tokens, 20);
  EXPECT_FALSE(MakeWorkload({.trace = first.path(), .rate = 1}).ok());
}

TEST(Workload, TheSameSeedGivesTheSame) {
  const WorkloadOptions options{.requests = 300, .rate = 5, .turns = 2, .seed = 9};
  const Workload a = MakeWorkload(options).value(), b = MakeWorkload(options).value();
  WorkloadOptions faster = options;
  faster.rate = 50;
  const Workload c = MakeWorkload(faster).value();
  for (std::size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(a.requests[i].arrival, b.requests[i].arrival);
    EXPECT_EQ(a.requests[i].adapter, b.requests[i].adapter);
    // Another rate changes arrival times only.
    EXPECT_EQ(a.requests[i].adapter, c.requests[i].adapter);
    EXPECT_EQ(a.requests[i].input_tokens, c.requests[i].input_tokens);
  }
}

std::vector<double> Shares(const Workload& workload, std::size_t adapters) {
  std::vector<double> shares(adapters);
  for (const WorkloadRequest& request : workload.requests) {
    shares[static_cast<std::size_t>(request.adapter)] += 1.0 / static_cast<double>(workload.requests.size());
  }
  return shares;
}

TEST(Workload, PopularityOfAdapters) {
  WorkloadOptions options{.requests = 60000, .rate = 100, .adapters = 20, .ranks = {8, 128}};
  // Chameleon's: ranks equally likely, a power law within each. Ten adapters of each rank; H(10) = 2.929.
  const std::vector<double> zipf = Shares(MakeWorkload(options).value(), 20);
  EXPECT_NEAR(zipf[0], 0.5 / 2.929, 0.01);
  EXPECT_NEAR(zipf[1], 0.5 / 2.929, 0.01);
  EXPECT_NEAR(zipf[18], 0.5 / 2.929 / 10, 0.005);
  options.popularity = Popularity::kUniform;
  for (const double share : Shares(MakeWorkload(options).value(), 20)) EXPECT_NEAR(share, 0.05, 0.005);
  options.rank_popularity = Popularity::kPowerLaw;  // twice as many of the low rank
  EXPECT_NEAR(Shares(MakeWorkload(options).value(), 20)[0], 2.0 / 30, 0.005);
  options.popularity = Popularity::kDistinct;
  const Workload distinct = MakeWorkload(options).value();
  for (int i = 0; i < 60; ++i) EXPECT_EQ(distinct.requests[static_cast<std::size_t>(i)].adapter, i % 20);
  options.popularity = Popularity::kGaussian;
  options.deviation = 2;
  const std::vector<double> gaussian = Shares(MakeWorkload(options).value(), 20);
  EXPECT_NEAR(gaussian[9] + gaussian[10], 0.3829, 0.01);  // within half a deviation of the middle
  EXPECT_LT(gaussian[0], 0.001);
  EXPECT_EQ(
      MakeWorkload(options).value().adapter_ranks,
      (std::vector<std::int64_t>{8, 128, 8, 128, 8, 128, 8, 128, 8, 128, 8, 128, 8, 128, 8, 128, 8, 128, 8, 128}));
}

TEST(Workload, BaseModelsShare) {
  const Workload workload = MakeWorkload({.requests = 20000, .rate = 10, .base_share = 0.25}).value();
  const auto base =
      std::count_if(workload.requests.begin(), workload.requests.end(), [](const auto& r) { return r.adapter < 0; });
  EXPECT_NEAR(static_cast<double>(base) / 20000, 0.25, 0.015);
}

TEST(Workload, SessionsKeepTheirAdapterAndEnd) {
  const Workload workload =
      MakeWorkload({.requests = 20000, .rate = 10, .input_mean = 30, .output_mean = 20, .turns = 4}).value();
  std::size_t sessions = 0;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const WorkloadRequest& request = workload.requests[i];
    sessions += !request.follows;
    if (request.next < 0) continue;
    EXPECT_EQ(static_cast<std::size_t>(request.next), i + 1);
    EXPECT_TRUE(workload.requests[i + 1].follows);
    EXPECT_EQ(workload.requests[i + 1].adapter, request.adapter);
  }
  EXPECT_NEAR(20000.0 / static_cast<double>(sessions), 4, 0.2);
  // The same request rate as without sessions.
  TimeNs last = 0;
  for (const WorkloadRequest& request : workload.requests) last = request.follows ? last : request.arrival;
  EXPECT_NEAR(20000 / Seconds(last), 10, 0.6);
}

TEST(Workload, PromptsDifferUnlessBlocksAreShared) {
  Workload workload;
  workload.requests = {{.input_tokens = 600},
                       {.input_tokens = 600},
                       {.input_tokens = 600, .first_block = 0, .num_blocks = 2},
                       {.input_tokens = 700, .first_block = 2, .num_blocks = 2}};
  workload.blocks = {5, 6, 5, 7};
  std::vector<std::vector<TokenId>> prompts(4);
  for (std::size_t i = 0; i < 4; ++i) workload.AppendPrompt(i, prompts[i]);
  EXPECT_EQ(prompts[3].size(), 700u);
  EXPECT_NE(prompts[0], prompts[1]);
  EXPECT_TRUE(std::equal(prompts[2].begin(), prompts[2].begin() + 512, prompts[3].begin()));
  EXPECT_NE(prompts[2][512], prompts[3][512]);
}

TEST(Workload, PromptsThatAreKnownAreTakenAsTheyAre) {
  Workload workload;
  workload.requests = {{.input_tokens = 2}, {.input_tokens = 3}};
  workload.prompts = {{4, 5}, {4, 5, 6}};
  std::vector<TokenId> prompt = {3};
  workload.AppendPrompt(1, prompt);
  EXPECT_EQ(prompt, (std::vector<TokenId>{3, 4, 5, 6}));
}

// ---- Files

TEST(Trace, Azure) {
  const TempFile file("a.csv",
                      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,374,44\r\n"
                      "2023-11-17 00:00:01.2500000,0,109\r\n");
  const Workload workload =
      MakeWorkload({.trace = file.path(), .rate = 2, .poisson = false, .input_scale = 0.5}).value();
  ASSERT_EQ(workload.requests.size(), 2u);
  EXPECT_EQ(workload.requests[0].input_tokens, 187);
  EXPECT_EQ(workload.requests[1].input_tokens, 1);  // a prompt has at least one token
}

TEST(Trace, RecordedTimesAreStretched) {
  std::string text = "t,i,o\n";
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + ",10,10\n";
  const TempFile file("a.csv", text);
  WorkloadOptions options{.trace = file.path(), .requests = 250, .rate = 4, .poisson = false};
  const Workload workload = MakeWorkload(options).value();
  EXPECT_NEAR(Seconds(workload.requests[40].arrival), 10, 0.2);
  EXPECT_NEAR(Seconds(workload.requests[249].arrival), 249 / 4.0, 0.5);  // repeated
  options.rate = 0;
  EXPECT_EQ(MakeWorkload(options).value().requests[40].arrival, 40 * kNsPerSecond);
}

TEST(Trace, Mooncake) {
  const TempFile file("m.jsonl",
                      "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 9, \"hash_ids\": [0, 3]}\n"
                      "{\"timestamp\": 8, \"input_length\": 512, \"output_length\": 7, \"hash_ids\": [0]}\n");
  const Workload workload = MakeWorkload({.trace = file.path(), .rate = 0, .poisson = false}).value();
  ASSERT_EQ(workload.requests.size(), 2u);
  EXPECT_EQ(workload.requests[1].arrival, 3 * kNsPerMs);
  EXPECT_EQ(workload.blocks, (std::vector<std::int32_t>{0, 3, 0}));
}

TEST(Clients, HaveTheSameWindows) {
  const TempFile file("chunk-0-trace.csv", "0,8,1,Gamma,1,0.125\n600,0,0,,0,0\n");
  std::ofstream(std::filesystem::path(file.directory()) / "chunk-1-trace.csv") << "0,8,1,Gamma,1,0.125\n";
  const auto workload = MakeWorkload({.clients = file.directory(), .requests = 10, .rate = 1});
  ASSERT_FALSE(workload.ok());
  EXPECT_NE(workload.error().message.find("as many windows"), std::string::npos) << workload.error().message;
}

TEST(Clients, AnEmptyRecordingIsAnError) {
  const TempFile file("chunk-0-trace.csv", "0,8,1,Gamma,1,0.125\n600,0,0,,0,0\n");
  for (const double hour : {0.2, 1.0}) {  // no arrivals; after its end
    const auto workload = MakeWorkload({.clients = file.directory(), .clients_hour = hour, .rate = 1});
    ASSERT_FALSE(workload.ok()) << hour;
    EXPECT_EQ(workload.error().param, "--clients-hour");
  }
  EXPECT_TRUE(MakeWorkload({.clients = file.directory(), .requests = 10, .rate = 1}).ok());
}

TEST(Workload, BadOptionsAreErrors) {
  const auto refused = [](WorkloadOptions options, const std::string& flag) {
    const auto result = MakeWorkload(options);
    ASSERT_FALSE(result.ok()) << flag;
    EXPECT_EQ(result.error().param, flag);
  };
  refused({.rate = 0}, "--rate");
  refused({.rate = -1}, "--rate");
  refused({.rate = 1, .poisson = false}, "--arrivals");
  refused({.requests = -1, .rate = 1}, "--requests");
  refused({.rate = 1, .ranks = {}}, "--ranks");
  refused({.rate = 1, .ranks = {0}}, "--ranks");
  refused({.rate = 1, .rank_popularity = Popularity::kGaussian}, "--rank-popularity");
  refused({.rate = 1, .turns = 0.5}, "--turns");
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  refused({.rate = nan}, "--rate");
  refused({.rate = 1e-7}, "--rate");
  refused({.rate = 1e7}, "--rate");
  refused({.requests = 10'000, .rate = 1e-6}, "--rate");  // centuries
  refused({.rate = 1, .input_mean = infinity}, "--input-mean");
  refused({.rate = 1, .output_mean = 0}, "--output-mean");
  refused({.rate = 1, .input_cv = nan}, "--input-cv");
  refused({.rate = 1, .output_cv = -1}, "--output-cv");
  refused({.rate = 1, .input_scale = nan}, "--input-scale");
  refused({.rate = 1, .adapters = 2, .popularity = Popularity::kGaussian, .deviation = 1e6}, "--deviation");
  refused({.rate = 1, .turns = 2, .think_seconds = infinity}, "--think-seconds");
  EXPECT_FALSE(ParsePopularity("zipf").ok());
}

}  // namespace
}  // namespace loramux::workload_test
