#include "workload/trace.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/text_file.h"
#include "workload/temp_file_for_test.h"

namespace loramux::trace_test {
namespace {

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.5000000,374,44\r\n"
    "2023-11-17 00:00:01.7500000,396,109\r\n"
    "\r\n"
    "2023-11-17 00:00:00.0000000,1,0\r\n";

TEST(TextFile, IsReadUpToItsFirstNulByte) {
  const auto path = std::filesystem::temp_directory_path() / ("loramux_text_file_" + std::to_string(::getpid()));
  ASSERT_TRUE(WriteTextFile(path.string(), "one\ntwo\n").ok());
  EXPECT_EQ(*ReadTextFile(path.string()), "one\ntwo\n");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);  // sparse
  const auto text = ReadTextFile(path.string());
  std::filesystem::remove(path);
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("a NUL byte at byte 8"), std::string::npos) << text.error().message;
}

TEST(AzureTrace, IsReadAcrossMidnightAndSorted) {
  const auto trace = ParseCsvTrace(kAzure, "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->arrivals.size(), 3u);
  EXPECT_EQ(trace->arrivals[0].at, 0);
  EXPECT_EQ(trace->arrivals[1].at, kNsPerSecond / 2);
  EXPECT_EQ(trace->arrivals[1].output_tokens, 1);  // at least one token is requested
  EXPECT_EQ(trace->arrivals[2].at, 2'250 * kNsPerMs);
  EXPECT_EQ(trace->arrivals[2].input_tokens, 396);
  EXPECT_EQ(trace->arrivals[2].output_tokens, 109);
  EXPECT_EQ(trace->clients, 0);
}

TEST(AzureTrace, NamesTheHostileLine) {
  for (const char* line :
       {"2023-11-16 18:15:46.68,374", "2023-11-16 18:15:46.68,374,44,1", "2023-11-16 18:15:46.68,-1,44",
        "2023-11-16 18:15:46.68,3.5,44", "2023-11-16 18:15:46.68,99999999999999999999,4", "2023-13-16 18:15:46.68,3,4",
        "2023-11-16 25:15:46.68,3,4", "9999-11-16 18:15:46.68,3,4", "2023-11-16 18:15:nan,3,4", "2023-11-16T18,3,4",
        ",,", "\xff\xfe\x00"}) {
    const auto trace = ParseCsvTrace(std::string("2023-11-16 18:15:46.0,1,1\n") + line + "\n", "t.csv");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("t.csv, line 2"), std::string::npos) << trace.error().message;
  }
  EXPECT_FALSE(ParseCsvTrace("", "t.csv").ok());
  EXPECT_FALSE(ParseCsvTrace("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t.csv").ok());
}

TEST(MooncakeTrace, KeepsTheBlocks) {
  const auto trace =
      ParseMooncakeTrace(R"({"timestamp": 2500, "input_length": 700, "output_length": 3, "hash_ids": [4, 9]})"
                         "\n"
                         R"({"timestamp": 1000, "input_length": 5, "output_length": 0})",
                         "m.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace->block_tokens, 512);
  EXPECT_EQ(trace->arrivals[0].input_tokens, 5);
  EXPECT_EQ(trace->arrivals[1].at, 1'500 * kNsPerMs);
  EXPECT_EQ(trace->arrivals[1].blocks, (std::vector<std::int32_t>{4, 9}));
}

TEST(MooncakeTrace, NamesTheHostileLine) {
  for (const char* line :
       {"{", "[]", "7", "null", R"({"timestamp": 1})", R"({"timestamp": -1, "input_length": 5, "output_length": 1})",
        R"({"timestamp": 1, "input_length": "5", "output_length": 1})",
        R"({"timestamp": 1, "input_length": 0, "output_length": 1})",
        R"({"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["x"]})"}) {
    const auto trace = ParseMooncakeTrace(line, "m.jsonl");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("m.jsonl, line 1"), std::string::npos);
  }
}

TEST(AzureTrace, MayHaveSecondsAndNoHeader) {
  const auto trace = ParseCsvTrace("2.5,0,7\n1,9,8\n", "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->arrivals.size(), 2u);
  EXPECT_EQ(trace->arrivals[0].input_tokens, 9);
  EXPECT_EQ(trace->arrivals[1].at, 1'500 * kNsPerMs);
  EXPECT_EQ(trace->arrivals[1].input_tokens, 1);  // at least one token is sent
}

TEST(CsvTrace, TakesItsColumnsFromTheHeader) {
  const auto trace = ParseCsvTrace(
      "\xEF\xBB\xBFuser,\"Prompt Tokens\",arrival_time, completion-tokens ,adapter\n"
      "a,10,2026-01-01T00:00:01.5Z,3,sql\n"
      "b, 20 ,\"2026-01-01 01:00:01+01:00\",4,\n"
      "c,30,2026-01-01 00:00:02,5,law\n"
      "d,40,2026-01-01 00:00:03,6,sql\n"
      "e,50,2026-01-01 00:00:04,7,base\n",
      "t.csv");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->arrivals.size(), 5u);
  EXPECT_EQ(trace->adapters, (std::vector<std::string>{"sql", "law"}));
  EXPECT_EQ(trace->arrivals[0].input_tokens, 20);  // an hour east of the others
  EXPECT_EQ(trace->arrivals[0].adapter, -1);
  EXPECT_EQ(trace->arrivals[1].at, kNsPerSecond / 2);
  EXPECT_EQ(trace->arrivals[1].output_tokens, 3);
  EXPECT_EQ(trace->arrivals[1].adapter, 0);
  EXPECT_EQ(trace->arrivals[2].adapter, 1);
  EXPECT_EQ(trace->arrivals[3].adapter, 0);
  EXPECT_EQ(trace->arrivals[4].adapter, -1);
}

TEST(CsvTrace, AnErrorNamesLineAndColumnAndWhatIsExpected) {
  const std::string header = "time,prompt_tokens,output_tokens,adapter\n1,1,1,sql\n";
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {header + "2,1,1\n", "line 3: expected 4 fields (time,prompt_tokens,output_tokens,adapter)"},
           {header + "soon,1,1,sql\n", "line 3, column 1 (time): expected a time such as"},
           {header + "2,many,1,sql\n", "line 3, column 2 (prompt_tokens): expected a whole number of tokens from 0 to"},
           {header + "2,1,-1,sql\n", "line 3, column 3 (output_tokens): expected a whole number of tokens from 0 to"},
           {"time,output_tokens\n1,1\n", "line 1: expected a column for the tokens of the prompt"},
           {"1,1\n", "line 1: expected 3 fields"}}) {
    const auto trace = ParseCsvTrace(text, "t.csv");
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_NE(trace.error().message.find("t.csv, " + words), std::string::npos) << trace.error().message;
  }
}

// "app: application id; func: function id, and unique only within an application; end_timestamp and duration: seconds".
constexpr const char* kInvocations =
    "app,func,end_timestamp,duration\n"
    "a1,f1,10.5,0.5\n"
    "a2,f1,12,9\n"
    "a1,f1,20,0\n";

TEST(AzureFunctions, AnInvocationArrivesWhereItBegan) {
  const auto trace = ParseCsvTrace(kInvocations, "f.txt");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_FALSE(trace->has_lengths);
  EXPECT_TRUE(trace->names_adapters);
  EXPECT_EQ(trace->adapters, (std::vector<std::string>{"a1/f1", "a2/f1"}));
  ASSERT_EQ(trace->arrivals.size(), 3u);
  EXPECT_EQ(trace->arrivals[0].adapter, 1);  // it began at 3 s, and the others at 10 and at 20
  EXPECT_EQ(trace->arrivals[1].at, 7 * kNsPerSecond);
  EXPECT_EQ(trace->arrivals[2].at, 17 * kNsPerSecond);
  EXPECT_EQ(trace->arrivals[2].input_tokens, 0);
}

TEST(AzureFunctions, AnErrorNamesLineAndColumn) {
  const std::string header = "app,func,end_timestamp,duration\n";
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {"a,f,1", "line 2: expected 4 fields (app,func,end_timestamp,duration)"},
           {"a,f,soon,1", "line 2, column 3 (end_timestamp): expected seconds"},
           {"a,f,5,-1", "line 2, column 4 (duration): expected seconds"},
           {"a,f,5,nan", "line 2, column 4 (duration): expected seconds"},
           {"a,,5,1", "line 2, column 2 (func): expected a name"}}) {
    const auto trace = ParseCsvTrace(header + line + "\n", "f.txt");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("f.txt, " + words), std::string::npos) << trace.error().message;
  }
}

TEST(Trace, BadFilesAreErrorsThatNameTheLine) {
  for (const char* line : {"2023-11-16 18:15:46.6,374", "yesterday,1,2", "2023-13-16 18:15:46.6,1,2", "1,-5,2", "1,2,x",
                           "1e300,1,2", "inf,1,2", "2023-11-16 99999999:15:46.6,1,2", "2023-11-16 18:15:1e18,1,2"}) {
    const TempFile file("a.csv", std::string("header\n1,1,1\n") + line + "\n");
    const auto trace = ReadTrace(file.path());
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_NE(trace.error().message.find("a.csv, line 3"), std::string::npos) << trace.error().message;
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

TEST(PoissonTrace, HasItsRateAndIsDeterminedByItsSeed) {
  const TraceOptions options{.rate = 10, .duration_s = 2000, .seed = 5};
  const Trace trace = PoissonTrace(options), same = PoissonTrace(options),
              other = PoissonTrace({.rate = 10, .duration_s = 2000, .seed = 6});
  EXPECT_NEAR(static_cast<double>(trace.arrivals.size()), 20'000, 500);  // standard deviation 141
  ASSERT_EQ(trace.arrivals.size(), same.arrivals.size());
  double squares = 0;
  for (std::size_t i = 0; i < trace.arrivals.size(); ++i) {
    ASSERT_EQ(trace.arrivals[i].at, same.arrivals[i].at);
    const TimeNs gap = trace.arrivals[i].at - (i > 0 ? trace.arrivals[i - 1].at : 0);
    ASSERT_GE(gap, 0);
    squares += static_cast<double>(gap) * static_cast<double>(gap) / 1e18;
  }
  // E[X^2] of an exponential
  EXPECT_NEAR(squares / static_cast<double>(trace.arrivals.size()), 2 * 0.1 * 0.1, 0.001);
  EXPECT_NE(trace.arrivals[0].at, other.arrivals[0].at);
  EXPECT_EQ(PoissonTrace({.rate = 10, .requests = 7, .seed = 5}).arrivals.size(), 7u);
}

TEST(ScaleTrace, StretchesThenCuts) {
  Trace trace;
  for (int i = 0; i < 10; ++i)
    trace.arrivals.push_back({.at = i * kNsPerSecond, .input_tokens = 100, .output_tokens = 1});
  ScaleTrace(trace, 0.5, 0.25, {.duration_s = 3});
  ASSERT_EQ(trace.arrivals.size(), 6u);  // 0, 0.5, ..., 2.5 s
  EXPECT_EQ(trace.arrivals[1].at, kNsPerSecond / 2);
  EXPECT_EQ(trace.arrivals[1].input_tokens, 25);
  EXPECT_EQ(trace.arrivals[1].output_tokens, 1);  // never scaled to 0
  ScaleTrace(trace, 1, 1, {.requests = 2});
  EXPECT_EQ(trace.arrivals.size(), 2u);
}

}  // namespace
}  // namespace loramux::trace_test
