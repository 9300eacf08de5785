#include "lab/experiments/scenario_workload.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "adapter/registry.h"
#include "formats/adapter_config.h"
#include "formats/model_config.h"
#include "lab/experiments/adapter_copies.h"

namespace loramux::scenario_workload_test {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";
const std::filesystem::path kDialogs =
    std::filesystem::path(LORAMUX_SOURCE_DIR) / "../shared/data/dialogs/taskmaster4_data_00.json";

ScenarioText Load(bool dialogs) {
  auto text = ScenarioText::Load(kDemo, dialogs ? kDialogs : "");
  CHECK(text.ok());
  return std::move(*text);
}

void ExpectSound(const std::vector<Session>& sessions, const ScenarioOptions& options) {
  ASSERT_FALSE(sessions.empty());
  for (const Session& session : sessions) {
    EXPECT_LT(session.adapter, options.adapters);
    ASSERT_FALSE(session.turns.empty());
    std::int64_t positions = 0;
    TimeNs before = -1;
    for (const SessionTurn& turn : session.turns) {
      EXPECT_GT(turn.at, before);
      EXPECT_LT(turn.at, static_cast<TimeNs>(options.seconds * kNsPerSecond));
      EXPECT_GT(turn.answer_tokens, 0);
      EXPECT_GT(turn.said.size(), 2u);
      before = turn.at;
      positions += static_cast<std::int64_t>(turn.said.size()) + turn.answer_tokens;
    }
    EXPECT_LE(positions, options.max_positions);
  }
}

std::size_t Requests(const std::vector<Session>& sessions) {
  std::size_t requests = 0;
  for (const Session& session : sessions) requests += session.turns.size();
  return requests;
}

TEST(ScenarioWorkload, QuestionsThatAreNoneAreAnError) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "scenario_questions";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "eval");
  std::filesystem::create_directory_symlink(std::filesystem::absolute(kDemo / "model"), folder / "model");
  for (const char* line : {"{\"prompt\": ", "[]", "{\"answer\": \"a\"}", "{\"prompt\": 3}", "null"}) {
    std::ofstream(folder / "eval" / "task.jsonl") << "{\"prompt\": \"a word\"}\n" << line << "\n";
    const auto text = ScenarioText::Load(folder, "");
    ASSERT_FALSE(text.ok()) << line;
    EXPECT_NE(text.error().message.find("task.jsonl"), std::string::npos) << text.error().message;
  }
  std::filesystem::remove_all(folder);
}

TEST(ScenarioWorkload, ChatSharesASystemPromptAndIsTheSameForASeed) {
  const ScenarioText text = Load(false);
  const ScenarioOptions options{.adapters = 5, .rate = 40, .seconds = 10};
  const auto sessions = text.MakeSessions(Scenario::kChat, options).value();
  ExpectSound(sessions, options);
  EXPECT_NEAR(static_cast<double>(Requests(sessions)), 400, 120);
  std::map<std::size_t, std::vector<TokenId>> begins;  // by adapter
  for (const Session& session : sessions) {
    const std::vector<TokenId> begin(session.turns[0].said.begin(), session.turns[0].said.begin() + 40);
    EXPECT_EQ(begins.emplace(session.adapter, begin).first->second, begin);
  }
  std::set<std::vector<TokenId>> different;
  for (const auto& [adapter, begin] : begins) different.insert(begin);
  EXPECT_EQ(different.size(), begins.size());

  const auto again = text.MakeSessions(Scenario::kChat, options).value();
  ASSERT_EQ(again.size(), sessions.size());
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_EQ(again[i].turns.back().said, sessions[i].turns.back().said);
    EXPECT_EQ(again[i].turns.back().at, sessions[i].turns.back().at);
  }
}

TEST(ScenarioWorkload, LaterTurnsBeginWhereTheAnswerEnds) {
  const ScenarioText text = Load(false);
  const auto sessions = text.MakeSessions(Scenario::kChat, {.adapters = 2, .rate = 20, .seconds = 10}).value();
  const auto tokenizer = Tokenizer::Load(kDemo / "model").value();
  for (const Session& session : sessions) {
    EXPECT_EQ(tokenizer.IdToToken(session.turns[0].said[0]), "<|bos|>");
    for (std::size_t turn = 1; turn < session.turns.size(); ++turn) {
      EXPECT_EQ(tokenizer.IdToToken(session.turns[turn].said[0]), "<|end|>");
      EXPECT_EQ(tokenizer.IdToToken(session.turns[turn].said[1]), "<|user|>");
    }
  }
}

TEST(ScenarioWorkload, TranslationsShiftFromAdaptersToOthers) {
  const ScenarioOptions options{.adapters = 40, .zipf = 1.5, .rate = 100, .seconds = 20};
  const auto sessions = Load(false).MakeSessions(Scenario::kTranslate, options).value();
  ExpectSound(sessions, options);
  std::map<std::size_t, std::map<std::size_t, int>> asked;  // by quarter and adapter
  for (const Session& session : sessions) {
    EXPECT_EQ(session.turns.size(), 1u);
    ++asked[static_cast<std::size_t>(session.turns[0].at * 4 / static_cast<TimeNs>(options.seconds * kNsPerSecond))]
           [session.adapter];
  }
  std::set<std::size_t> favourites;
  for (const auto& [quarter, counts] : asked) {
    favourites.insert(
        std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) { return a.second < b.second; })->first);
  }
  EXPECT_EQ(favourites.size(), 4u);
}

TEST(ScenarioWorkload, AgentsTalkAboutTheirScene) {
  if (!std::filesystem::exists(kDialogs)) GTEST_SKIP() << "no " << kDialogs;
  const ScenarioOptions options{.adapters = 8, .rate = 40, .seconds = 10};
  const auto sessions = Load(true).MakeSessions(Scenario::kAgent, options).value();
  ExpectSound(sessions, options);
  EXPECT_GT(Requests(sessions), sessions.size() * 3 / 2);
}

TEST(ScenarioWorkload, AnUnknownScenarioNamesTheValidOnes) {
  EXPECT_EQ(FindScenario("translate").value(), Scenario::kTranslate);
  EXPECT_NE(FindScenario("chess").error().message.find("chat, translate or agent"), std::string::npos);
}

// Copies that shared a branch of the tree would make the load lighter than stated.
TEST(AdapterCopies, EveryCopyIsAnotherAdapter) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "adapter-copies";
  const auto copies = CopyAdapters(kDemo / "adapters", folder, 30, 1'000'000).value();
  ASSERT_EQ(copies.size(), 30u);
  const auto model = LoadModelConfig(kDemo / "model").value();
  AdapterRegistry registry(model, {"base"}, {.page_bytes = 1 << 16});
  std::set<std::string> digests;
  for (const auto& copy : copies)
    digests.insert(registry.Register(copy.filename().string(), copy, 0).value()->file.digest);
  EXPECT_EQ(digests.size(), copies.size());
  EXPECT_FALSE(std::filesystem::exists(folder / "toyspeak-0"));  // 2.6 MB
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(CopyAdapters(kDemo / "adapters", folder, 1, 100).ok());
  EXPECT_FALSE(CopyAdapters(kDemo / "adapters", folder, 14 * kMaxAdapterCopies, 1'000'000).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace loramux::scenario_workload_test
