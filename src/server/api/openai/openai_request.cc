#include "server/api/openai/openai_request.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "http/json_reader.h"
#include "server/api/openai/adapter_fields.h"
#include "server/api/openai/chat_fields.h"
#include "server/api/openai/output_fields.h"
#include "server/api/openai/prompt_fields.h"
#include "server/api/openai/request_fields.h"
#include "server/api/openai/tool_fields.h"

namespace loramux {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::size_t kMaxStopBytes = 4096;
constexpr std::size_t kMaxStopTokenIds = 1024;
constexpr std::int64_t kMaxLogprobs = 20;
constexpr std::size_t kMaxLogitBias = 1024;
// JSON values that a body of a chat may have, whatever the model's length, and for each token of it. A message with a
// text has three; tools and template variables have their own.
constexpr std::size_t kMinMaxValues = 4096, kValuesPerToken = 16;

// False if there is no such field.
bool ReadInt32(FieldReader& fields, std::string_view name, std::int64_t min, std::int64_t max, std::int32_t& value) {
  std::int64_t number = 0;
  const bool present = fields.Integer(name, min, max, number);
  if (present) value = static_cast<std::int32_t>(number);
  return present;
}

void ReadModel(FieldReader& fields, CompletionRequest& request) {
  if (fields.String("model", request.model) && !request.model.empty()) return;
  fields.Expect("model", "the name of a model or adapter", fields.Find("model"));
}

// An empty salt is an error, as in vLLM: a client that meant to be apart must not share.
void ReadSalt(FieldReader& fields, CompletionRequest& request) {
  if (!fields.String("cache_salt", request.cache_salt)) return;
  if (!request.cache_salt.empty() && request.cache_salt.size() <= kMaxSaltBytes) return;
  fields.Expect("cache_salt", "a string of 1 to " + std::to_string(kMaxSaltBytes) + " bytes",
                fields.Find("cache_salt"));
}

void ReadLengths(FieldReader& fields, CompletionRequest& request) {
  std::int64_t tokens = 0;
  const std::int64_t least =
      fields.Find("prompt_logprobs") != nullptr || request.endpoint == Endpoint::kCompletion ? 0 : 1;
  if (fields.Integer("max_tokens", least, kMaxInt32, tokens)) request.max_tokens = static_cast<std::int32_t>(tokens);
  if (fields.Integer("max_completion_tokens", least, kMaxInt32, tokens)) {
    request.max_tokens = static_cast<std::int32_t>(tokens);  // the newer name has precedence, as in vLLM
  }
  ReadInt32(fields, "min_tokens", 0, kMaxInt32, request.min_tokens);
  if (request.max_tokens && request.min_tokens > *request.max_tokens) {
    fields.Expect("min_tokens", "at most max_tokens (" + std::to_string(*request.max_tokens) + ")",
                  fields.Find("min_tokens"));
  }
  fields.Boolean("ignore_eos", request.ignore_eos);
}

// To ask for what the server does not do would have no effect.
void ReadSpeculation(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  if (!fields.Boolean("speculate", request.speculate) || !request.speculate || limits.speculates) return;
  fields.Fail(ErrorCode::kInvalidArgument, "speculate",
              "expected false, found true: this server does not speculate (--speculate ngram)");
}

void ReadUrgency(FieldReader& fields, CompletionRequest& request) {
  ReadInt32(fields, "priority", -kMaxPriority, kMaxPriority, request.priority);
  ReadInt32(fields, "deadline_ms", 1, kMaxDeadlineMs, request.deadline_ms);
}

void ReadSampling(FieldReader& fields, CompletionRequest& request) {
  SamplingParams& sampling = request.sampling;
  const auto note = [&](bool present, SamplingField field) { request.given |= present ? field : 0; };
  note(fields.Number("temperature", 0, 100, false, sampling.temperature), kTemperature);
  note(fields.Number("top_p", 0, 1, true, sampling.top_p), kTopP);
  note(fields.Number("min_p", 0, 1, false, sampling.min_p), kMinP);
  note(ReadInt32(fields, "top_k", -1, kMaxInt32, sampling.top_k), kTopK);
  note(fields.Number("presence_penalty", -2, 2, false, sampling.presence_penalty), kPresencePenalty);
  note(fields.Number("frequency_penalty", -2, 2, false, sampling.frequency_penalty), kFrequencyPenalty);
  note(fields.Number("repetition_penalty", 0, 100, true, sampling.repetition_penalty), kRepetitionPenalty);
  std::int64_t seed = 0;
  if (fields.Integer("seed", kMinInt64, kMaxInt64, seed)) request.seed = static_cast<std::uint64_t>(seed);
  ReadInt32(fields, "n", 1, kMaxChoicesPerPrompt, request.n);
}

// Parses a token id in the form of the keys of logit_bias: decimal, no sign, no leading zeros.
std::optional<TokenId> ParseTokenKey(std::string_view key, std::int64_t vocab_size) {
  std::int64_t id = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size() || key != std::to_string(id)) return std::nullopt;
  if (id < 0 || id >= vocab_size) return std::nullopt;
  return static_cast<TokenId>(id);
}

void ReadLogitBias(FieldReader& fields, std::int64_t vocab_size, CompletionRequest& request) {
  const Json* map = fields.Object("logit_bias");
  if (map == nullptr) return;
  if (map->size() > kMaxLogitBias) {
    const Json found = map->size();
    return fields.Expect("logit_bias", "at most " + std::to_string(kMaxLogitBias) + " entries", &found);
  }
  FieldReader entries(*map, "logit_bias.");
  for (const auto& [key, value] : map->items()) {
    const auto id = ParseTokenKey(key, vocab_size);
    if (!id) {
      const Json found = key;
      return fields.Expect("logit_bias", "token ids from 0 to " + std::to_string(vocab_size - 1) + " as keys", &found);
    }
    float bias = 0;
    const bool present = entries.Number(key, -100, 100, false, bias);
    if (!entries.ok()) return fields.Fail(entries.error().code, "logit_bias", "in " + entries.error().message);
    if (present) request.logit_bias.emplace_back(*id, bias);
  }
}

void ReadStop(FieldReader& fields, CompletionRequest& request) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return;
  const std::string expected = "a string or an array of at most " + std::to_string(kMaxStops) +
                               " strings, each of 1 to " + std::to_string(kMaxStopBytes) + " bytes";
  if (!stop->is_string() && !stop->is_array()) return fields.Expect("stop", expected, stop);
  if (stop->is_array() && stop->size() > kMaxStops) return fields.Expect("stop", expected, stop);
  const auto add = [&](const Json& item) {
    const bool valid = item.is_string() && !item.get_ref<const std::string&>().empty() &&
                       item.get_ref<const std::string&>().size() <= kMaxStopBytes;
    if (!valid) return fields.Expect("stop", expected, &item);
    request.stop.push_back(item.get<std::string>());
  };
  if (stop->is_string()) return add(*stop);
  for (const Json& item : *stop) add(item);
}

void ReadOutputOptions(FieldReader& fields, std::int64_t vocab_size, CompletionRequest& request) {
  ReadStop(fields, request);
  fields.Integers("stop_token_ids", 0, vocab_size - 1, kMaxStopTokenIds, request.stop_token_ids);
  fields.Boolean("include_stop_str_in_output", request.include_stop);
  fields.Boolean("skip_special_tokens", request.skip_special_tokens);
  fields.Boolean("add_special_tokens", request.add_special_tokens);
  fields.Boolean("return_tokens_as_token_ids", request.tokens_as_ids);
  fields.Boolean("return_token_ids", request.token_ids);
}

void ReadStreaming(FieldReader& fields, CompletionRequest& request) {
  fields.Boolean("stream", request.stream);
  const Json* object = fields.Object("stream_options");
  if (object == nullptr) return;
  if (!request.stream) {
    return fields.Fail(ErrorCode::kInvalidArgument, "stream_options",
                       "expected only together with `stream`: true, found it without");
  }
  FieldReader options(*object, "stream_options.");
  bool continuous = false;
  options.Boolean("include_usage", request.include_usage);
  options.Boolean("continuous_usage_stats", continuous);
  request.continuous_usage = request.include_usage && continuous;
  if (!options.ok()) fields.Fail(options.error().code, "stream_options", "in " + options.error().message);
}

// Accepts best_of if it equals n. Clients such as SGLang's benchmark send best_of: 1.
void ReadBestOf(FieldReader& fields, const CompletionRequest& request) {
  std::int64_t best_of = request.n;
  if (fields.Integer("best_of", 1, kMaxChoicesPerPrompt, best_of) && best_of != request.n) {
    fields.Fail(ErrorCode::kUnsupported, "best_of",
                "this server does not support it: expected nothing or n (" + std::to_string(request.n) + "), found " +
                    std::to_string(best_of));
  }
}

void ReadTruncation(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  std::int64_t tokens = 0;
  if (!fields.Integer("truncate_prompt_tokens", -1, std::min<std::int64_t>(limits.max_tokens, kMaxInt32), tokens))
    return;
  request.truncate_prompt_tokens = static_cast<std::int32_t>(tokens);
  if (tokens != 0) return;
  fields.Expect("truncate_prompt_tokens", "the number of a prompt's tokens that count, or -1 for as many as fit",
                fields.Find("truncate_prompt_tokens"));
}

// Limits of prompts of token ids: one that is cut may be longer.
RequestLimits PromptLimits(RequestLimits limits, const CompletionRequest& request) {
  if (request.truncate_prompt_tokens) limits.max_tokens = RequestLimits().max_tokens;
  return limits;
}

// -1 wants those of the whole vocabulary. As in vLLM, a stream has no place for them.
void ReadPromptLogprobs(FieldReader& fields, std::int64_t vocab_size, CompletionRequest& request) {
  const std::int64_t most = std::min(vocab_size, kMaxInt32);
  if (!ReadInt32(fields, "prompt_logprobs", -1, most, request.prompt_logprobs)) return;
  if (request.prompt_logprobs == -1) request.prompt_logprobs = static_cast<std::int32_t>(most);
  if (!request.stream) return;
  fields.Fail(ErrorCode::kInvalidArgument, "prompt_logprobs", "expected only without `stream`: true, found it with it");
}

// What every body says of the model, the cache and the order of service.
void ReadService(FieldReader& fields, FieldEndpoints endpoint, CompletionRequest& request) {
  ReadModel(fields, request);
  RefuseFields(fields, endpoint);
  request.adapter = ReadAdapterFields(fields);
  ReadSalt(fields, request);
  ReadUrgency(fields, request);
}

void ReadCommon(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  ReadService(fields, request.endpoint == Endpoint::kChat ? kChatBody : kCompletionBody, request);
  ReadLengths(fields, request);
  ReadSampling(fields, request);
  ReadLogitBias(fields, limits.vocab_size, request);
  ReadOutputOptions(fields, limits.vocab_size, request);
  ReadTruncation(fields, limits, request);
  ReadStreaming(fields, request);
  ReadSpeculation(fields, limits, request);
  ReadPromptLogprobs(fields, limits.vocab_size, request);
  ReadOutputConstraint(fields, request.output);
  ReadBestOf(fields, request);
}

void CheckSequences(FieldReader& fields, const RequestLimits& limits, std::int64_t prompts, std::int64_t n) {
  if (prompts * n > limits.max_sequences) FailTooManySequences(fields, "n", limits, prompts * n);
}

// Reads what replaces the likeliest tokens, once `logprobs` is read, and checks how many tokens an answer's
// log-probabilities name. `prompts`: how many there are.
void ReadLogprobIds(FieldReader& fields, std::int64_t vocab_size, std::size_t prompts, CompletionRequest& request) {
  std::vector<TokenId>& ids = request.logprob_token_ids;
  fields.Integers("logprob_token_ids", 0, vocab_size - 1, kMaxLogprobIds, ids);
  const Json* found = fields.Find("logprob_token_ids");
  if (!ids.empty() && request.sampling.top_logprobs < 0) {
    fields.Expect("logprob_token_ids", "only together with `logprobs`", found);
  }
  if (!ids.empty() && request.max_tokens == 0) {
    fields.Expect("logprob_token_ids", "only where tokens are generated, not with `max_tokens`: 0", found);
  }
  const std::int64_t each = ids.empty() ? request.sampling.top_logprobs : static_cast<std::int64_t>(ids.size());
  const std::int64_t alternatives = static_cast<std::int64_t>(prompts) * request.n * each;
  if (alternatives <= kMaxTopLogprobs) return;
  fields.Fail(ErrorCode::kInvalidArgument, ids.empty() ? "logprobs" : "logprob_token_ids",
              "expected at most " + std::to_string(kMaxTopLogprobs) + " in all choices together, found " +
                  std::to_string(alternatives) + "; ask for fewer, or send several requests");
}

// ---- Chat ----

void ReadChatLogprobs(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  bool wanted = false;
  std::int32_t top = 0;
  fields.Boolean("logprobs", wanted);
  ReadInt32(fields, "top_logprobs", 0, kMaxLogprobs, top);
  if (top > 0 && !wanted) {
    return fields.Fail(ErrorCode::kInvalidArgument, "top_logprobs",
                       "expected only together with `logprobs`: true, found " + std::to_string(top) + " without it");
  }
  if (wanted) request.sampling.top_logprobs = top;
  ReadLogprobIds(fields, limits.vocab_size, 1, request);
}

// ---- Completions ----

void ReadCompletionOptions(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  ReadInt32(fields, "logprobs", 0, kMaxLogprobs, request.sampling.top_logprobs);
  ReadLogprobIds(fields, limits.vocab_size, request.prompts.size(), request);
  fields.Boolean("echo", request.echo);
}

// Limits of a body that may hold several prompts of token ids.
JsonLimits ManyPromptsLimits(const RequestLimits& limits) {
  JsonLimits body = BodyLimits(limits);
  body.max_values = JsonLimits().max_values;
  return body;
}

// ---- Embeddings ----

void ReadEncodingFormat(FieldReader& fields, EmbeddingFields& embedding) {
  std::string format = "float";
  if (!fields.String("encoding_format", format)) return;
  embedding.base64 = format == "base64";
  if (!embedding.base64 && format != "float") {
    fields.Expect("encoding_format", "\"float\" or \"base64\"", fields.Find("encoding_format"));
  }
}

void ReadEmbeddingFields(FieldReader& fields, EmbeddingFields& embedding) {
  ReadEncodingFormat(fields, embedding);
  fields.Integer("dimensions", 1, kMaxInt32, embedding.dimensions);
  bool normalize = true;
  if (fields.Boolean("normalize", normalize)) embedding.normalize = normalize;
}

// ---- Classes and scores ----

// What the body of a request that pools hidden states says, whatever they are for.
void ReadPooled(FieldReader& fields, FieldEndpoints endpoint, PooledUse use, const RequestLimits& limits,
                CompletionRequest& request) {
  request.endpoint = Endpoint::kCompletion;
  request.max_tokens = 0;
  request.embedding.emplace().use = use;
  ReadService(fields, endpoint, request);
  fields.Boolean("add_special_tokens", request.add_special_tokens);
  ReadTruncation(fields, limits, request);
  if (use != PooledUse::kVectors) fields.Boolean("use_activation", request.embedding->activate);
}

// The chat, which is classified as it stands: no answer begins unless the body says so.
void ReadChatToClassify(Json& json, FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  request.endpoint = Endpoint::kChat;
  if (fields.Find("add_special_tokens") == nullptr) request.add_special_tokens = false;  // the template adds them
  if (const Json* input = fields.Find("input")) {
    return fields.Fail(ErrorCode::kInvalidArgument, "input",
                       "expected `input` or `messages`, found both (" + DescribeJson(*input) + ")");
  }
  request.chat.add_generation_prompt = false;
  ReadChatPrompt(json, fields, limits.max_tokens, request.chat);
}

void RefuseFieldsOfChats(FieldReader& fields) {
  for (const RequestField& field : RequestFields()) {
    const bool of_chats = field.use == FieldUse::kServed && (field.endpoints & kTemplateBodies) == kTemplateBodies &&
                          (field.endpoints & kEmbeddingBody) == 0;
    if (!of_chats || fields.Find(field.name) == nullptr) continue;
    return fields.Fail(ErrorCode::kInvalidArgument, field.name, "expected only together with `messages`");
  }
}

// A string, or an array of them, of at most `most` in all prompts.
void ReadTexts(FieldReader& fields, std::string_view name, const RequestLimits& limits, CompletionRequest& request) {
  const Json* texts = fields.Find(name);
  if (texts != nullptr && texts->is_string()) return request.prompts.push_back(texts->get<std::string>());
  if (texts == nullptr || !texts->is_array() || texts->empty()) {
    return fields.Expect(name, "a string or an array of strings", texts);
  }
  const auto count = static_cast<std::int64_t>(texts->size() + request.prompts.size());
  if (count > limits.max_sequences) return FailTooManySequences(fields, name, limits, count);
  for (const Json& text : *texts) {
    if (!text.is_string()) return fields.Expect(name, "an array of strings", &text);
    request.prompts.push_back(text.get<std::string>());
  }
}

// Strings, or objects with a text, as Jina's API has them.
void ReadDocuments(FieldReader& fields, const RequestLimits& limits, CompletionRequest& request) {
  constexpr std::string_view kExpected = "an array of strings, or of objects with a string `text`";
  const Json* documents = fields.Find("documents");
  if (documents == nullptr || !documents->is_array() || documents->empty()) {
    return fields.Expect("documents", kExpected, documents);
  }
  const auto count = static_cast<std::int64_t>(documents->size() + request.prompts.size());
  if (count > limits.max_sequences) return FailTooManySequences(fields, "documents", limits, count);
  for (const Json& document : *documents) {
    const Json* text = &document;
    if (document.is_object()) {
      const auto found = document.find("text");
      text = found == document.end() || document.size() != 1 ? nullptr : &*found;
    }
    if (text == nullptr || !text->is_string()) return fields.Expect("documents", kExpected, &document);
    request.prompts.push_back(text->get<std::string>());
  }
}

}  // namespace

JsonLimits BodyLimits(const RequestLimits& limits) {
  JsonLimits body;
  body.gone = limits.gone;
  body.max_string = limits.max_string;
  body.why_strings_are_short =
      ". This model's maximum context length is " + std::to_string(limits.max_tokens) + " tokens.";
  const auto tokens = static_cast<std::size_t>(std::max<std::int64_t>(0, limits.max_tokens));
  if (tokens < body.max_values / kValuesPerToken) {
    body.max_values = std::min(body.max_values, kMinMaxValues + kValuesPerToken * tokens);
  }
  return body;
}

Result<Json> ParseBody(std::string_view body, const JsonLimits& json, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(Json parsed, ParseRequestBody(body, json));
  if (limits.on_body) limits.on_body(parsed);
  return parsed;
}

Result<CompletionRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(Json json, ParseBody(body, BodyLimits(limits), limits));
  return ParseChatJson(std::move(json), limits);
}

Result<CompletionRequest> ParseChatJson(Json json, const RequestLimits& limits) {
  CompletionRequest request;
  request.endpoint = Endpoint::kChat;
  request.add_special_tokens = false;
  FieldReader fields(json, "");
  ReadCommon(fields, limits, request);
  CheckSequences(fields, limits, 1, request.n);
  ReadChatLogprobs(fields, limits, request);
  ReadChatPrompt(json, fields, limits.max_tokens, request.chat);  // moves the messages out of `json`
  request.tools = ReadToolFields(fields, request.chat.tools);
  if (request.output && MustCall(request.tools)) {
    fields.Fail(ErrorCode::kInvalidArgument, "tool_choice",
                "expected \"auto\" or \"none\" together with `" + request.output->field + "`, found another one");
  }
  if (!fields.ok()) return fields.error();
  request.mistakes = LikelyMistakes(json, kChatBody);
  return request;
}

Result<CompletionRequest> ParseCompletionRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(const Json json, ParseBody(body, ManyPromptsLimits(limits), limits));
  return ParseCompletionJson(json, limits);
}

Result<CompletionRequest> ParseCompletionJson(const Json& json, const RequestLimits& limits) {
  CompletionRequest request;
  request.endpoint = Endpoint::kCompletion;
  FieldReader fields(json, "");
  ReadCommon(fields, limits, request);
  ReadPrompts(fields, "prompt", PromptLimits(limits, request), request.n, request.prompts);
  CheckSequences(fields, limits, static_cast<std::int64_t>(request.prompts.size()), request.n);
  ReadCompletionOptions(fields, limits, request);
  if (!fields.ok()) return fields.error();
  request.mistakes = LikelyMistakes(json, kCompletionBody);
  return request;
}

Result<CompletionRequest> ParseEmbeddingRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body, ManyPromptsLimits(limits)));
  CompletionRequest request;
  FieldReader fields(json, "");
  ReadPooled(fields, kEmbeddingBody, PooledUse::kVectors, limits, request);
  ReadEmbeddingFields(fields, *request.embedding);
  ReadPrompts(fields, "input", PromptLimits(limits, request), 1, request.prompts);
  if (!fields.ok()) return fields.error();
  request.mistakes = LikelyMistakes(json, kEmbeddingBody);
  return request;
}

Result<CompletionRequest> ParseClassifyRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(Json json, ParseRequestBody(body, ManyPromptsLimits(limits)));
  CompletionRequest request;
  request.mistakes = LikelyMistakes(json, kClassifyBody);
  FieldReader fields(json, "");
  ReadPooled(fields, kClassifyBody, PooledUse::kClasses, limits, request);
  if (fields.Find("messages") != nullptr) {
    ReadChatToClassify(json, fields, limits, request);
  } else {
    RefuseFieldsOfChats(fields);
    ReadPrompts(fields, "input", PromptLimits(limits, request), 1, request.prompts);
  }
  if (!fields.ok()) return fields.error();
  return request;
}

Result<CompletionRequest> ParseScoreRequest(std::string_view body, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body, ManyPromptsLimits(limits)));
  CompletionRequest request;
  FieldReader fields(json, "");
  ReadPooled(fields, kScoreBody, PooledUse::kScores, limits, request);
  ReadTexts(fields, "text_1", limits, request);
  const std::size_t first = request.embedding->first = request.prompts.size();
  if (fields.ok()) ReadTexts(fields, "text_2", limits, request);
  if (fields.ok() && first != 1 && request.prompts.size() != 2 * first) {
    fields.Fail(ErrorCode::kInvalidArgument, "text_1",
                "expected one text, or one for each of `text_2` (" + std::to_string(request.prompts.size() - first) +
                    "), found " + std::to_string(first));
  }
  if (!fields.ok()) return fields.error();
  request.mistakes = LikelyMistakes(json, kScoreBody);
  return request;
}

Result<CompletionRequest> ParseRerankRequest(std::string_view body, const RequestLimits& limits, RerankReply& reply) {
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(body, ManyPromptsLimits(limits)));
  CompletionRequest request;
  FieldReader fields(json, "");
  ReadPooled(fields, kRerankBody, PooledUse::kScores, limits, request);
  std::string query;
  if (!fields.String("query", query)) fields.Expect("query", "a string", fields.Find("query"));
  request.prompts.emplace_back(std::move(query));
  request.embedding->first = 1;
  ReadDocuments(fields, limits, request);
  std::int64_t top_n = 0;
  bool with_documents = true;
  fields.Integer("top_n", 0, kMaxInt32, top_n);
  fields.Boolean("return_documents", with_documents);
  if (!fields.ok()) return fields.error();
  request.mistakes = LikelyMistakes(json, kRerankBody);
  reply.top_n = static_cast<std::size_t>(top_n);
  for (std::size_t i = 1; with_documents && i < request.prompts.size(); ++i) {
    reply.documents.push_back(std::get<std::string>(request.prompts[i]));
  }
  return request;
}

}  // namespace loramux
