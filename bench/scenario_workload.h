// FastLibra's three scenarios in small (section 6.2 of that document): who asks which adapter what, and when. Made
// before anything runs, from a seed: the same conversations at the same times for every regime.
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

enum class Scenario {
  // conversations: every turn sends all that was said, behind a system prompt that an adapter's users share
  kChat,
  kTranslate,  // single short requests; which adapters are asked most shifts over time
  kAgent,      // recorded task dialogs with what the tools answered; one scene an adapter
};

// "chat", "translate", "agent".
const char* ScenarioName(Scenario scenario);
std::vector<std::string> ScenarioNames();
Result<Scenario> FindScenario(std::string_view name);

struct SessionTurn {
  // what the prompt has behind the previous answer: the user's turn, with its template
  std::vector<TokenId> said;
  std::int32_t answer_tokens = 0;  // exactly so many are generated
  TimeNs at = 0;                   // since the start of the run
};

// One conversation: the prompt of a turn is all that was said before, answers included, and its own `said`.
struct Session {
  std::size_t adapter = 0;         // index
  std::vector<SessionTurn> turns;  // ascending times
};

struct ScenarioOptions {
  std::size_t adapters = 96;
  double zipf = 0.8;                  // exponent of the adapters' popularity
  double rate = 40;                   // requests a second
  double seconds = 7;                 // the last arrival's time at most
  std::int64_t max_positions = 1024;  // of a conversation; turns beyond are left out
  std::uint64_t seed = 1;
};

// What people say, and how it becomes tokens.
class ScenarioText {
 public:
  // `demo` is the demo folder (model/ and eval/). `dialogs` is a file of Taskmaster-4; empty: no agents.
  static Result<ScenarioText> Load(const std::filesystem::path& demo, const std::filesystem::path& dialogs);

  bool has_dialogs() const { return !scenes_.empty(); }
  // REQUIRES: has_dialogs() for agents.
  Result<std::vector<Session>> MakeSessions(Scenario scenario, const ScenarioOptions& options) const;

 private:
  struct Exchange {
    std::string user, tools;  // said; what the tools answered to it
    std::int32_t answer_tokens = 0;
  };
  struct Scene {
    std::string name;
    std::vector<std::vector<Exchange>> dialogs;
  };
  // What one session says, without times.
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
