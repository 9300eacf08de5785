#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/grammar/byte_tokenizer_for_test.h"
#include "text/tokenizer.h"

namespace loramux::text_test {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::ordered_json;

const std::filesystem::path kTestdata = LORAMUX_SOURCE_DIR "/src/text/testdata";
const std::filesystem::path kStory = LORAMUX_SOURCE_DIR "/../shared/data/models/story656k";

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

Tokenizer ParseTokenizer(const std::string& json_text) {
  auto parsed = Tokenizer::Parse(json_text, "test");
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  return std::move(parsed).value();
}

Tokenizer TestTokenizer(const std::string& name) { return ParseTokenizer(ReadAll(kTestdata / (name + ".json"))); }

// The same tokenizer with a different decoder.
Tokenizer WithDecoder(const std::string& name, const json& decoder) {
  json changed = json::parse(ReadAll(kTestdata / (name + ".json")));
  changed["decoder"] = decoder;
  return ParseTokenizer(changed.dump());
}

bool IsUtf8(const std::string& text) {
  // nlohmann validates UTF-8 when it writes; "ignore" omits invalid parts.
  const json value = text;
  return json::parse(value.dump(-1, ' ', false, json::error_handler_t::ignore)) == value;
}

// ------------------------------------------------------------------------------------------------ Tokenizer

const char* const kTexts[] = {"",
                              "The fox.",
                              " two  spaces ",
                              "naïve café",
                              "日本 🙂👩‍👩‍👧 e\u0301",
                              "a\nb\tc\r\n",
                              "<|end|> <note>"};

TEST(Tokenizer, RoundTrips) {
  for (const char* name : {"byte_level", "sentencepiece"}) {
    const Tokenizer tokenizer = TestTokenizer(name);
    for (const std::string text : kTexts) {
      auto ids = tokenizer.Encode(text, false);
      ASSERT_TRUE(ids.ok());
      auto decoded = tokenizer.Decode(*ids, false);
      ASSERT_TRUE(decoded.ok());
      EXPECT_EQ(*decoded, text) << name;
    }
  }
}

// As the post-processor's template for two texts says; the longer text is cut first.
TEST(Tokenizer, EncodesPairs) {
  std::string json = ReadAll(kTestdata / "byte_level.json");
  auto parsed = nlohmann::json::parse(json);
  const TokenId end = TestTokenizer("byte_level").TokenToId("<|end|>");
  const auto text = [](const char* id, int type) {
    return nlohmann::json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const nlohmann::json separator = {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}};
  parsed["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {separator, text("A", 0)}},
      {"pair", {separator, text("A", 0), separator, text("B", 1)}},
      {"special_tokens", {{"<|end|>", {{"id", "<|end|>"}, {"ids", {end}}, {"tokens", {"<|end|>"}}}}}}};
  const Tokenizer tokenizer = ParseTokenizer(parsed.dump());
  const std::vector<TokenId> a = *tokenizer.Encode("a quick brown fox", false), b = *tokenizer.Encode("lazy", false);
  ASSERT_GT(a.size(), b.size() + 1);
  const auto joined = [&](std::size_t of_a, std::size_t of_b, bool special) {
    std::vector<TokenId> tokens(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(of_a));
    if (special) tokens.insert(tokens.begin(), end);
    if (special) tokens.push_back(end);
    tokens.insert(tokens.end(), b.begin(), b.begin() + static_cast<std::ptrdiff_t>(of_b));
    return tokens;
  };
  const auto encode = [&](bool special, std::size_t most) {
    return *tokenizer.EncodePair("a quick brown fox", "lazy", special, most);
  };
  EXPECT_EQ(encode(true, 0), joined(a.size(), b.size(), true));
  EXPECT_EQ(encode(false, 0), joined(a.size(), b.size(), false));
  EXPECT_EQ(encode(true, a.size() + b.size() + 2), joined(a.size(), b.size(), true));
  EXPECT_EQ(encode(true, a.size() + b.size() + 1), joined(a.size() - 1, b.size(), true));
  EXPECT_EQ(encode(true, 1), joined(0, 0, true));
  EXPECT_FALSE(tokenizer.EncodePair("a", "\xff", true, 0).ok());
}

TEST(Tokenizer, StoryModelRoundTrips) {
  if (!std::filesystem::exists(kStory)) GTEST_SKIP() << "no model in " << kStory;
  auto loaded = Tokenizer::Load(kStory);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->VocabSize(), 2048);
  EXPECT_EQ(loaded->TokenToId("<|end_story|>"), 2);
  EXPECT_TRUE(loaded->IsSpecial(2));
  auto ids = loaded->Encode("Once upon a time, there was a fox.", true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), 1);
  EXPECT_EQ(*loaded->Decode(*ids, true), "Once upon a time, there was a fox.");
  EXPECT_EQ(loaded->Decode(*ids, false)->find("<|start_story|>"), 0u);
}

TEST(Tokenizer, KnowsItsVocabulary) {
  const Tokenizer tokenizer = TestTokenizer("byte_level");
  const TokenId end = tokenizer.TokenToId("<|end|>");
  EXPECT_TRUE(tokenizer.IsSpecial(end));
  EXPECT_EQ(tokenizer.IdToToken(end), "<|end|>");
  EXPECT_FALSE(tokenizer.IsSpecial(tokenizer.TokenToId("<note>")));
  EXPECT_EQ(tokenizer.TokenToId("no such token"), -1);
  EXPECT_EQ(tokenizer.TokenToId("\xff"), -1);
  for (const TokenId id : {-1, static_cast<TokenId>(tokenizer.VocabSize()), 1 << 30}) {
    EXPECT_EQ(tokenizer.IdToToken(id), "");
    EXPECT_FALSE(tokenizer.IsSpecial(id));
    const auto decoded = tokenizer.Decode(std::vector<TokenId>{id}, false);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidArgument);
  }
}

// The same tokenizer with one part changed.
Tokenizer With(const std::string& name, const json& patch) {
  json changed = json::parse(ReadAll(kTestdata / (name + ".json")));
  changed.merge_patch(patch);
  return ParseTokenizer(changed.dump());
}

TEST(Tokenizer, KnowsTheLongestTextOfAToken) {
  for (const char* name : {"byte_level", "sentencepiece"}) {
    const Tokenizer tokenizer = TestTokenizer(name);
    const auto bound = tokenizer.MaxTokenBytes();
    ASSERT_TRUE(bound) << name;
    for (TokenId id = 0; id < tokenizer.VocabSize(); ++id) {
      const auto text = tokenizer.Decode(std::vector<TokenId>{id}, false);
      if (text.ok()) EXPECT_LE(text->size(), *bound) << id;
    }
    for (const char* text : kTexts) EXPECT_LE(std::strlen(text), *bound * tokenizer.Encode(text, false)->size());
  }
  // Tokenizers that may drop text, or join any amount of it.
  const json strip = {{"normalizer", {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}};
  EXPECT_FALSE(With("byte_level", strip).MaxTokenBytes());
  EXPECT_FALSE(With("byte_level", {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}}).MaxTokenBytes());
  json removes = {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Removed"}, {"invert", false}};
  EXPECT_FALSE(With("byte_level", {{"pre_tokenizer", removes}}).MaxTokenBytes());
  removes["behavior"] = "Isolated";
  EXPECT_TRUE(With("byte_level", {{"pre_tokenizer", removes}}).MaxTokenBytes());
  json swallows = json::parse(ReadAll(kTestdata / "byte_level.json"))["added_tokens"];
  swallows[0]["rstrip"] = true;
  EXPECT_FALSE(With("byte_level", {{"added_tokens", swallows}}).MaxTokenBytes());
  EXPECT_FALSE(With("sentencepiece", {{"model", {{"byte_fallback", false}}}}).MaxTokenBytes());
  const auto composes = With("byte_level", {{"normalizer", {{"type", "NFC"}}}}).MaxTokenBytes();
  EXPECT_EQ(composes, *TestTokenizer("byte_level").MaxTokenBytes() * 3);
}

TEST(Tokenizer, AddsAndSkipsSpecialTokens) {
  const Tokenizer tokenizer = TestTokenizer("byte_level");
  const auto ids = tokenizer.Encode("fox<|end|>", true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), tokenizer.TokenToId("<|bos|>"));
  EXPECT_EQ(*tokenizer.Decode(*ids, true), "fox");
  EXPECT_EQ(*tokenizer.Decode(*ids, false), "<|bos|>fox<|end|>");
}

TEST(Tokenizer, RefusesWhatItCannotRead) {
  EXPECT_EQ(Tokenizer::Load(kTestdata / "nowhere").error().code, ErrorCode::kNotFound);
  const std::string deep(100'000, '[');
  for (const std::string& text : std::vector<std::string>{"", "{}", "\xff", deep, "{\"model\":" + deep}) {
    const auto parsed = Tokenizer::Parse(text, "the label");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(parsed.error().message, HasSubstr("the label: "));
  }
  EXPECT_FALSE(TestTokenizer("byte_level").Encode("\xff", false).ok());
  json huge = json::parse(ReadAll(kTestdata / "byte_level.json"));
  huge["model"]["vocab"]["far"] = 4'000'000'000u;
  EXPECT_EQ(Tokenizer::Parse(huge.dump(), "").error().code, ErrorCode::kUnsupported);
  json random = json::parse(ReadAll(kTestdata / "byte_level.json"));
  random["model"]["dropout"] = 0.5;
  EXPECT_EQ(Tokenizer::Parse(random.dump(), "").error().code, ErrorCode::kUnsupported);
}

TEST(Tokenizer, BoundsBacktracking) {
  json slow = json::parse(ReadAll(kTestdata / "byte_level.json"));
  slow["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(x+x+)+y"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Tokenizer tokenizer = ParseTokenizer(slow.dump());
  EXPECT_FALSE(tokenizer.Encode(std::string(60, 'x'), false).ok());
  EXPECT_TRUE(tokenizer.Encode("xy", false).ok());
}

TEST(Tokenizer, IsThreadSafe) {
  const Tokenizer tokenizer = TestTokenizer("byte_level");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&tokenizer] {
      for (int j = 0; j < 200; ++j) {
        const auto ids = tokenizer.Encode("The quick brown fox " + std::to_string(j), false);
        EXPECT_EQ(*tokenizer.Decode(*ids, false), "The quick brown fox " + std::to_string(j));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ------------------------------------------------------------------------------------- IncrementalDetokenizer

// Pushes `ids` and compares the pieces with Decode of all ids.
void ExpectPiecesMakeTheText(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special_tokens) {
  IncrementalDetokenizer stream(tokenizer, skip_special_tokens);
  std::string text;
  const auto take = [&text](const Result<std::string>& piece) {
    ASSERT_TRUE(piece.ok()) << piece.error().message;
    ASSERT_TRUE(IsUtf8(*piece)) << json(*piece).dump(-1, ' ', true, json::error_handler_t::replace);
    text += *piece;
  };
  for (const TokenId id : ids) take(stream.Push(id));
  take(stream.Finish());
  const auto whole = tokenizer.Decode(ids, skip_special_tokens);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_EQ(text, *whole);
}

std::vector<TokenId> RandomIds(const Tokenizer& tokenizer, Prng& prng, std::uint64_t size) {
  std::vector<TokenId> ids;
  while (ids.size() < size) {
    const TokenId id = static_cast<TokenId>(prng.NextBelow(tokenizer.VocabSize()));
    // Draws byte tokens often; otherwise runs of them, with valid and invalid characters, would be rare.
    const TokenId low = static_cast<TokenId>(prng.NextBelow(std::min<std::int64_t>(tokenizer.VocabSize(), 260)));
    ids.push_back(prng.NextBelow(3) == 0 ? id : low);
    if (tokenizer.IdToToken(ids.back()).empty()) ids.pop_back();
  }
  return ids;
}

std::vector<TokenId> MixedText(const Tokenizer& tokenizer, Prng& prng) {
  std::vector<TokenId> ids;
  for (std::uint64_t i = prng.NextBelow(5); i > 0; --i) {
    auto more = tokenizer.Encode(kTexts[prng.NextBelow(std::size(kTexts))], prng.NextBelow(2) == 0);
    // Sometimes cut within a character.
    if (prng.NextBelow(3) == 0 && !more->empty()) more->pop_back();
    ids.insert(ids.end(), more->begin(), more->end());
  }
  return ids;
}

void CheckPieces(const Tokenizer& tokenizer, std::uint64_t seed, int rounds = 400) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < rounds && !::testing::Test::HasFatalFailure(); ++i) {
    const bool skip = prng.NextBelow(2) == 0;
    ExpectPiecesMakeTheText(tokenizer, RandomIds(tokenizer, prng, prng.NextBelow(40)), skip);
    ExpectPiecesMakeTheText(tokenizer, MixedText(tokenizer, prng), skip);
  }
}

TEST(IncrementalDetokenizer, ByteLevel) { CheckPieces(TestTokenizer("byte_level"), 1); }

TEST(IncrementalDetokenizer, SentencePiece) { CheckPieces(TestTokenizer("sentencepiece"), 2); }

TEST(IncrementalDetokenizer, StoryModel) {
  if (!std::filesystem::exists(kStory)) GTEST_SKIP() << "no model in " << kStory;
  CheckPieces(Tokenizer::Load(kStory).value(), 3);
}

TEST(IncrementalDetokenizer, OtherDecoders) {
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"split", true}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const json regex = {{"type", "Replace"}, {"pattern", {{"Regex", "[aeiou]+"}}}, {"content", "*"}};
  const json bytes = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 3}, {"stop", 0}};
  const json word_piece = {{"type", "WordPiece"}, {"prefix", "t"}, {"cleanup", true}};
  const json bpe = {{"type", "BPEDecoder"}, {"suffix", "e"}};
  const json ctc = {{"type", "CTC"}, {"pad_token", "<s>"}, {"word_delimiter_token", "▁"}, {"cleanup", true}};
  const auto sequence = [](std::vector<json> parts) { return json{{"type", "Sequence"}, {"decoders", parts}}; };
  const std::vector<json> decoders = {
      json(),
      metaspace,
      replace,
      regex,
      bytes,
      fuse,
      word_piece,
      bpe,
      ctc,
      sequence({bytes, metaspace}),
      sequence({bytes, metaspace, fuse}),
      sequence({replace, bytes, fuse, strip}),
      sequence({strip, bytes}),
      sequence({bytes, word_piece}),
      sequence({fuse, regex}),
      sequence({bpe, bytes, fuse}),
      sequence({sequence({replace, bytes}), fuse}),
      sequence({fuse, fuse, strip}),
      {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}};
  for (const json& decoder : decoders) {
    SCOPED_TRACE(decoder.dump());
    CheckPieces(WithDecoder("sentencepiece", decoder), 4, 100);
  }
}

TEST(IncrementalDetokenizer, HoldsBackNoMoreThanItMust) {
  const Tokenizer tokenizer = TestTokenizer("byte_level");
  IncrementalDetokenizer stream(tokenizer, true);
  EXPECT_EQ(*stream.Push(tokenizer.TokenToId("f")), "f");
  EXPECT_EQ(*stream.Push(tokenizer.TokenToId("<|end|>")), "");  // skipped
  const auto smile = tokenizer.Encode("\U0001d11e", false);
  ASSERT_EQ(smile->size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*stream.Push((*smile)[i]), "");
  EXPECT_EQ(*stream.Push((*smile)[3]), "\U0001d11e");
  EXPECT_EQ(*stream.Push((*smile)[0]), "");
  EXPECT_EQ(*stream.Push(tokenizer.TokenToId("f")),
            "\ufffd"
            "f");
  EXPECT_EQ(*stream.Push((*smile)[0]), "");
  EXPECT_EQ(*stream.Finish(), "\ufffd");
}

TEST(IncrementalDetokenizer, UnknownIdsChangeNothing) {
  const Tokenizer tokenizer = TestTokenizer("byte_level");
  IncrementalDetokenizer stream(tokenizer, false);
  EXPECT_FALSE(stream.Push(-1).ok());
  EXPECT_FALSE(stream.Push(1 << 20).ok());
  EXPECT_EQ(*stream.Push(tokenizer.TokenToId("f")), "f");
}

// One decode of the sequence so far a token would take hours, which is beyond the limit of ctest.
TEST(IncrementalDetokenizer, NoSequenceIsExpensive) {
  for (const char* name : {"byte_level", "sentencepiece"}) {
    const Tokenizer tokenizer = TestTokenizer(name);
    const bool byte_level = std::string_view(name) == "byte_level";
    // A lone continuation byte, and the first byte of four: neither ever becomes a character.
    for (const char* token : byte_level ? std::array{"\u0122", "\xc3\xb0"} : std::array{"<0x80>", "<0xF0>"}) {
      const std::vector<TokenId> ids(100'000, tokenizer.TokenToId(token));
      ASSERT_GE(ids[0], 0) << token;
      ExpectPiecesMakeTheText(tokenizer, ids, false);
    }
  }
}

// ------------------------------------------------------------------------------------------------ StopStringMatcher

struct Expected {
  std::string text;
  bool stopped = false;
  std::string matched;
};

// The expected result: the first end of a complete stop string, and the longest stop string there.
Expected BruteForce(const std::vector<std::string>& stops, const std::string& text, bool include_stop) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, include_stop ? end : end - best.size()), true, best};
  }
  return {text, false, ""};
}

// Bytes at the end of `text` that may still become a stop string.
std::size_t HeldBack(const std::vector<std::string>& stops, const std::string& text) {
  std::size_t held = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return held;
}

std::string RandomText(Prng& prng, std::uint64_t max_size) {
  std::string text;
  for (std::uint64_t n = prng.NextBelow(max_size + 1); n > 0; --n) text += "aab"[prng.NextBelow(3)];
  return text;
}

TEST(StopStringMatcher, AgreesWithBruteForce) {
  Prng prng(5);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (std::uint64_t n = prng.NextBelow(4); n > 0; --n) stops.push_back(RandomText(prng, 5));
    const std::string text = RandomText(prng, 30);
    const bool include_stop = prng.NextBelow(2) == 0;
    const Expected expected = BruteForce(stops, text, include_stop);
    StopStringMatcher matcher(stops, include_stop);
    std::string sent, pushed, matched;
    bool stopped = false;
    while (pushed.size() < text.size() && !stopped) {
      const std::string piece = text.substr(pushed.size(), prng.NextBelow(5));
      pushed += piece;
      const auto output = matcher.Push(piece);
      sent += output.text;
      stopped = output.stopped;
      matched = output.matched;
      if (!stopped) {
        ASSERT_EQ(sent.size(), pushed.size() - HeldBack(stops, pushed)) << "round " << round;
      }
    }
    if (!stopped) sent += matcher.Finish();
    ASSERT_EQ(sent, expected.text) << "round " << round;
    ASSERT_EQ(stopped, expected.stopped) << "round " << round;
    ASSERT_EQ(matched, expected.matched) << "round " << round;
  }
}

TEST(StopStringMatcher, CopiesFindTheirOwnMatches) {
  const StopStringMatcher fresh({"ab", "c"}, false);
  StopStringMatcher first = fresh, second = fresh;
  EXPECT_EQ(first.Push("xa").text, "x");
  EXPECT_EQ(second.Push("b").text, "b");
  EXPECT_TRUE(first.Push("b").stopped);
  EXPECT_EQ(second.Finish(), "");
}

TEST(StopStringMatcher, NeverCutsACharacter) {
  StopStringMatcher matcher({"é!", "日"}, false);
  EXPECT_EQ(matcher.Push("è").text, "è");
  EXPECT_EQ(matcher.Push("é").text, "");
  const auto output = matcher.Push("x日y");
  EXPECT_EQ(output.text, "éx");
  EXPECT_EQ(output.matched, "日");
}

// The letters x and y stand for special tokens that are no part of the text: the tokens 0 and 1.
Tokenizer TwoSpecialTokens() {
  json added = json::array();
  for (const char* name : {"<x>", "<y>"}) {
    added.push_back({{"id", added.size()}, {"content", name}, {"special", true}});
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) added.back()[flag] = false;
  }
  const json vocabulary = {{"<x>", 0}, {"<y>", 1}};
  const json model = {{"type", "BPE"}, {"merges", json::array()}, {"vocab", vocabulary}};
  auto tokenizer = Tokenizer::Parse(json{{"model", model}, {"added_tokens", added}}.dump(), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
}

bool IsSpecialLetter(char c) { return c == 'x' || c == 'y'; }

std::string Spelled(const std::string& letters) {
  std::string text;
  for (const char c : letters) text += IsSpecialLetter(c) ? '<' + std::string(1, c) + '>' : std::string(1, c);
  return text;
}

std::string Shown(std::string letters) {
  std::erase_if(letters, IsSpecialLetter);
  return letters;
}

// A stop string without special tokens sees none between its bytes.
Expected BruteForceWithSpecial(const std::string& stop, const std::string& text) {
  const bool special = Shown(stop) != stop;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    if (!special && IsSpecialLetter(text[end - 1])) continue;
    const std::string before = text.substr(0, end), shown = Shown(before);
    if (!(special ? before : shown).ends_with(stop)) continue;
    return {shown.substr(0, shown.size() - Shown(stop).size()), true, Spelled(stop)};
  }
  return {Shown(text), false, ""};
}

TEST(StopStringMatcher, SpecialTokensAgreeWithBruteForce) {
  const Tokenizer tokenizer = TwoSpecialTokens();
  Prng prng(6);
  const auto random = [&](std::uint64_t max_size) {
    std::string text;
    for (std::uint64_t n = prng.NextBelow(max_size) + 1; n > 0; --n) text += "aabxy"[prng.NextBelow(5)];
    return text;
  };
  int found = 0;
  for (int round = 0; round < 5'000; ++round) {
    const std::string stop = random(4), text = random(20);
    const Expected expected = BruteForceWithSpecial(stop, text);
    StopStringMatcher matcher({Spelled(stop)}, false, tokenizer, {});
    Expected got;
    for (std::size_t i = 0; i < text.size() && !got.stopped; ++i) {
      auto output = IsSpecialLetter(text[i]) ? matcher.PushSpecial(text[i] - 'x', "") : matcher.Push(text.substr(i, 1));
      got = {got.text + output.text, output.stopped, output.matched};
    }
    if (!got.stopped) got.text += matcher.Finish();
    ASSERT_EQ(got.text, expected.text) << stop << " in " << text;
    ASSERT_EQ(got.stopped, expected.stopped) << stop << " in " << text;
    ASSERT_EQ(got.matched, expected.matched) << stop << " in " << text;
    found += expected.stopped;
  }
  EXPECT_GT(found, 500);
}

TEST(StopStringMatcher, SpecialTokensInOtherPlaces) {
  const Tokenizer tokenizer = TwoSpecialTokens();
  StopStringMatcher kept({"b<x>"}, true, tokenizer, {});
  EXPECT_EQ(kept.Push("ab").text, "a");
  EXPECT_EQ(kept.PushSpecial(0, "").text, "b<x>");
  StopStringMatcher late({"a<x>"}, false, tokenizer, {});
  EXPECT_TRUE(late.HasSpecial(0));
  EXPECT_FALSE(late.HasSpecial(1));
  EXPECT_EQ(late.PushSpecial(0, "b").text, "");
  EXPECT_EQ(late.PushSpecial(0, "ba").text, "b");  // the text before it comes late
  const TokenId shown[] = {0};
  EXPECT_FALSE(StopStringMatcher({"a<x>"}, false, tokenizer, shown).HasSpecial(0));
}

// The run of bytes before the token is not final yet, but comes before it.
TEST(IncrementalDetokenizer, SaysWhatItHolds) {
  const Tokenizer tokenizer = MakeByteTokenizer();
  IncrementalDetokenizer detokenizer(tokenizer, true);
  for (const char c : std::string("a\n")) EXPECT_EQ(*detokenizer.Push(TokenOfByte(c)), "");
  EXPECT_EQ(*detokenizer.Held(), "a\n");
  EXPECT_EQ(*detokenizer.Held(), "a\n");
  EXPECT_EQ(*detokenizer.Push(TokenOfByte('b')), "");
  EXPECT_EQ(*detokenizer.Finish(), "a\nb");
}

TEST(StopStringMatcher, WithoutStopsNothingIsHeld) {
  StopStringMatcher matcher({"", ""}, false);
  EXPECT_EQ(matcher.Push("abc").text, "abc");
  EXPECT_EQ(matcher.Finish(), "");
}

// ------------------------------------------------------------------------------------------------ ChatTemplate

Result<std::string> Render(const std::string& source, const std::string& context = "{}", std::int64_t now = 0) {
  auto parsed = ChatTemplate::Parse(source, R"({"bos_token": "<s>"})", "chat");
  if (!parsed.ok()) return parsed.error();
  return parsed->Render(context, {.add_generation_prompt = true, .unix_seconds = now});
}

TEST(ChatTemplate, RendersWithItsVariables) {
  const std::string source =
      "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %} {{ tools is none }} {{ extra | tojson }}";
  EXPECT_EQ(*Render(source, R"({"messages": [{"role": "user", "content": "<ü>"}], "extra": {"b": 1.0, "a": [null]}})"),
            "<s>[user] <ü>\n[assistant] True {\"b\": 1.0, \"a\": [null]}");
}

TEST(ChatTemplate, ErrorsSpeakTheTemplatesWords) {
  const auto raised =
      Render("{% macro m() %}{{ raise_exception('Roles must alternate: ' ~ 1) }}{% endmacro %}\n{{ m() }}");
  ASSERT_FALSE(raised.ok());
  EXPECT_EQ(raised.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(raised.error().message, "Roles must alternate: 1");
  EXPECT_THAT(Render("{{ 1 }}\n{{ x.y }}").error().message, HasSubstr("line 2: "));
  EXPECT_THAT(Render("{% if true %}\n\n{{ 'text\nmore' }}\n{{ 1 + 'a' }}{% endif %}").error().message,
              HasSubstr("line 5: "));
  EXPECT_THAT(Render("a\n{% oops %}").error().message, HasSubstr("chat: line 2: "));
  EXPECT_FALSE(Render("", "[1]").ok());
  EXPECT_FALSE(Render("", "{").ok());
  EXPECT_FALSE(Render("\xff").ok());
  EXPECT_FALSE(ChatTemplate::Parse("", "[]", "").ok());
}

TEST(ChatTemplate, TellsTheTimeItIsGiven) {
  EXPECT_EQ(*Render("{{ strftime_now('%d %b %Y %H:%M') }}", "{}", 1'720'170'487), "05 Jul 2024 09:08");
  EXPECT_EQ(*Render("{% macro m() %}{{ strftime_now('%F %j') }}{% endmacro %}{{ m() }}", "{}", -1), "1969-12-31 365");
  EXPECT_EQ(*Render("{{ strftime_now('%F %A') }}", "{}", 951'782'400), "2000-02-29 Tuesday");
}

// The expected texts are those of datetime.strftime of Python 3.11.
TEST(ChatTemplate, PrintsTimesAsPythonDoes) {
  constexpr const char* kPlain =
      "%a|%A|%b|%B|%c|%C|%d|%D|%e|%f|%F|%g|%G|%h|%H|%I|%j|%k|%l|%m|%M|%p|%P|%r|%R|%S|%T|%u|%U|%V|"
      "%w|%W|%x|%X|%y|%Y|%z|%Z|%%";
  const std::pair<std::int64_t, const char*> times[] = {
      {1609459199,
       "Thu|Thursday|Dec|December|Thu Dec 31 23:59:59 "
       "2020|20|31|12/31/20|31|000000|2020-12-31|20|2020|Dec|23|11|366|23|11|12|59|PM|pm|11:59:59 "
       "PM|23:59|59|23:59:59|4|52|53|4|52|12/31/20|23:59:59|20|2020|||%"},
      {1230771661,
       "Thu|Thursday|Jan|January|Thu Jan  1 01:01:01 2009|20|01|01/01/09| 1|000000|2009-01-01|09|2009|Jan|01|01|001| "
       "1| 1|01|01|AM|am|01:01:01 AM|01:01|01|01:01:01|4|00|01|4|00|01/01/09|01:01:01|09|2009|||%"},
      {1735689599,
       "Tue|Tuesday|Dec|December|Tue Dec 31 23:59:59 "
       "2024|20|31|12/31/24|31|000000|2024-12-31|25|2025|Dec|23|11|366|23|11|12|59|PM|pm|11:59:59 "
       "PM|23:59|59|23:59:59|2|52|01|2|53|12/31/24|23:59:59|24|2024|||%"},
      {951782400,
       "Tue|Tuesday|Feb|February|Tue Feb 29 00:00:00 2000|20|29|02/29/00|29|000000|2000-02-29|00|2000|Feb|00|12|060| "
       "0|12|02|00|AM|am|12:00:00 AM|00:00|00|00:00:00|2|09|09|2|09|02/29/00|00:00:00|00|2000|||%"},
  };
  for (const auto& [time, expected] : times) {
    EXPECT_EQ(*Render(std::string("{{ strftime_now('") + kPlain + "') }}", "{}", time), expected);
  }
  constexpr const char* kFlags =
      "%-d|%_d|%0e|%-I|%_H|%^a|%^B|%#A|%#p|%10A|%05d|%_6Y|%-j|%Ey|%Od|%^c|%5%|%i|%E|%Q|%-f|%-3d";
  EXPECT_EQ(*Render(std::string("{{ strftime_now('") + kFlags + "') }}", "{}", 1'720'170'487),
            "5| 5|05|9| 9|FRI|JULY|FRIDAY|am|    Friday|00005|  2024|187|24|05|FRI JUL  5 09:08:07 2024|    "
            "%|%i|%E|%Q|%-f|  5");
}

// transformers prints local time.
TEST(ChatTemplate, TellsLocalTime) {
  const auto parsed = ChatTemplate::Parse("{{ strftime_now('%F %H:%M %s %z') }}", "{}", "");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed->Render("{}", {.unix_seconds = 1'720'170'487, .utc_offset = 19'800}),
            "2024-07-05 14:38 1720170487 ");
  EXPECT_EQ(*parsed->Render("{}", {.unix_seconds = 1'720'130'400, .utc_offset = -36'000}),
            "2024-07-04 12:00 1720130400 ");
}

TEST(ChatTemplate, SourcesInAModelDirectory) {
  const std::filesystem::path directory = std::filesystem::temp_directory_path() / "loramux_text_test_model";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const auto write = [&directory](const char* name, const std::string& text) {
    std::ofstream(directory / name) << text;
  };
  const auto render = [&directory](const std::string& context) {
    auto loaded = ChatTemplate::Load(directory);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    if (!loaded.ok() || !loaded->has_value()) return std::string("none");
    return (*loaded)->Render(context, {}).value();
  };
  EXPECT_EQ(render("{}"), "none");
  write("special_tokens_map.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "<other>"})");
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": null, "chat_template":
      [{"name": "default", "template": "D{{ bos_token }}{{ eos_token }}"}, {"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(render("{}"), "D<s></s>");
  EXPECT_EQ(render(R"({"tools": null})"), "D<s></s>");
  EXPECT_EQ(render(R"({"tools": []})"), "T");
  write("chat_template.json", R"({"chat_template": "J"})");
  EXPECT_EQ(render("{}"), "J");
  write("chat_template.jinja", "file\n");
  EXPECT_EQ(render("{}"), "file");
  write("tokenizer_config.json", "{broken");
  EXPECT_EQ(ChatTemplate::Load(directory).error().code, ErrorCode::kInvalidArgument);
  std::filesystem::remove_all(directory);
}

std::string Repeat(std::string_view text, int count, std::string_view before = "", std::string_view after = "") {
  std::string out(before);
  while (count-- > 0) out += text;
  return out.append(after);
}

TEST(ChatTemplate, HostileTemplatesAreBounded) {
  const std::vector<std::string> templates = {
      "{% for i in range(10**9) %}x{% endfor %}",
      "{{ 'x' * 10**9 }}",
      "{{ [0] * 10**9 }}",
      "{{ 10 ** 10 ** 10 ** 10 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'x'.center(10**12) }}",
      "{{ 'x' | indent(10**12) }}",
      "{{ [1] | tojson(indent=10**12) }}",
      "{{ 'x' | center(10**9) }}",
      "{{ [1] | batch(10**12, 0) | list }}",
      "{{ [1] | slice(10**12) | list }}",
      Repeat("{% set x = x ~ x %}", 64, "{% set x = 'x' %}", "{{ x }}"),
      Repeat("{% set x = x + x %}", 64, "{% set x = [1] %}", "{{ x | length }}"),
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] | batch(1) %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = ns.x | map('batch', 1) %}{% endfor %}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.x = namespace(y=ns.x) %}{% endfor %}",
      // Cycles, which would leak.
      "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns }}{% set x = ns %}",
      "{% set ns = namespace() %}{% set ns.me = {'a': ns}.values() %}",
      "{% set ns = namespace() %}{% set ns.me = [ns] | map('list') %}",
      "{% set ns = namespace() %}{% for x in [ns] %}{% set ns.me = loop %}{% endfor %}",
      "{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}{% set ns.me = [m] %}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.c = cycler(ns.c) %}{% endfor %}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.c = {'a': ns.c}.items %}{% endfor %}",
      "{% set ns = namespace() %}{% for i in range(100000) %}{% set x = ns.m %}{% macro m() %}{{ x }}{% endmacro %}"
      "{% set ns.m = m %}{% endfor %}",
      "{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
      "{% endfor %}",
      "{% for x in [[1]] recursive %}{{ loop([[x]]) }}{% endfor %}",
      "{% set s = 'ab' * 8000000 %}{% for i in range(99999) %}{{ 'x' in s }}{{ s.find('x') }}{{ s == s }}{% endfor %}",
      "{% set s = 'ab' * 8000000 %}{% for i in range(99999) %}{{ s[i] }}{{ s[1:] }}{% endfor %}",
      "{% set s = 'ab' * 8000000 %}{% for c in s %}{{ c }}{% endfor %}",
      "{% set s = 'ab' * 8000000 %}{{ s | list | length }}{{ s | sort }}{{ s | unique | list }}",
      Repeat("{% if true %}", 20'000),
      Repeat("[", 20'000, "{{ "),
      Repeat("(", 20'000, "{{ ", "1"),
      Repeat("-", 20'000, "{{ ", "1 }}"),
      Repeat("not ", 20'000, "{{ ", "1 }}"),
      Repeat("|abs", 20'000, "{{ 1", " }}"),
      Repeat(".y", 20'000, "{{ x", " }}"),
      Repeat("[0]", 20'000, "{{ x", " }}"),
      Repeat("()", 20'000, "{{ f", " }}"),
      Repeat("1 if 1 else ", 20'000, "{{ ", "1 }}"),
      Repeat("1 ** ", 20'000, "{{ ", "1 }}"),
      Repeat("1 < ", 20'000, "{{ ", "1 }}"),
      Repeat("{% elif 0 %}", 10'000, "{% if 0 %}", "{% endif %}"),
      Repeat("{% macro m() %}", 5'000),
      // The longest forms that are allowed.
      Repeat(".y", 1'990, "{{ x", " }}"),
      Repeat("|abs", 1'990, "{{ 1", " }}"),
      Repeat("()", 1'990, "{{ f", " }}"),
      Repeat("[0]", 1'330, "{{ x", " }}"),
      Repeat(" ** 1", 1'990, "{{ 1", " }}"),
      Repeat(" - 1 + 1", 990, "{{ 1", " }}"),
      Repeat(" is none", 1'990, "{{ 1", " }}"),
      Repeat(" < 1", 1'990, "{{ 1", " }}"),
      Repeat("{% elif 0 %}", 499, "{% if 0 %}", "{% endif %}"),
      Repeat("{% set a = a %}{% macro b() %}{{ a() }}{% endmacro %}{% set a = b %}", 3'000,
             "{% macro a() %}{% endmacro %}", "{{ a() }}"),
  };
  for (const std::string& source : templates) {
    const auto result = Render(source);  // one without a bound would not end within the limit of ctest
    if (result.ok()) {
      EXPECT_LT(result->size(), 64u << 20) << source.substr(0, 200);
    }
  }
  // A long but flat expression is allowed.
  EXPECT_EQ(*Render(Repeat(" + 1", 1'500, "{{ 1", " }}")), "1501");
  EXPECT_EQ(Render(Repeat(" ~ 'a'", 1'500, "{{ 'a'", " }}"))->size(), 1'501u);
}

TEST(ChatTemplate, HostileDataIsBounded) {
  const std::string deep = Repeat("[", 100'000, "{\"x\": ");
  EXPECT_FALSE(Render("{{ x }}", deep).ok());
  EXPECT_TRUE(Render("{{ x | tojson }}{{ x }}", Repeat("[", 100, "{\"x\": ", Repeat("]", 100, "", "}"))).ok());
}

TEST(ChatTemplate, IsThreadSafe) {
  const auto parsed =
      ChatTemplate::Parse("{% for m in messages %}{{ m.content }}{{ strftime_now('%s') }}{% endfor %}", "{}", "");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&parsed, i] {
      for (int j = 0; j < 100; ++j) {
        EXPECT_EQ(*parsed->Render(R"({"messages": [{"content": "a"}]})", {.unix_seconds = i}), "a" + std::to_string(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace loramux::text_test
