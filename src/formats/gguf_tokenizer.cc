#include "formats/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/message.h"

namespace loramux {
namespace {

using nlohmann::json;

constexpr const char* kGiveTokenizer = "; give the model's own with --tokenizer DIR";
constexpr std::size_t kMaxTokens = std::size_t{1} << 20;
constexpr std::size_t kMaxMerges = std::size_t{1} << 22;
constexpr std::size_t kMaxPieceBytes = 256;     // longest SentencePiece token: merging takes its square
constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// Kinds of tokens in tokenizer.ggml.token_type.
constexpr double kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

// How the text is cut before merges.
enum class Cut : std::uint8_t {
  kWords,           // as GPT-2 does
  kDigitsAndWords,  // each digit first, then as GPT-2 does
  kPattern,
  kFalcon,  // runs of punctuation, then as GPT-2 does, then digits by three
};

// A pre-tokenizer of byte-level BPE by its names in tokenizer.ggml.pre.
struct PreTokenizer {
  std::array<std::string_view, 5> names;
  Cut cut;
  const char* pattern;  // for kPattern
  bool whole_words;     // a word that is a token needs no merges
  bool nfc;             // the text is normalised first
  bool add_bos;         // unless the file says otherwise
};

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

constexpr PreTokenizer kPreTokenizers[] = {
    {{"gpt-2", "phi-2", "exaone4", "granite-docling"}, Cut::kWords, nullptr, false, false, false},
    {{"olmo", "mpt"}, Cut::kWords, nullptr, false, true, false},
    {{"smollm", "refact", "starcoder", "exaone", "minerva-7b"}, Cut::kDigitsAndWords, nullptr, false, false, false},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"}, Cut::kPattern, kLlama3, true, false, true},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, Cut::kPattern, kLlama3, false, false, false},
    {{"glm4"}, Cut::kPattern, kLlama3, true, false, false},
    {{"qwen2", "deepseek-r1-qwen"}, Cut::kPattern, kQwen2, false, true, false},
    {{"stablelm2"}, Cut::kPattern, kQwen2, false, false, false},
    {{"qwen35"}, Cut::kPattern, kQwen35, false, true, false},
    {{"tekken"}, Cut::kPattern, kTekken, true, false, true},
    {{"gpt-4o"}, Cut::kPattern, kGpt4o, false, false, false},
    {{"falcon"}, Cut::kFalcon, nullptr, false, false, false},
    {{"bloom"}, Cut::kPattern, kBloom, false, false, false},
};

// The tokens of a file.
struct Vocabulary {
  std::vector<std::string_view> texts;
  std::vector<double> kinds;   // as above; as long as `texts`
  std::vector<double> scores;  // empty: none
};

Error Refused(const GgufFile& file, const std::string& key, const std::string& what) {
  return Unsupported(file.label() + ": " + key + ": " + what + kGiveTokenizer, key);
}

Result<Vocabulary> ReadVocabulary(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.tokens";
  ASSIGN_OR_RETURN(const auto texts, file.Array(key, GgufArray::Element::kText));
  if (!texts || texts->size() == 0 || texts->size() > kMaxTokens)
    return Refused(file, key, "expected a list of 1 to " + std::to_string(kMaxTokens) + " tokens");
  Vocabulary vocabulary;
  vocabulary.texts = texts->Texts();
  std::unordered_set<std::string_view> seen;
  for (const std::string_view text : vocabulary.texts) {
    if (!seen.insert(text).second) return Refused(file, key, "the token " + Quote(text) + " appears twice");
  }
  vocabulary.kinds.assign(vocabulary.texts.size(), kNormal);
  for (const auto& [name, values] : {std::pair{"tokenizer.ggml.token_type", &vocabulary.kinds},
                                     std::pair{"tokenizer.ggml.scores", &vocabulary.scores}}) {
    ASSIGN_OR_RETURN(const auto numbers, file.Array(name, GgufArray::Element::kNumber));
    if (!numbers) continue;
    if (numbers->size() != texts->size()) {
      return Refused(file, name,
                     "expected a number for each of the " + WithSeparators(texts->size()) + " tokens, found " +
                         WithSeparators(numbers->size()));
    }
    *values = numbers->Numbers();
  }
  return vocabulary;
}

json VocabularyJson(const Vocabulary& vocabulary) {
  json ids = json::object();
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (vocabulary.kinds[id] != kUnused) ids[std::string(vocabulary.texts[id])] = id;
  }
  return ids;
}

json AddedTokens(const Vocabulary& vocabulary) {
  json tokens = json::array();
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const double kind = vocabulary.kinds[id];
    if (vocabulary.texts[id].empty() || (kind != kControl && kind != kUserDefined && kind != kUnknown)) continue;
    tokens.push_back({{"id", id},
                      {"content", std::string(vocabulary.texts[id])},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", kind != kUserDefined}});
  }
  return tokens;
}

enum class Begin { kAsFileSays, kByDefault, kAlways };

// Puts the begin and end tokens around a text, as the file says: the first of them also as `begin` says.
Result<json> PostProcessor(const GgufFile& file, const Vocabulary& vocabulary, Begin begin) {
  json single = json::array(), specials = json::object();
  const auto add = [&](const char* name, Begin rule) -> Status {
    const std::string prefix = "tokenizer.ggml.", key = prefix + name + "_token_id";
    ASSIGN_OR_RETURN(const auto wanted, file.Bool(prefix + "add_" + name + "_token"));
    ASSIGN_OR_RETURN(const auto id, file.Int(key, 0, std::numeric_limits<std::int32_t>::max()));
    if (!id || !(rule == Begin::kAlways || wanted.value_or(rule == Begin::kByDefault))) return Ok{};
    if (static_cast<std::size_t>(*id) >= vocabulary.texts.size()) {
      return file.Bad(key, "an id below the number of tokens, " + std::to_string(vocabulary.texts.size()));
    }
    const std::string text(vocabulary.texts[static_cast<std::size_t>(*id)]);
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    specials[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
    return Ok{};
  };
  RETURN_IF_ERROR(add("bos", begin));
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  single.push_back(text);
  RETURN_IF_ERROR(add("eos", Begin::kAsFileSays));
  if (specials.empty()) return json();
  return json{{"type", "TemplateProcessing"},
              {"single", single},
              {"pair", {text, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
              {"special_tokens", specials}};
}

json ByteLevel(bool cut) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", cut}};
}

json Digits(bool each) { return {{"type", "Digits"}, {"individual_digits", each}}; }

json Split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json PreTokenizerJson(const PreTokenizer& pre) {
  json steps = json::array();
  switch (pre.cut) {
    case Cut::kWords:
      steps = {ByteLevel(true)};
      break;
    case Cut::kDigitsAndWords:
      steps = {Digits(true), ByteLevel(true)};
      break;
    case Cut::kPattern:
      steps = {Split(pre.pattern), ByteLevel(false)};
      break;
    case Cut::kFalcon:
      steps = {
          {{"type", "Punctuation"}, {"behavior", "Contiguous"}}, ByteLevel(true), Digits(false), Split("[0-9]{3}")};
      break;
  }
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Result<const PreTokenizer*> FindPreTokenizer(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.pre";
  ASSIGN_OR_RETURN(const auto name, file.Text(key));
  std::string known;
  for (const PreTokenizer& pre : kPreTokenizers) {
    for (const std::string_view its : pre.names) {
      if (its.empty()) continue;
      if (name == its) return &pre;
      known += (known.empty() ? "" : ", ") + std::string(its);
    }
  }
  return Refused(file, key,
                 (name ? Quote(*name) : "none") + " found, but loramux knows how text is cut only for " + known);
}

json BpeModel(json vocabulary, json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

json Whole(json added, json normalizer, json pre_tokenizer, json post_processor, json decoder, json model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", std::move(post_processor)},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

Result<json> ByteLevelBpe(const GgufFile& file, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const PreTokenizer* pre, FindPreTokenizer(file));
  ASSIGN_OR_RETURN(const auto given, file.Array("tokenizer.ggml.merges", GgufArray::Element::kText));
  json merges = json::array();
  for (const std::string_view merge : given ? given->Texts() : std::vector<std::string_view>()) {
    merges.push_back(std::string(merge));
  }
  json model = BpeModel(VocabularyJson(vocabulary), std::move(merges));
  model["ignore_merges"] = pre->whole_words;
  ASSIGN_OR_RETURN(json post, PostProcessor(file, vocabulary, pre->add_bos ? Begin::kByDefault : Begin::kAsFileSays));
  return Whole(AddedTokens(vocabulary), pre->nfc ? json{{"type", "NFC"}} : json(), PreTokenizerJson(*pre),
               std::move(post), ByteLevel(true), std::move(model));
}

// ---- SentencePiece

std::size_t Characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Two tokens that become a third, and what orders merges: first the one of the highest score; of equal scores the one
// with the longest left token, then with the longest right one.
struct Merge {
  std::string_view left, right;
  double score;
  auto Order() const {
    return std::tuple(-score, -static_cast<double>(Characters(left)), -static_cast<double>(Characters(right)));
  }
};

// Every way to make a token of two others; stops soon after kMaxMerges. Special tokens are made of none, and are part
// of none.
std::vector<Merge> MergesOf(const Vocabulary& vocabulary) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (vocabulary.kinds[id] == kNormal) ids.emplace(vocabulary.texts[id], id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    if (merges.size() > kMaxMerges) break;
    if (vocabulary.kinds[id] != kNormal) continue;
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) parts.emplace_back(left->second, right->second);
    }
    std::sort(parts.begin(), parts.end());
    for (const auto& [left, right] : parts) {
      merges.push_back({vocabulary.texts[left], vocabulary.texts[right], vocabulary.scores[id]});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.Order() < b.Order(); });
  return merges;
}

// SentencePiece's BPE numbers its tokens from 0 down; its unigram models have logarithms of probabilities, and another
// way to cut text.
Status CheckScores(const GgufFile& file, const Vocabulary& vocabulary) {
  const std::string key = "tokenizer.ggml.scores";
  if (vocabulary.scores.empty()) return Refused(file, key, "expected the scores of the tokens, found none");
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (vocabulary.kinds[id] == kNormal && vocabulary.texts[id].size() > kMaxPieceBytes) {
      return Refused(file, "tokenizer.ggml.tokens",
                     "expected tokens of at most " + std::to_string(kMaxPieceBytes) + " bytes, found " +
                         Quote(vocabulary.texts[id]));
    }
    const double score = vocabulary.scores[id];
    if (vocabulary.kinds[id] != kNormal || (score <= 0 && std::nearbyint(score) == score)) continue;
    return Refused(file, key,
                   "the token " + Quote(vocabulary.texts[id]) + " has the score " + std::to_string(score) +
                       ", but those of SentencePiece's BPE are whole numbers up to 0");
  }
  return Ok{};
}

json Replace(const char* text, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", text}}}, {"content", by}};
}

// A model of characters whose unknown ones are bytes, or the unknown token.
json ModelWithBytes(const Vocabulary& vocabulary, json merges) {
  json model = BpeModel(VocabularyJson(vocabulary), std::move(merges));
  const auto unknown = std::find(vocabulary.kinds.begin(), vocabulary.kinds.end(), kUnknown);
  if (unknown != vocabulary.kinds.end()) {
    model["unk_token"] = std::string(vocabulary.texts[static_cast<std::size_t>(unknown - vocabulary.kinds.begin())]);
    model["fuse_unk"] = true;
  }
  model["byte_fallback"] = std::find(vocabulary.kinds.begin(), vocabulary.kinds.end(), kByte) != vocabulary.kinds.end();
  return model;
}

Result<json> SentencePieceBpe(const GgufFile& file, const Vocabulary& vocabulary) {
  RETURN_IF_ERROR(CheckScores(file, vocabulary));
  const std::vector<Merge> found = MergesOf(vocabulary);
  if (found.size() > kMaxMerges) {
    return Refused(file, "tokenizer.ggml.tokens",
                   "its tokens are made of each other in more than " + std::to_string(kMaxMerges) + " ways");
  }
  json merges = json::array();
  for (const Merge& merge : found) {
    merges.push_back({std::string(merge.left), std::string(merge.right)});
  }
  json model = ModelWithBytes(vocabulary, std::move(merges));
  ASSIGN_OR_RETURN(const auto prefix, file.Bool("tokenizer.ggml.add_space_prefix"));
  ASSIGN_OR_RETURN(const auto trims, file.Bool("tokenizer.ggml.remove_extra_whitespaces"));
  if (trims.value_or(false)) {
    return Refused(file, "tokenizer.ggml.remove_extra_whitespaces", "true is not supported");
  }
  json normalizers = json::array(), decoders = json::array();
  if (prefix.value_or(true)) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back(Replace(" ", kSpace));
  decoders.push_back(Replace(kSpace, " "));
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix.value_or(true)) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  ASSIGN_OR_RETURN(json post, PostProcessor(file, vocabulary, Begin::kByDefault));
  return Whole(AddedTokens(vocabulary), {{"type", "Sequence"}, {"normalizers", normalizers}}, json(), std::move(post),
               {{"type", "Sequence"}, {"decoders", decoders}}, std::move(model));
}

// Gemma 4's: SentencePiece's characters, with merges that the file has.
Result<json> GemmaBpe(const GgufFile& file, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const auto given, file.Array("tokenizer.ggml.merges", GgufArray::Element::kText));
  if (!given) return Refused(file, "tokenizer.ggml.merges", "expected the merges of the tokens, found none");
  json merges = json::array();
  for (const std::string_view merge : given->Texts()) {
    const std::size_t cut = merge.find(' ', 1);
    if (cut == std::string_view::npos) {
      return Refused(file, "tokenizer.ggml.merges",
                     "expected two tokens and a space between them, found " + Quote(merge));
    }
    merges.push_back({std::string(merge.substr(0, cut)), std::string(merge.substr(cut + 1))});
  }
  // Its unknown token is a control token to llama.cpp's converter.
  Vocabulary kinds = vocabulary;
  const auto unknown = std::find(vocabulary.texts.begin(), vocabulary.texts.end(), "<unk>");
  if (unknown != vocabulary.texts.end())
    kinds.kinds[static_cast<std::size_t>(unknown - vocabulary.texts.begin())] = kUnknown;
  // A text always begins with the begin token: files that say otherwise are mistaken, and llama.cpp reads them so too.
  ASSIGN_OR_RETURN(json post, PostProcessor(file, vocabulary, Begin::kAlways));
  const json decoders = {Replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  return Whole(AddedTokens(kinds), Replace(" ", kSpace), json(), std::move(post),
               {{"type", "Sequence"}, {"decoders", decoders}}, ModelWithBytes(kinds, std::move(merges)));
}

// ---- Configurations

constexpr std::int64_t kMostId = std::numeric_limits<std::int32_t>::max();

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// The text of the token whose id the metadata name; null if they do not.
Result<json> TokenOf(const GgufFile& file, const std::vector<std::string_view>& tokens, const std::string& key) {
  ASSIGN_OR_RETURN(const auto id, file.Int(key, 0, kMostId));
  if (!id) return json();
  if (static_cast<std::size_t>(*id) < tokens.size()) return json(std::string(tokens[static_cast<std::size_t>(*id)]));
  return file.Bad(key, "an id below the number of tokens, " + std::to_string(tokens.size()));
}

// The default template alone, or all of them.
Result<json> ChatTemplatesOf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto plain, file.Text("tokenizer.chat_template"));
  if (!plain) return json();
  ASSIGN_OR_RETURN(const auto with_tools, file.Text("tokenizer.chat_template.tool_use"));
  if (!with_tools) return json(*plain);
  return json::array({{{"name", "default"}, {"template", *plain}}, {{"name", "tool_use"}, {"template", *with_tools}}});
}

// Tokens that end a turn. A file has one or none of them under a key, and the others only as texts, by which llama.cpp
// knows them too.
constexpr std::string_view kEndsOfTurns[] = {"<|eot_id|>",    "<|eom_id|>",    "<|im_end|>",
                                             "<end_of_turn>", "<turn|>",       "<|tool_response>",
                                             "<|return|>",    "<|endoftext|>", "<|end_of_text|>"};
constexpr std::string_view kEndOfCall = "<|call|>", kEndOfMessage = "<|end|>";

// The ids of such tokens. What ends a message in gpt-oss, where a call has an end of its own, ends a turn in others.
Result<std::vector<std::int64_t>> EndsOfTurns(const GgufFile& file) {
  ASSIGN_OR_RETURN(const auto list, file.Array("tokenizer.ggml.tokens", GgufArray::Element::kText));
  std::vector<std::int64_t> ids;
  std::optional<std::int64_t> call, message;
  const std::vector<std::string_view> texts = list ? list->Texts() : std::vector<std::string_view>();
  for (std::size_t id = 0; id < texts.size(); ++id) {
    const auto number = static_cast<std::int64_t>(id);
    if (texts[id] == kEndOfCall) call = number;
    if (texts[id] == kEndOfMessage) message = number;
    if (std::ranges::find(kEndsOfTurns, texts[id]) != std::end(kEndsOfTurns)) ids.push_back(number);
  }
  if (call || message) ids.push_back(call ? *call : *message);
  return ids;
}

}  // namespace

Result<std::string> GgufTokenizer(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.model";
  ASSIGN_OR_RETURN(const auto model, file.Text(key));
  if (model != "gpt2" && model != "llama" && model != "gemma4") {
    return Refused(file, key,
                   (model ? Quote(*model) : "none") + " found, but loramux knows only 'gpt2', 'llama' and 'gemma4'");
  }
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(file));
  ASSIGN_OR_RETURN(const json tokenizer, model == "gpt2"    ? ByteLevelBpe(file, vocabulary)
                                         : model == "llama" ? SentencePieceBpe(file, vocabulary)
                                                            : GemmaBpe(file, vocabulary));
  try {
    return tokenizer.dump();
  } catch (const json::type_error&) {
    return Refused(file, "tokenizer.ggml.tokens", "expected texts in UTF-8");
  }
}

Result<std::string> GgufGenerationConfig(const GgufFile& file) {
  json config = json::object(), ends = json::array();
  const auto add = [&ends](std::int64_t id) {
    if (std::find(ends.begin(), ends.end(), json(id)) == ends.end()) ends.push_back(id);
  };
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const auto id, file.Int(key, 0, kMostId));
    if (id) add(*id);
  }
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> turns, EndsOfTurns(file));
  std::ranges::for_each(turns, add);
  if (!ends.empty()) config["eos_token_id"] = ends;
  for (const auto& [key, name] :
       {std::pair{"general.sampling.temp", "temperature"}, std::pair{"general.sampling.top_p", "top_p"},
        std::pair{"general.sampling.min_p", "min_p"},
        std::pair{"general.sampling.penalty_repeat", "repetition_penalty"}}) {
    ASSIGN_OR_RETURN(const auto value, file.Number(key));
    if (value) config[name] = *value;
  }
  ASSIGN_OR_RETURN(const auto top_k, file.Int("general.sampling.top_k", -1, kMostId));
  if (top_k) config["top_k"] = *top_k;
  return Dump(config);
}

Result<std::string> GgufTokenizerConfig(const GgufFile& file) {
  json config = json::object();
  ASSIGN_OR_RETURN(const auto list, file.Array("tokenizer.ggml.tokens", GgufArray::Element::kText));
  const std::vector<std::string_view> tokens = list ? list->Texts() : std::vector<std::string_view>();
  for (const auto& [key, name] :
       {std::pair{"bos", "bos_token"}, std::pair{"eos", "eos_token"}, std::pair{"unknown", "unk_token"},
        std::pair{"padding", "pad_token"}, std::pair{"seperator", "sep_token"}}) {
    ASSIGN_OR_RETURN(const json text, TokenOf(file, tokens, "tokenizer.ggml." + std::string(key) + "_token_id"));
    if (!text.is_null()) config[name] = text;
  }
  ASSIGN_OR_RETURN(const json templates, ChatTemplatesOf(file));
  if (!templates.is_null()) config["chat_template"] = templates;
  return Dump(config);
}

}  // namespace loramux
