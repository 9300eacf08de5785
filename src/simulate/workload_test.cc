#include "simulate/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "simulate/distributions.h"
#include "simulate/trace_reader.h"

namespace loramux::workload_test {
namespace {

double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }

// A file in a directory of its own.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& text)
      : directory_(std::filesystem::path(testing::TempDir()) / ("workload_" + std::to_string(counter_++))) {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / name) << text;
    path_ = directory_ / name;
  }
  ~TempFile() { std::filesystem::remove_all(directory_); }
  std::string path() const { return path_.string(); }
  std::string directory() const { return directory_.string(); }

 private:
  static inline int counter_ = 0;
  std::filesystem::path directory_, path_;
};

struct Moments {
  double mean = 0, cv = 0;
};
template <typename Draw>
Moments MomentsOf(Draw draw) {
  constexpr int kDraws = 200'000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = draw();
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kDraws;
  return {mean, std::sqrt(squares / kDraws - mean * mean) / mean};
}

TEST(Distributions, HaveTheirMoments) {
  Prng prng(11);
  const auto near = [](const Moments& found, double mean, double cv) {
    EXPECT_NEAR(found.mean / mean, 1, 0.02);
    EXPECT_NEAR(found.cv / cv, 1, 0.03);
  };
  near(MomentsOf([&] { return DrawExponential(prng, 3); }), 3, 1);
  near(MomentsOf([&] { return DrawGamma(prng, 4, 0.5); }), 2, 0.5);
  near(MomentsOf([&] { return DrawGamma(prng, 0.5, 2); }), 1, std::sqrt(2.0));
  near(MomentsOf([&] { return DrawLogNormal(prng, 500, 0.8); }), 500, 0.8);
  const double mean = 3 * std::tgamma(1.5), square = 9 * std::tgamma(2.0);
  near(MomentsOf([&] { return DrawWeibull(prng, 2, 3); }), mean, std::sqrt(square - mean * mean) / mean);
  EXPECT_EQ(DrawLogNormal(prng, 7, 0), 7);
}

TEST(Distributions, WeightedChoiceCoversTheUnit) {
  const WeightedChoice choice({1, 0, 3});
  EXPECT_EQ(choice.At(0), 0u);
  EXPECT_EQ(choice.At(0.249), 0u);
  EXPECT_EQ(choice.At(0.25), 2u);
  EXPECT_EQ(choice.At(0.999999), 2u);
}

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
  const auto trace = ReadTrace(file.path()).value();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].arrival, 0);
  EXPECT_EQ(trace[1].arrival, 1750 * kNsPerMs);
  EXPECT_EQ(trace[0].input_tokens, 374);
  EXPECT_EQ(trace[1].input_tokens, 1);  // a prompt has at least one token
  const Workload workload =
      MakeWorkload({.trace = file.path(), .rate = 2, .poisson = false, .input_scale = 0.5}).value();
  ASSERT_EQ(workload.requests.size(), 2u);
  EXPECT_EQ(workload.requests[0].input_tokens, 187);
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

TEST(Trace, BadFilesAreErrorsThatNameTheLine) {
  for (const char* line : {"2023-11-16 18:15:46.6,374", "yesterday,1,2", "2023-13-16 18:15:46.6,1,2", "1,-5,2", "1,2,x",
                           "1e300,1,2", "inf,1,2", "2023-11-16 99999999:15:46.6,1,2", "2023-11-16 18:15:1e18,1,2"}) {
    const TempFile file("a.csv", std::string("header\n1,1,1\n") + line + "\n");
    const auto trace = ReadTrace(file.path());
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find(":3:"), std::string::npos) << trace.error().message;
  }
  for (const char* line :
       {"{", "[]", "{\"timestamp\": 1}", "{\"timestamp\":1,\"input_length\":600,\"output_length\":1,\"hash_ids\":[0]}",
        "{\"timestamp\":1e300,\"input_length\":6,\"output_length\":1,\"hash_ids\":[0]}",
        "{\"timestamp\":9223372036854775807,\"input_length\":6,\"output_length\":1,\"hash_ids\":[0]}",
        "{\"timestamp\":1,\"input_length\":1e300,\"output_length\":1,\"hash_ids\":[0]}",
        "{\"timestamp\":1,\"input_length\":6,\"output_length\":1,\"hash_ids\":[1e300]}",
        "{\"timestamp\":1,\"input_length\":6,\"output_length\":1,\"hash_ids\":[-1]}"}) {
    const TempFile file("m.jsonl", std::string(line) + "\n");
    EXPECT_FALSE(ReadTrace(file.path()).ok()) << line;
  }
  const auto hostile = ReadTrace(TempFile("a.csv", "h\n\x1b[2J" + std::string(10000, 'x') + "\n").path());
  ASSERT_FALSE(hostile.ok());
  EXPECT_NE(hostile.error().message.find("\\x1b"), std::string::npos);
  EXPECT_LT(hostile.error().message.size(), 1000u);
  EXPECT_FALSE(ReadTrace("/no/such/file.csv").ok());
  EXPECT_FALSE(ReadTrace(TempFile("a.csv", "header\n").path()).ok());
}

TEST(Clients, ArriveAtTheirRates) {
  std::string busy, idle;
  for (int i = 0; i < 12; ++i) {
    busy += std::to_string(600 * i) + ",8,1,Gamma,1,0.125\n";
    idle += std::to_string(600 * i) + (i % 2 == 0 ? ",2,1,Weibull,1,0.5\n" : ",0,0,,0,0\n");
  }
  const TempFile file("chunk-0-trace.csv", idle);
  std::ofstream(std::filesystem::path(file.directory()) / "chunk-1-trace.csv") << busy;
  const auto clients = ReadClients(file.directory()).value();
  ASSERT_EQ(clients.size(), 2u);
  EXPECT_EQ(clients[0][0].rate, 8);  // busiest first
  Prng prng(5);
  const auto arrivals = DrawClientArrivals(clients, 0, 0, 20000, prng);
  ASSERT_EQ(arrivals.size(), 20000u);
  EXPECT_NEAR(20000 / Seconds(arrivals.back().at), 9, 0.4);
  const auto of_second =
      std::count_if(arrivals.begin(), arrivals.end(), [](const ClientArrival& a) { return a.client == 1; });
  EXPECT_NEAR(static_cast<double>(of_second) / 20000, 1.0 / 9, 0.02);
  EXPECT_TRUE(
      std::is_sorted(arrivals.begin(), arrivals.end(), [](const auto& a, const auto& b) { return a.at < b.at; }));
  const auto slower = DrawClientArrivals(clients, 0, 3, 5000, prng);
  EXPECT_NEAR(5000 / Seconds(slower.back().at), 3, 0.25);
}

TEST(Clients, NumbersMustBeSane) {
  for (const char* line :
       {"0,inf,1,Gamma,1,1", "nan,1,1,Gamma,1,1", "0,1,1,Gamma,inf,1", "0,1,nan,Gamma,1,1", "1e300,1,1,Gamma,1,1"}) {
    const TempFile file("chunk-0-trace.csv", std::string(line) + "\n");
    EXPECT_FALSE(ReadClients(file.directory()).ok()) << line;
  }
}

TEST(Clients, GapsOfNothingEnd) {
  const TempFile file("chunk-0-trace.csv", "0,1,1,Gamma,1,1e-300\n600,1,1,Gamma,1,1e-300\n");
  Prng prng(5);
  EXPECT_EQ(DrawClientArrivals(ReadClients(file.directory()).value(), 0, 0, 1000, prng).size(), 1000u);
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
