#include "lab/experiments/scenario_workload.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "base/text_file.h"
#include "workload/distributions.h"

namespace loramux {
namespace {

constexpr struct {
  Scenario scenario;
  const char* name;
  double mean_turns;     // approximate: the number of sessions for a rate of requests
  double think_seconds;  // mean, between the turns of a session
} kScenarios[] = {
    {Scenario::kChat, "chat", 5.5, 0.5},
    {Scenario::kTranslate, "translate", 1, 0},
    {Scenario::kAgent, "agent", 4.5, 0.5},
};

const auto& Traits(Scenario scenario) {
  return *std::find_if(std::begin(kScenarios), std::end(kScenarios),
                       [&](const auto& s) { return s.scenario == scenario; });
}

constexpr std::size_t kLongestToolAnswer = 48;  // bytes of a recorded one; the rest is left out
constexpr std::size_t kShifts = 4;              // how often the popular adapters change in a run of kTranslate
// of agents: dialogs of a scene follow each other until there are this many turns
constexpr std::size_t kSessionTurns = 4;

}  // namespace

const char* ScenarioName(Scenario scenario) { return Traits(scenario).name; }

std::vector<std::string> ScenarioNames() {
  std::vector<std::string> names;
  for (const auto& scenario : kScenarios) names.push_back(scenario.name);
  return names;
}

Result<Scenario> FindScenario(std::string_view name) {
  for (const auto& scenario : kScenarios) {
    if (name == scenario.name) return scenario.scenario;
  }
  return InvalidArgument("--scenarios: expected chat, translate or agent, found '" + std::string(name) + "'");
}

Result<ScenarioText> ScenarioText::Load(const std::filesystem::path& demo, const std::filesystem::path& dialogs) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(demo / "model"));
  ASSIGN_OR_RETURN(std::optional<ChatTemplate> chat, ChatTemplate::Load(demo / "model"));
  if (!chat) return NotFound("expected a chat template, found none in " + (demo / "model").string());
  ScenarioText text(std::move(tokenizer), std::move(*chat));
  ASSIGN_OR_RETURN(const std::vector<TokenId> first, text.Render("a", "b"));
  ASSIGN_OR_RETURN(const std::vector<TokenId> end, text.tokenizer_.Encode("<|end|>", false));
  if (first.size() < 2 || end.size() != 1)
    return InvalidArgument("expected the demo model's tokenizer, found another one in " + (demo / "model").string());
  text.end_of_answer_ = end[0];
  RETURN_IF_ERROR(text.LoadWords(demo / "eval"));
  if (!dialogs.empty()) RETURN_IF_ERROR(text.LoadDialogs(dialogs));
  return text;
}

// Collects the words of all held-out questions.
Status ScenarioText::LoadWords(const std::filesystem::path& folder) {
  std::set<std::string> words;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    ASSIGN_OR_RETURN(const std::string file, ReadTextFile(entry->path().string()));
    std::istringstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      const auto question = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!question.is_object() || !question.contains("prompt") || !question["prompt"].is_string()) {
        return InvalidArgument(entry->path().string() + ": expected an object with the string prompt in each line");
      }
      std::istringstream prompt(question["prompt"].get<std::string>());
      for (std::string word; prompt >> word;) words.insert(word);
    }
  }
  if (error) return IoError(folder.string() + ": " + error.message());
  words_.assign(words.begin(), words.end());
  if (words_.empty()) return NotFound("expected questions, found none in " + folder.string());
  return Ok{};
}

// An exchange is a turn of the user, and of the assistant if one follows. The tools' answers are in the dialog's
// annotations.
Status ScenarioText::LoadDialogs(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadTextFile(path.string()));
  std::map<std::string, Scene> scenes;
  try {
    for (const auto& dialog : nlohmann::json::parse(file)) {
      std::vector<Exchange> exchanges;
      for (const auto& utterance : dialog.at("utterances")) {
        const std::string text = utterance.at("text");
        if (utterance.at("speaker") != "user") {
          // one byte per token
          if (!exchanges.empty()) exchanges.back().answer_tokens = static_cast<std::int32_t>(text.size());
          continue;
        }
        Exchange exchange{.user = text, .answer_tokens = 16};
        for (const auto& note : utterance.at("annotations")) {
          if (note.at("name") == "response")
            exchange.tools += note.at("value").get<std::string>().substr(0, kLongestToolAnswer);
        }
        exchanges.push_back(std::move(exchange));
      }
      for (Exchange& exchange : exchanges) exchange.answer_tokens = std::clamp(exchange.answer_tokens, 8, 32);
      Scene& scene = scenes[dialog.at("scenario")];
      scene.name = dialog.at("scenario");
      if (!exchanges.empty()) scene.dialogs.push_back(std::move(exchanges));
    }
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument(path.string() + ": expected a file of Taskmaster-4: " + e.what());
  }
  for (auto& [name, scene] : scenes) {
    if (!scene.dialogs.empty()) scenes_.push_back(std::move(scene));
  }
  if (scenes_.empty()) return InvalidArgument(path.string() + ": expected dialogs, found none");
  return Ok{};
}

std::string ScenarioText::Words(std::uint64_t seed, std::size_t count) const {
  Prng prng(seed);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + words_[prng.NextBelow(words_.size())];
  return text;
}

ScenarioText::Script ScenarioText::Write(Scenario scenario, std::size_t adapter, std::uint64_t seed) const {
  Prng prng(seed);
  const auto between = [&](std::uint64_t low, std::uint64_t high) { return low + prng.NextBelow(high - low + 1); };
  // the texts differ by session, the system prompt only by adapter
  const std::uint64_t of_adapter = SplitMix64(adapter + 1);
  Script script;
  switch (scenario) {
    case Scenario::kChat:
      script.system = Words(of_adapter, 16);
      for (std::size_t turns = between(3, 8); script.exchanges.size() < turns;) {
        script.exchanges.push_back(
            {Words(prng.Next(), between(5, 14)), "", static_cast<std::int32_t>(between(12, 32))});
      }
      break;
    case Scenario::kTranslate:
      script.system = Words(of_adapter, 6);
      script.exchanges.push_back({Words(prng.Next(), between(4, 10)), "", static_cast<std::int32_t>(between(12, 24))});
      break;
    case Scenario::kAgent: {
      const Scene& scene = scenes_[adapter % scenes_.size()];
      script.system = scene.name + ". " + Words(of_adapter, 12);
      while (script.exchanges.size() < kSessionTurns) {
        const auto& dialog = scene.dialogs[prng.NextBelow(scene.dialogs.size())];
        script.exchanges.insert(script.exchanges.end(), dialog.begin(), dialog.end());
      }
    }
  }
  return script;
}

// An empty system prompt: no system message.
Result<std::vector<TokenId>> ScenarioText::Render(const std::string& system, const std::string& user) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  const nlohmann::ordered_json context = {{"messages", messages}};
  ASSIGN_OR_RETURN(const std::string text, template_.Render(context.dump(), {}));
  return tokenizer_.Encode(text, false);
}

Result<Session> ScenarioText::MakeSession(const Script& script, std::int64_t max_positions) const {
  Session session;
  std::int64_t positions = 0;
  for (const Exchange& exchange : script.exchanges) {
    const std::string user = exchange.user + (exchange.tools.empty() ? "" : " " + exchange.tools);
    SessionTurn turn{.answer_tokens = exchange.answer_tokens};
    ASSIGN_OR_RETURN(turn.said, Render(session.turns.empty() ? script.system : "", user));
    // Later turns begin with the end of the answer where the first one has the beginning of the text.
    if (!session.turns.empty()) turn.said[0] = end_of_answer_;
    positions += static_cast<std::int64_t>(turn.said.size()) + turn.answer_tokens;
    if (positions > max_positions) break;
    session.turns.push_back(std::move(turn));
  }
  return session;
}

Result<std::vector<Session>> ScenarioText::MakeSessions(Scenario scenario, const ScenarioOptions& options) const {
  const auto& traits = Traits(scenario);
  const WeightedChoice popularity(PowerLaw(options.adapters, options.zipf));
  Prng prng(options.seed);
  std::vector<Session> sessions;
  for (double begin = 0;;) {
    begin += DrawExponential(prng, traits.mean_turns / options.rate);
    if (begin >= options.seconds) return sessions;
    std::size_t adapter = popularity.Draw(prng);
    if (scenario == Scenario::kTranslate) {
      const auto shift = static_cast<std::size_t>(begin / options.seconds * kShifts);
      adapter = (adapter + shift * options.adapters / kShifts) % options.adapters;
    }
    ASSIGN_OR_RETURN(Session session, MakeSession(Write(scenario, adapter, prng.Next()), options.max_positions));
    session.adapter = adapter;
    double at = begin;
    for (SessionTurn& turn : session.turns) {
      turn.at = static_cast<TimeNs>(at * kNsPerSecond);
      at += traits.think_seconds / 4 +
            (traits.think_seconds > 0 ? DrawExponential(prng, traits.think_seconds * 3 / 4) : 0);
    }
    const auto end = static_cast<TimeNs>(options.seconds * kNsPerSecond);
    while (!session.turns.empty() && session.turns.back().at >= end) session.turns.pop_back();
    if (!session.turns.empty()) sessions.push_back(std::move(session));
  }
}

}  // namespace loramux
