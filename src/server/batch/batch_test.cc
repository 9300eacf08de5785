#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>

#include "http/json_reader.h"
#include "server/batch/batch_format.h"
#include "server/batch/batch_output.h"
#include "server/batch/batch_run.h"
#include "server/server_fixture.h"

namespace loramux::batch_test {
namespace {

using testing::HasSubstr;

std::string Line(const std::string& custom_id, const std::string& url, const std::string& body) {
  return R"({"custom_id":")" + custom_id + R"(","method":"POST","url":")" + url + R"(","body":)" + body + "}\n";
}
std::string Completion(const std::string& custom_id, const std::string& prompt) {
  return Line(custom_id, "/v1/completions", R"({"model":"base","prompt":")" + prompt + R"("})");
}

class BatchTest : public testing::Test {
 protected:
  // The engine says the prompt again.
  BatchTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   ("batch_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))),
        service_([this](const GenerationRequest& request) -> Result<Script> {
          ++asked_;
          Script script;
          script.tokens.assign(request.prompt.begin() + (request.prompt.front() == kBosToken), request.prompt.end());
          if (script.tokens == Bytes("break")) script.finish = FinishReason::kError;
          return script;
        }) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~BatchTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(Path(name)) << text; }
  std::string Read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  BatchProgress Run(const std::string& input, std::int64_t max_jobs = 3) {
    Write("in", input);
    auto output = BatchOutput::Open(Path("out"));
    EXPECT_TRUE(output.ok()) << output.error().message;
    std::FILE* file = std::fopen(Path("in").c_str(), "r");
    const auto progress = RunBatch(fixture_.Context(service_), {TextLimitsOf(100), max_jobs, {}}, file, **output);
    std::fclose(file);
    EXPECT_TRUE(progress.ok()) << progress.error().message;
    EXPECT_TRUE((*output)->Close().ok());
    return progress.ok() ? *progress : BatchProgress();
  }

  // The output's lines by custom_id, or else by id.
  std::map<std::string, Json> Output() const {
    std::map<std::string, Json> lines;
    std::stringstream text(Read("out"));
    for (std::string line; std::getline(text, line);) {
      const Json json = *ParseJson(line);
      lines[json["custom_id"].is_string() ? json["custom_id"] : json["id"]] = json;
    }
    return lines;
  }

  const std::filesystem::path directory_;
  std::atomic<int> asked_ = 0;
  ServingFixture fixture_;
  ScriptedService service_;
};

TEST_F(BatchTest, AnswersEveryLine) {
  const std::string chat = R"({"model":"sql","messages":[{"role":"user","content":"hi"}]})";
  const BatchProgress progress =
      Run(Completion("a", "one") + "\n" + Line("b", "/v1/chat/completions", chat) + Completion("c", "two") +
          Line("d", "/generate", R"({"inputs":"three"})") + Line("e", "/v1/messages/count_tokens", chat));
  EXPECT_EQ(progress.lines, 5);
  EXPECT_EQ(progress.failed, 0);
  EXPECT_EQ(progress.tokens, 3 + 3 + 5 + 19);
  auto lines = Output();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines["a"]["id"], "batch_req_000000000001");
  EXPECT_EQ(lines["a"]["error"], Json());
  EXPECT_EQ(lines["a"]["response"]["status_code"], 200);
  EXPECT_EQ(lines["a"]["response"]["body"]["choices"][0]["text"], "one");
  EXPECT_EQ(lines["a"]["response"]["request_id"], lines["a"]["response"]["body"]["id"]);
  EXPECT_EQ(lines["b"]["response"]["body"]["model"], "sql");
  EXPECT_EQ(lines["d"]["response"]["body"]["generated_text"], "three");
  EXPECT_EQ(lines["e"]["response"]["body"]["input_tokens"], 20);
}

TEST_F(BatchTest, ALineThatFailsEndsNothing) {
  const BatchProgress progress = Run(
      "nonsense\n" + Line("bad", "/v1/completions", R"({"model":"nope","prompt":"x"})") +
      Line("url", "/v1/images", "{}") + Completion("broken", "break") + Completion("good", "fine") +
      Completion("good", "again") +
      Line("stream", "/v1/completions", R"({"model":"base","prompt":"x","stream":true})") +
      R"({"method":"POST","url":"/v1/completions","body":{}})" + "\n" + Line("tgi", "/generate", R"({"inputs":""})"));
  EXPECT_EQ(progress.lines, 9);
  EXPECT_EQ(progress.failed, 8);
  auto lines = Output();
  EXPECT_EQ(lines["batch_req_000000000001"]["error"]["code"], "invalid_line");
  EXPECT_EQ(lines["bad"]["response"]["status_code"], 404);
  EXPECT_EQ(lines["bad"]["response"]["body"]["error"]["param"], "model");
  EXPECT_EQ(lines["url"]["error"]["code"], "invalid_url");
  EXPECT_EQ(lines["broken"]["response"]["status_code"], 500);
  EXPECT_EQ(lines["good"]["response"]["body"]["choices"][0]["text"], "fine");
  EXPECT_EQ(lines["batch_req_000000000006"]["error"]["code"], "repeated_custom_id");
  EXPECT_EQ(lines["stream"]["response"]["body"]["error"]["param"], "stream");
  EXPECT_THAT(lines["batch_req_000000000008"]["error"]["message"].get<std::string>(), HasSubstr("`custom_id`"));
  EXPECT_EQ(lines["tgi"]["response"]["body"]["error_type"], "validation");
}

// A run that ended within a line is continued: nothing is asked twice, and the torn line is asked again.
TEST_F(BatchTest, ContinuesAnOutput) {
  const std::string input = Completion("a", "one") + "nonsense\n" + Completion("b", "two") + Completion("c", "three");
  Run(input, 1);
  const std::string whole = Read("out");
  const std::size_t second = whole.find('\n') + 1, third = whole.find('\n', second) + 1;
  for (const std::size_t kept : {second, third, third + 20, whole.size() - 1, whole.size()}) {
    Write("out", whole.substr(0, kept));
    asked_ = 0;
    const BatchProgress progress = Run(input, 1);
    EXPECT_EQ(progress.lines, 4);
    const std::string before = whole.substr(0, whole.rfind('\n', kept - 1) + 1);
    EXPECT_EQ(progress.skipped, std::count(before.begin(), before.end(), '\n')) << kept;
    EXPECT_EQ(Output().size(), 4u) << kept;
    EXPECT_EQ(Output()["c"]["response"]["body"]["choices"][0]["text"], "three");
    EXPECT_EQ(asked_, 3 - (before.find("\"a\"") != std::string::npos) - (before.find("\"b\"") != std::string::npos) -
                          (before.find("\"c\"") != std::string::npos));
  }
  auto output = BatchOutput::Open(Path("out"));
  EXPECT_EQ((*output)->lines_before(), 4);
  EXPECT_EQ((*output)->failed_before(), 1);
}

// Another file is never overwritten, nor added to.
TEST_F(BatchTest, AFileThatIsNoOutputIsRefused) {
  Write("out", "my diary\n");
  const auto output = BatchOutput::Open(Path("out"));
  ASSERT_FALSE(output.ok());
  EXPECT_THAT(output.error().message, HasSubstr("line 1 is no output of a batch"));
  EXPECT_EQ(Read("out"), "my diary\n");
  Write("out", "my diary");
  EXPECT_FALSE(BatchOutput::Open(Path("out")).ok());
  EXPECT_EQ(Read("out"), "my diary");
}

// As an answer with many log-probabilities has.
TEST_F(BatchTest, AnOutputMayHaveManyValues) {
  std::string values = "0";
  for (int i = 0; i < 1'100'000; ++i) values += ",0";
  const std::string line =
      R"({"id":"batch_req_000000000001","custom_id":"a","response":{"status_code":200,"body":[)" + values + "]}}\n";
  Write("out", line);
  const auto output = BatchOutput::Open(Path("out"));
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_EQ((*output)->lines_before(), 1);
}

TEST_F(BatchTest, ManyLinesWithFewAtATime) {
  std::string input;
  for (int i = 0; i < 300; ++i) input += Completion(std::to_string(i), "p" + std::to_string(i));
  const BatchProgress progress = Run(input, 8);
  EXPECT_EQ(progress.lines, 300);
  auto lines = Output();
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(lines[std::to_string(i)]["response"]["body"]["choices"][0]["text"], "p" + std::to_string(i));
  }
}

}  // namespace
}  // namespace loramux::batch_test
