// FastLibra's three scenarios, scaled down (section 6.2 of that document): the requests, their adapters and their
// times. Generated in advance from a seed, so that every regime sees the same conversations at the same times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace loramux {

// The kinds of load.
enum class Scenario {
  // conversations: every turn sends the whole conversation, after a system prompt shared by the adapter's users
  kChat,
  kTranslate,  // single short requests; the most popular adapters change over time
  kAgent,      // recorded task dialogs with the tools' answers; one scene per adapter
};

// Names: "chat", "translate", "agent". Error of FindScenario: an unknown name.
const char* ScenarioName(Scenario scenario);
std::vector<std::string> ScenarioNames();
Result<Scenario> FindScenario(std::string_view name);

// One turn of a session.
struct SessionTurn {
  // the prompt after the previous answer: the user's turn, with its template
  std::vector<TokenId> said;
  std::int32_t answer_tokens = 0;  // exactly this many are generated
  TimeNs at = 0;                   // since the start of the run
};

// One conversation. A turn's prompt is the whole conversation so far, including answers, and its own `said`.
struct Session {
  std::size_t adapter = 0;         // index
  std::vector<SessionTurn> turns;  // ascending times
};

// Options of MakeSessions.
struct ScenarioOptions {
  std::size_t adapters = 96;
  double zipf = 0.8;                  // exponent of the adapters' popularity
  double rate = 40;                   // requests per second
  double seconds = 7;                 // latest time of an arrival
  std::int64_t max_positions = 1024;  // longest conversation; turns beyond are left out
  std::uint64_t seed = 1;
};

// The texts of the sessions, and their conversion to tokens.
class ScenarioText {
 public:
  // `demo` is the demo folder (model/ and eval/). `dialogs` is a file of Taskmaster-4; empty: no agent scenario.
  static Result<ScenarioText> Load(const std::filesystem::path& demo, const std::filesystem::path& dialogs);

  // Whether the agent scenario is available.
  bool has_dialogs() const { return !scenes_.empty(); }
  // Generates the sessions of a scenario. REQUIRES: has_dialogs() for Scenario::kAgent.
  Result<std::vector<Session>> MakeSessions(Scenario scenario, const ScenarioOptions& options) const;

 private:
  struct Exchange {
    std::string user, tools;  // the user's text, and the tools' answer to it
    std::int32_t answer_tokens = 0;
  };
  struct Scene {
    std::string name;
    std::vector<std::vector<Exchange>> dialogs;
  };
  // The text of one session, without times.
  struct Script {
    std::string system;
    std::vector<Exchange> exchanges;
  };

  ScenarioText(Tokenizer tokenizer, ChatTemplate chat) : tokenizer_(std::move(tokenizer)), template_(std::move(chat)) {}
  Status LoadWords(const std::filesystem::path& folder);
  Status LoadDialogs(const std::filesystem::path& path);
  std::string Words(std::uint64_t seed, std::size_t count) const;
  Script Write(Scenario scenario, std::size_t adapter, std::uint64_t seed) const;
  Result<std::vector<TokenId>> Render(const std::string& system, const std::string& user) const;
  Result<Session> MakeSession(const Script& script, std::int64_t max_positions) const;

  Tokenizer tokenizer_;
  ChatTemplate template_;
  TokenId end_of_answer_ = -1;
  std::vector<std::string> words_;
  std::vector<Scene> scenes_;  // in order of name
};

}  // namespace loramux
