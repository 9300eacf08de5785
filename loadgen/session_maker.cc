#include "loadgen/session_maker.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace loramux::load {
namespace {

constexpr auto kWords = std::to_array<std::string_view>(
    {"time",    "year",    "people", "way",     "day",     "man",     "thing",    "woman",    "life",   "child",
     "world",   "school",  "state",  "family",  "student", "group",   "country",  "problem",  "hand",   "part",
     "place",   "case",    "week",   "company", "system",  "program", "question", "work",     "number", "night",
     "point",   "home",    "water",  "room",    "mother",  "area",    "money",    "story",    "fact",   "month",
     "lot",     "right",   "study",  "book",    "eye",     "job",     "word",     "business", "issue",  "side",
     "kind",    "head",    "house",  "service", "friend",  "father",  "power",    "hour",     "game",   "line",
     "end",     "member",  "law",    "car",     "city",    "name",    "team",     "minute",   "idea",   "body",
     "back",    "parent",  "face",   "level",   "office",  "door",    "health",   "person",   "art",    "war",
     "history", "party",   "result", "change",  "morning", "reason",  "research", "girl",     "guy",    "moment",
     "air",     "teacher", "force",  "foot",    "boy",     "age",     "policy",   "music",    "market", "sense"});

constexpr auto kChoices =
    std::to_array<std::pair<std::string_view, AdapterChoice>>({{"uniform", AdapterChoice::kUniform},
                                                               {"zipf", AdapterChoice::kZipf},
                                                               {"distinct", AdapterChoice::kDistinct},
                                                               {"trace", AdapterChoice::kTrace}});

std::uint64_t Mix(std::uint64_t seed, std::uint64_t value) { return SplitMix64(seed) ^ SplitMix64(value + 0x51ed27); }

std::int64_t Bounded(std::int64_t tokens, std::int64_t bound) { return bound > 0 ? std::min(tokens, bound) : tokens; }

// Returns the text of a trace's blocks. A block has the same text in every request.
std::string BlockWords(const std::vector<std::int32_t>& blocks, std::int64_t words, std::int64_t words_a_block) {
  std::string text;
  for (const std::int64_t block : blocks) {
    if (words <= 0) break;
    Prng prng(SplitMix64(static_cast<std::uint64_t>(block)));
    text += RandomWords(std::min(words, words_a_block), prng) + " ";
    words -= words_a_block;
  }
  return text;
}

}  // namespace

Result<AdapterChoice> ParseAdapterChoice(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [known, choice] : kChoices) {
    if (known == name) return choice;
    names.push_back(known);
  }
  return InvalidArgument(
      fmt::format("--adapter-distribution: expected one of {}, found '{}'", fmt::join(names, ", "), name));
}

std::string RandomWords(std::int64_t count, Prng& prng) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[prng.NextBelow(kWords.size())];
  }
  return text;
}

Result<SessionMaker> SessionMaker::Make(SessionOptions options, const Trace* trace) {
  SessionMaker maker;
  maker.options_ = std::move(options);
  const SessionOptions& o = maker.options_;
  if (o.choice == AdapterChoice::kTrace && (trace == nullptr || trace->clients == 0)) {
    return InvalidArgument(
        "--adapter-distribution trace: expected a trace that names the client of each request (a folder of ServeGen "
        "clients)");
  }
  maker.models_ = o.adapters;
  maker.models_.push_back(o.base_model);
  if (!o.adapters.empty()) {
    maker.picker_.emplace(PowerLaw(o.adapters.size(), o.choice == AdapterChoice::kZipf ? o.zipf_exponent : 0));
  }
  if (trace != nullptr) maker.block_tokens_ = trace->block_tokens;
  for (std::size_t i = 0; i < maker.models_.size() && !o.tasks.empty(); ++i) {
    const std::string_view name = i < o.adapters.size() ? std::string_view(o.adapters[i]) : std::string_view("base");
    const auto task = std::find_if(o.tasks.begin(), o.tasks.end(), [&](const Task& t) { return t.name == name; });
    const bool asked = i < o.adapters.size() ? o.base_share < 1 : o.base_share > 0 || o.adapters.empty();
    if (task == o.tasks.end() && asked) {
      return InvalidArgument(
          fmt::format("--tasks: no questions for {}: expected a file {}.jsonl", maker.models_[i], name));
    }
    maker.task_of_.push_back(task == o.tasks.end() ? nullptr : &*task);
  }
  return maker;
}

int SessionMaker::PickModel(std::int64_t index, const Arrival* arrival, Prng& prng) const {
  const double coin = prng.NextDouble();
  if (options_.adapters.empty() || coin < options_.base_share) return base();
  const auto count = static_cast<std::int64_t>(options_.adapters.size());
  if (options_.choice == AdapterChoice::kDistinct) return static_cast<int>(index % count);
  if (options_.choice == AdapterChoice::kTrace && arrival != nullptr) return static_cast<int>(arrival->client % count);
  return static_cast<int>(picker_->Draw(prng));
}

std::int64_t SessionMaker::Words(std::int64_t tokens, bool first) const {
  const double for_words = static_cast<double>(tokens) - (first ? scale_.overhead : 0);
  return std::max<std::int64_t>(1, std::llround(for_words / scale_.per_word));
}

Turn SessionMaker::MakeQuestion(int model, Prng& prng) const {
  const auto& questions = task_of_[static_cast<std::size_t>(model)]->questions;
  const Question& question = questions[prng.NextBelow(questions.size())];
  return {.prompt = question.prompt, .answer = question.answer, .max_tokens = options_.answer_tokens};
}

Turn SessionMaker::MakeWords(const Arrival* arrival, bool first, Prng& prng) const {
  std::int64_t input = options_.input_tokens.Draw(prng), output = options_.output_tokens.Draw(prng);
  if (first && arrival != nullptr && arrival->input_tokens > 0) input = arrival->input_tokens;
  if (first && arrival != nullptr && arrival->output_tokens > 0) output = arrival->output_tokens;
  const std::int64_t words = Words(Bounded(input, options_.max_input_tokens), first);
  Turn turn{.max_tokens = Bounded(output, options_.max_output_tokens), .ignore_eos = options_.ignore_eos};
  if (first && arrival != nullptr && !arrival->blocks.empty() && block_tokens_ > 0) {
    turn.prompt = BlockWords(arrival->blocks, words, Words(block_tokens_, false));
  } else {
    turn.prompt = RandomWords(words, prng);
  }
  return turn;
}

Session SessionMaker::MakeSession(std::int64_t index, const Arrival* arrival) const {
  Prng prng(Mix(options_.seed, static_cast<std::uint64_t>(index)));
  Session session{.index = index, .model = PickModel(index, arrival, prng)};
  if (options_.prefix_tokens > 0) {
    Prng of_model(Mix(options_.seed, ~static_cast<std::uint64_t>(session.model)));
    session.prefix = RandomWords(Words(options_.prefix_tokens, false), of_model);
  }
  for (int turn = 0; turn < options_.turns; ++turn) {
    session.turns.push_back(options_.tasks.empty() ? MakeWords(arrival, turn == 0, prng)
                                                   : MakeQuestion(session.model, prng));
  }
  return session;
}

}  // namespace loramux::load
