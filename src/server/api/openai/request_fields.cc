#include "server/api/openai/request_fields.h"

#include <algorithm>
#include <cctype>
#include <optional>

namespace loramux {
namespace {

using enum FieldUse;

constexpr std::size_t kMaxMistakes = 8;
constexpr std::size_t kMaxUnknownFields = 256;  // unknown fields of a body that are compared with the table
constexpr std::size_t kMinSimilarLength = 4;    // a shorter name is one edit away from too many others

// The names are those of OpenAI, vLLM, SGLang, TGI and LoRAX, llama.cpp, Ollama, transformers and of the front ends
// that extend them.
constexpr RequestField kFields[] = {
    // The model and its adapter.
    {"model", kServed, kAllBodies, "the base model or an adapter, or BASE:ADAPTER"},
    {"lora_path", kServed, kAllBodies, "SGLang: the name of one adapter, or an array of one"},
    {"adapter_id", kServed, kAllBodies, "LoRAX: the name of one adapter"},
    {"lora", kServed, kAllBodies, "llama.cpp: an array of {\"id\": NAME, \"scale\": NUMBER}, which are added up"},
    {"merged_adapters", kServed, kAllBodies, "LoRAX: names in `ids` and their `weights`, added up"},
    {"adapter_source", kAccepted, kAllBodies, "where LoRAX looks for an adapter; adapters here are registered by name"},
    {"api_token", kAccepted, kAllBodies, "LoRAX's token for a hub"},
    // The prompt.
    {"messages", kServed, kTemplateBodies},
    {"messages", kRefused, kCompletionBody, "send them to /v1/chat/completions"},
    {"prompt", kServed, kCompletionBody},
    {"prompt", kRefused, kChatBody, "send it in `messages`, or to /v1/completions"},
    {"prompt_logprobs", kServed, kBothBodies, "log-probabilities of the prompt; not in streams"},
    {"echo", kServed, kCompletionBody, "the prompt before the text"},
    {"echo", kRefused, kChatBody, "only /v1/completions has it"},
    {"suffix", kRefused, kCompletionBody},
    {"tools", kServed, kTemplateBodies},
    {"tools", kRefused, kCompletionBody, "send them to /v1/chat/completions"},
    {"tool_choice", kServed, kChatBody},
    {"function_call", kServed, kChatBody},
    {"parallel_tool_calls", kServed, kChatBody},
    {"functions", kRefused, kBothBodies, "send `tools`"},
    {"documents", kServed, kTemplateBodies},
    {"add_generation_prompt", kServed, kTemplateBodies},
    {"continue_final_message", kServed, kTemplateBodies},
    {"chat_template_kwargs", kServed, kTemplateBodies},
    {"chat_template", kRefused, kTemplateBodies, "the model's template is used; the operator changes it with the model",
     R"("")"},
    {"add_special_tokens", kServed, kAllBodies},
    {"prompt_embeds", kRefused, kAllBodies},
    {"truncate_prompt_tokens", kServed, kBothBodies, "only the prompt's last tokens count"},
    {"truncate", kRefused, kAllBodies, "send `truncate_prompt_tokens`"},
    {"prompt_truncate_len", kRefused, kAllBodies, "send `truncate_prompt_tokens`"},
    {"transforms", kRefused, kAllBodies, "shorten the prompt before sending it"},
    {"system", kRefused, kBothBodies, "send a message with the role `system`"},
    {"instructions", kRefused, kBothBodies, "send a message with the role `system`"},
    {"preamble", kRefused, kBothBodies, "send a message with the role `system`"},
    {"safe_prompt", kRefused, kBothBodies, "send a message with the role `system`"},
    {"prompt_mode", kRefused, kBothBodies, "send a message with the role `system`"},
    {"template", kRefused, kBothBodies, "the model's template is used"},
    {"raw", kRefused, kBothBodies, "/v1/completions renders no template"},
    {"context", kRefused, kAllBodies, "send the whole prompt"},
    {"previous_response_id", kRefused, kBothBodies, "send the whole conversation in `messages`"},
    {"input_ids", kRefused, kBothBodies, "send token ids in `prompt`"},
    {"input_embeds", kRefused, kAllBodies},
    {"negative_prompt", kRefused},
    {"audio", kRefused},
    {"modalities", kRefused, kBothBodies, "the only modality is text", R"(["text"])"},
    {"images", kRefused, kAllBodies, "the only modality is text"},
    {"image_data", kRefused, kAllBodies, "the only modality is text"},
    {"video_data", kRefused, kAllBodies, "the only modality is text"},
    {"audio_data", kRefused, kAllBodies, "the only modality is text"},
    {"multimodal_data", kRefused, kAllBodies, "the only modality is text"},
    {"mm_processor_kwargs", kAccepted, kAllBodies, "without images there is nothing to process"},
    {"media_io_kwargs", kAccepted, kBothBodies, "without images there is nothing to read"},
    {"max_dynamic_patch", kAccepted},
    {"min_dynamic_patch", kAccepted},
    {"use_audio_in_video", kAccepted},
    {"web_search_options", kRefused},
    {"plugins", kRefused},
    {"session_params", kRefused, kBothBodies, "send the whole prompt"},
    {"prediction", kAccepted, kBothBodies, "a hint for speed"},
    // Embeddings, classes and scores.
    {"input", kServed, kInputBodies, "a string, token ids, or an array of those"},
    {"input", kRefused, kScoreBody, "send `text_1` and `text_2`"},
    {"input", kRefused, kRerankBody, "send `query` and `documents`"},
    {"text_1", kServed, kScoreBody, "a string, or an array of as many as `text_2`"},
    {"text_2", kServed, kScoreBody, "a string, or an array of them"},
    {"data_1", kRefused, kScoreBody, "send `text_1`"},
    {"data_2", kRefused, kScoreBody, "send `text_2`"},
    {"queries", kRefused, kScoreBody, "send `text_1`"},
    {"query", kRefused, kScoreBody, "send `text_1`"},
    {"documents", kRefused, kScoreBody, "send `text_2`"},
    {"items", kRefused, kScoreBody, "send `text_2`"},
    {"query", kServed, kRerankBody},
    {"documents", kServed, kRerankBody, "strings, or objects with a `text`"},
    {"top_n", kServed, kRerankBody, "as many of the best; 0: all"},
    {"return_documents", kServed, kRerankBody, "Jina, Cohere: whether results hold the texts; by default they do"},
    {"top_k", kRefused, kRerankBody, "send `top_n`", kOnlyNull},
    {"rank_fields", kRefused, kRerankBody, "send strings", kOnlyNull},
    {"max_chunks_per_doc", kRefused, kRerankBody, "documents are not divided", kOnlyNull},
    {"max_tokens_per_doc", kRefused, kRerankBody, "send `truncate_prompt_tokens`", kOnlyNull},
    {"use_activation", kServed, kHeadBodies, "vLLM: false for a head's numbers as they are"},
    {"activation", kRefused, kHeadBodies, "send `use_activation`", "true"},
    {"softmax", kRefused, kHeadBodies, "send `use_activation`", "true"},
    {"encoding_format", kRefused, kHeadBodies, "numbers are JSON", R"("float")"},
    {"dimensions", kRefused, kHeadBodies, "all dimensions count", kOnlyNull},
    {"normalize", kRefused, kHeadBodies, "only /v1/embeddings returns vectors", kOnlyNull},
    {"embed_dtype", kRefused, kHeadBodies, "numbers are JSON", R"("float32")"},
    {"endianness", kRefused, kHeadBodies, "numbers are JSON", kOnlyNull},
    {"encoding_format", kServed, kEmbeddingBody, "\"float\" or \"base64\""},
    {"dimensions", kServed, kEmbeddingBody, "shorter ones only of models that are trained for it"},
    {"normalize", kServed, kEmbeddingBody, "vLLM: to the length 1"},
    {"truncate_prompt_tokens", kServed, kPooledBodies, "vLLM: the first tokens of each input; -1: the model's length"},
    {"truncation_side", kRefused, kPooledBodies, "the first tokens are kept", R"("right")"},
    {"use_activation", kRefused, kEmbeddingBody, "send `normalize`", kOnlyNull},
    {"embed_dtype", kRefused, kEmbeddingBody, "the numbers of base64 are float32", R"("float32")"},
    {"endianness", kRefused, kEmbeddingBody, "the numbers of base64 are little-endian", R"("little")"},
    {"messages", kRefused, kEmbeddingBody, "render the chat, and send it in `input`"},
    {"messages", kRefused, kPairBodies, "send texts"},
    {"prompt", kRefused, kInputBodies, "send `input`"},
    {"texts", kRefused, kInputBodies, "send `input`"},
    {"texts", kRefused, kScoreBody, "send `text_1` and `text_2`"},
    {"texts", kRefused, kRerankBody, "send `documents`"},
    {"inputs", kRefused, kInputBodies, "send `input`"},
    {"input_ids", kRefused, kInputBodies, "send token ids in `input`"},
    {"stream", kRefused, kPooledBodies, "nothing is generated that could be streamed"},
    {"pooling", kRefused, kEmbeddingBody, "the operator chooses it by --pooling", kOnlyNull},
    {"pooling", kRefused, kHeadBodies, "heads read the last token; of embeddings, the operator chooses it by --pooling",
     kOnlyNull},
    {"task", kRefused, kPooledBodies, "put the instruction into the text, or name an adapter in `model`", kOnlyNull},
    {"instruction", kRefused, kPooledBodies, "put it into the text"},
    {"prompt_name", kRefused, kPooledBodies, "put the prompt into the text", kOnlyNull},
    {"input_type", kRefused, kPooledBodies, "put the instruction into the text", kOnlyNull},
    {"late_chunking", kRefused, kPooledBodies},
    {"embedding_type", kRefused, kEmbeddingBody, "send `encoding_format`", R"("float")"},
    {"embedding_types", kRefused, kEmbeddingBody, "send `encoding_format`", R"(["float"])"},
    {"output_dtype", kRefused, kEmbeddingBody, "send `encoding_format`", R"("float")"},
    {"output_dimension", kRefused, kEmbeddingBody, "send `dimensions`", kOnlyNull},
    // Lengths and the end of the output.
    {"max_tokens", kServed},
    {"max_completion_tokens", kServed},
    {"min_tokens", kServed},
    {"ignore_eos", kServed},
    {"max_new_tokens", kRefused, kBothBodies, "send `max_tokens`"},
    {"n_predict", kRefused, kBothBodies, "send `max_tokens`"},
    {"num_predict", kRefused, kBothBodies, "send `max_tokens`"},
    {"max_output_tokens", kRefused, kBothBodies, "send `max_tokens`"},
    {"max_gen_len", kRefused, kBothBodies, "send `max_tokens`"},
    {"max_length", kRefused, kBothBodies, "send `max_tokens`, which does not count the prompt"},
    {"min_new_tokens", kRefused, kBothBodies, "send `min_tokens`", "0"},
    {"min_length", kRefused, kBothBodies, "send `min_tokens`, which does not count the prompt", "0"},
    {"ignore_eos_token", kRefused, kBothBodies, "send `ignore_eos`"},
    {"num_ctx", kRefused, kBothBodies, "the operator sets the model's length by --max-model-len"},
    {"n_keep", kAccepted, kBothBodies, "nothing of the context is ever dropped"},
    {"n_discard", kAccepted, kBothBodies, "nothing of the context is ever dropped"},
    {"num_keep", kAccepted, kBothBodies, "nothing of the context is ever dropped"},
    {"context_length_exceeded_behavior", kRefused, kBothBodies, "a prompt that is too long is refused", R"("error")"},
    {"truncation", kRefused, kBothBodies, "a prompt that is too long is refused", R"("disabled")"},
    {"max_time", kRefused, kBothBodies, "close the connection to end the request"},
    {"t_max_predict_ms", kRefused, kBothBodies, "close the connection to end the request", "0"},
    {"n_indent", kRefused, kBothBodies, {}, "0"},
    {"stop", kServed},
    {"stop_token_ids", kServed},
    {"include_stop_str_in_output", kServed},
    {"stop_sequences", kRefused, kBothBodies, "send `stop`"},
    {"stop_strings", kRefused, kBothBodies, "send `stop`"},
    {"stop_regex", kRefused, kBothBodies, "send `stop`"},
    {"no_stop_trim", kRefused, kBothBodies, "send `include_stop_str_in_output`"},
    {"eos_token_id", kRefused, kBothBodies, "send `stop_token_ids`", kOnlyNull},
    {"forced_eos_token_id", kRefused, kBothBodies, {}, kOnlyNull},
    {"forced_bos_token_id", kRefused, kBothBodies, {}, kOnlyNull},
    {"thinking_token_budget", kRefused, kBothBodies, {}, kOnlyNull},
    {"thinking_budget", kRefused, kBothBodies, {}, kOnlyNull},
    {"reasoning_budget", kRefused, kBothBodies, {}, "-1"},
    {"repetition_detection", kRefused},
    // Sampling.
    {"temperature", kServed},
    {"top_p", kServed},
    {"top_k", kServed},
    {"min_p", kServed},
    {"presence_penalty", kServed},
    {"frequency_penalty", kServed},
    {"repetition_penalty", kServed},
    {"logit_bias", kServed},
    {"seed", kServed},
    {"n", kServed},
    {"best_of", kServed, kBothBodies, "accepted if it equals `n`"},
    {"random_seed", kRefused, kBothBodies, "send `seed`", kOnlyNull},
    {"n_cmpl", kRefused, kBothBodies, "send `n`", "1"},
    {"num_return_sequences", kRefused, kBothBodies, "send `n`", "1"},
    {"do_sample", kRefused, kBothBodies, "send `temperature`: 0 for greedy decoding", "true"},
    {"typical_p", kRefused, kBothBodies, {}, "1"},
    {"tfs_z", kRefused, kBothBodies, {}, "1"},
    {"top_a", kRefused, kBothBodies, {}, "0"},
    {"top_n_sigma", kRefused, kBothBodies, {}, "-1"},
    {"nsigma", kRefused, kBothBodies, {}, "0"},
    {"min_keep", kRefused, kBothBodies, {}, "0"},
    {"mirostat", kRefused, kBothBodies, {}, "0"},
    {"mirostat_mode", kRefused, kBothBodies, {}, "0"},
    {"mirostat_tau", kRefused, kBothBodies, {}, "5"},
    {"mirostat_eta", kRefused, kBothBodies, {}, "0.1"},
    {"dynatemp_range", kRefused, kBothBodies, {}, "0"},
    {"dynatemp_exponent", kRefused, kBothBodies, {}, "1"},
    {"dynatemp_min", kRefused, kBothBodies, {}, "0"},
    {"dynatemp_max", kRefused, kBothBodies, {}, "0"},
    {"smoothing_factor", kRefused, kBothBodies, {}, "0"},
    {"smoothing_curve", kRefused, kBothBodies, {}, "1"},
    {"xtc_probability", kRefused, kBothBodies, {}, "0"},
    {"xtc_threshold", kRefused, kBothBodies, {}, "0.1"},
    {"dry_multiplier", kRefused, kBothBodies, {}, "0"},
    {"dry_base", kRefused, kBothBodies, {}, "1.75"},
    {"dry_allowed_length", kRefused, kBothBodies, {}, "2"},
    {"dry_penalty_last_n", kRefused, kBothBodies, {}, "-1"},
    {"dry_sequence_breakers", kRefused, kBothBodies, {}, R"(["\n",":","\"","*"])"},
    {"epsilon_cutoff", kRefused, kBothBodies, {}, "0"},
    {"eta_cutoff", kRefused, kBothBodies, {}, "0"},
    {"repeat_penalty", kRefused, kBothBodies, "send `repetition_penalty`, which counts the whole text", "1"},
    {"repeat_last_n", kRefused, kBothBodies, "send `repetition_penalty`, which counts the whole text", "64"},
    {"penalize_nl", kAccepted, kBothBodies, "of old versions of llama.cpp; without `repeat_penalty` it has no effect"},
    {"no_repeat_ngram_size", kRefused, kBothBodies, {}, "0"},
    {"encoder_no_repeat_ngram_size", kRefused, kBothBodies, {}, "0"},
    {"encoder_repetition_penalty", kRefused, kBothBodies, {}, "1"},
    {"exponential_decay_length_penalty", kRefused, kBothBodies, {}, kOnlyNull},
    {"penalty_alpha", kRefused, kBothBodies, {}, "0"},
    {"guidance_scale", kRefused, kBothBodies, {}, "1"},
    {"samplers", kRefused, kBothBodies, "temperature comes first, then `top_k`, `top_p` and `min_p`"},
    {"sampler_seed", kRefused, kBothBodies, "send `seed`", kOnlyNull},
    {"temperature_last", kRefused},
    {"watermark", kRefused},
    {"bad_words", kRefused},
    {"bad_words_ids", kRefused},
    {"allowed_token_ids", kRefused},
    {"custom_token_bans", kRefused},
    {"suppress_tokens", kRefused},
    {"begin_suppress_tokens", kRefused},
    {"force_words_ids", kRefused},
    {"sequence_bias", kRefused, kBothBodies, "send `logit_bias`"},
    {"logits_processors", kRefused},
    {"custom_logit_processor", kRefused},
    {"custom_params", kRefused},
    {"vllm_xargs", kRefused},
    {"use_beam_search", kRefused},
    {"num_beams", kRefused, kBothBodies, {}, "1"},
    {"num_beam_groups", kRefused, kBothBodies, {}, "1"},
    {"diversity_penalty", kRefused, kBothBodies, {}, "0"},
    {"early_stopping", kRefused},
    {"length_penalty", kRefused, kBothBodies, "only beam search has it", "1"},
    {"use_cache", kAccepted, kBothBodies, "has no effect on the output"},
    // Structured output.
    {"response_format", kServed, kBothBodies, "text, json_object or json_schema"},
    {"guided_json", kServed},
    {"guided_regex", kServed},
    {"guided_choice", kServed},
    {"guided_grammar", kServed},
    {"structured_outputs", kServed},
    {"guided_decoding_backend", kAccepted},
    {"guided_whitespace_pattern", kRefused},
    {"structural_tag", kRefused},
    {"grammar", kServed, kBothBodies, "GBNF or Lark"},
    {"json_schema", kServed},
    {"regex", kRefused, kBothBodies, "send `structured_outputs`: {\"regex\": ...}"},
    {"ebnf", kRefused, kBothBodies, "send it as `grammar`"},
    {"schema", kRefused},
    {"format", kRefused},
    {"grammar_lazy", kRefused},
    {"grammar_triggers", kRefused},
    {"preserved_tokens", kAccepted, kBothBodies, "has no effect without a grammar"},
    // Reasoning.
    {"reasoning_effort", kServed, kTemplateBodies},
    {"include_reasoning", kServed, kChatBody},
    {"separate_reasoning", kRefused, kChatBody, "start the server with --reasoning-parser none", "true"},
    {"stream_reasoning", kAccepted, kChatBody},
    {"reasoning_format", kRefused, kChatBody, "start the server with --reasoning-parser", "\"auto\""},
    {"parse_tool_calls", kRefused, kChatBody, "send `tool_choice`: \"none\"", "true"},
    {"thinking_forced_open", kAccepted, kChatBody},
    {"think", kRefused, kBothBodies, "send `chat_template_kwargs`", kOnlyNull},
    {"enable_thinking", kRefused, kBothBodies, "send `chat_template_kwargs`", kOnlyNull},
    {"thinking", kRefused, kBothBodies, "send `chat_template_kwargs`", kOnlyNull},
    {"reasoning", kRefused, kBothBodies, "send `chat_template_kwargs`"},
    {"verbosity", kServed, kTemplateBodies, "goes to the template"},
    {"verbosity", kAccepted, kCompletionBody, "of models that are trained to read it"},
    // What the response holds.
    {"logprobs", kServed},
    {"top_logprobs", kServed, kChatBody},
    {"top_logprobs", kRefused, kCompletionBody, "send `logprobs`: the number of alternatives", "0"},
    {"skip_special_tokens", kServed},
    {"spaces_between_special_tokens", kAccepted, kBothBodies, "has no effect with fast tokenizers"},
    {"stream", kServed},
    {"stream_options", kServed},
    {"n_probs", kRefused, kBothBodies, "send `logprobs`", "0"},
    {"top_n_tokens", kRefused, kBothBodies, "send `logprobs`", "0"},
    {"post_sampling_probs", kRefused, kBothBodies, "send `logprobs`"},
    {"logprob_token_ids", kServed, kBothBodies, "log-probabilities of these tokens instead of the likeliest"},
    {"return_logprob", kRefused, kBothBodies, "send `logprobs`"},
    {"top_logprobs_num", kRefused, kBothBodies, "send `logprobs`", "0"},
    {"logprob_start_len", kRefused, kBothBodies, {}, "-1"},
    {"token_ids_logprob", kRefused, kBothBodies, "send `logprob_token_ids`"},
    {"return_token_ids", kServed, kBothBodies,
     "the ids of the prompt, and of the answer with the token that ended it; log-probabilities have that token too"},
    {"return_tokens", kRefused, kBothBodies, "send `return_token_ids`"},
    {"return_tokens_as_token_ids", kServed, kBothBodies, "log-probabilities call a token \"token_id:ID\""},
    {"return_prompt_token_ids", kRefused, kBothBodies, "send `return_token_ids`"},
    {"return_prompt_text", kRefused},
    {"return_hidden_states", kRefused},
    {"return_routed_experts", kRefused},
    {"return_meta_info", kRefused},
    {"return_full_text", kRefused, kBothBodies, "send `echo` to /v1/completions"},
    {"return_k_alternatives", kRefused, kBothBodies, "send `n`", kOnlyNull},
    {"decoder_input_details", kRefused},
    {"details", kRefused, kBothBodies, "the response has `usage` and `finish_reason`"},
    {"response_fields", kRefused},
    {"raw_output", kRefused, kAllBodies},
    {"return_cached_tokens_details", kAccepted, kBothBodies, "`usage` has the cached tokens"},
    {"timings_per_token", kAccepted, kBothBodies, "times are not part of the output"},
    {"return_progress", kAccepted, kBothBodies, "progress is not part of the output"},
    {"perf_metrics_in_response", kAccepted, kBothBodies, "times are not part of the output"},
    // Order, caches and accounts.
    {"priority", kServed, kAllBodies},
    {"deadline_ms", kServed, kAllBodies},
    {"speculate", kServed, kBothBodies, "false: no tokens are guessed ahead; answers are the same"},
    {"speculative.n_max", kRefused, kBothBodies, "send `speculate`", "0"},
    {"speculative.n_min", kRefused, kBothBodies, "send `speculate`", "0"},
    {"speculative.p_min", kRefused, kBothBodies, "send `speculate`", kOnlyNull},
    {"cache_salt", kServed, kAllBodies, "requests with another salt share no cached prefixes"},
    {"extra_key", kRefused, kAllBodies, "send `cache_salt`"},
    {"cache_prompt", kAccepted, kBothBodies, "cached prefixes do not change the output"},
    {"prompt_cache_key", kAccepted, kAllBodies, "a hint for routing"},
    {"prompt_cache_retention", kAccepted, kBothBodies, "a hint for the cache"},
    {"id_slot", kAccepted},
    {"user", kAccepted, kAllBodies},
    {"safety_identifier", kAccepted, kAllBodies},
    {"metadata", kAccepted, kAllBodies},
    {"store", kAccepted, kBothBodies, "answers are not stored"},
    {"service_tier", kAccepted, kAllBodies},
    {"request_id", kAccepted, kAllBodies, "ids of answers are random"},
    {"rid", kAccepted, kAllBodies, "ids of answers are random"},
    {"keep_alive", kAccepted, kAllBodies, "the model stays loaded"},
    {"kv_transfer_params", kRefused},
    {"bootstrap_host", kRefused},
    {"bootstrap_port", kRefused, kBothBodies, {}, kOnlyNull},
    {"bootstrap_room", kRefused, kBothBodies, {}, kOnlyNull},
    {"data_parallel_rank", kAccepted, kAllBodies},
    {"low_memory", kAccepted},
    // Groups of fields that other APIs nest.
    {"extra_body", kRefused, kAllBodies, "put its fields at the top level of the body"},
    {"options", kRefused, kAllBodies, "put its fields at the top level of the body"},
    {"parameters", kRefused, kAllBodies, "put its fields at the top level of the body"},
    {"sampling_params", kRefused, kBothBodies, "put its fields at the top level of the body"},
    {"generation_config", kRefused, kBothBodies, "put its fields at the top level of the body"},
};

bool IsEmptyValue(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return (value.is_array() || value.is_object()) && value.empty();
}

bool AsksForNothing(const RequestField& field, const Json& value) {
  if (field.neutral == kOnlyNull) return false;
  if (IsEmptyValue(value)) return true;
  return value == Json::parse(field.neutral.empty() ? "false" : field.neutral);
}

std::string WhyRefused(const RequestField& field, const Json& found) {
  std::string message = "this server does not support it; ";
  message += field.hint.empty() ? "leave it out" : field.hint;
  return message + " (found " + DescribeJson(found) + ")";
}

const RequestField* FindField(std::string_view name, FieldEndpoints endpoint) {
  const auto found = std::find_if(std::begin(kFields), std::end(kFields), [&](const RequestField& field) {
    return field.name == name && (field.endpoints & endpoint) != 0;
  });
  return found == std::end(kFields) ? nullptr : &*found;
}

// True if one insertion, deletion, replacement or swap of neighbours turns one name into the other.
bool OneEditApart(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  if (a.size() - b.size() > 1) return false;
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto from = static_cast<std::size_t>(in_b - b.begin());
  a.remove_prefix(from);
  b.remove_prefix(from);
  if (a.empty()) return false;
  if (a.size() > b.size()) return a.substr(1) == b;
  if (a.substr(1) == b.substr(1)) return true;
  return a.size() > 1 && a[0] == b[1] && a[1] == b[0] && a.substr(2) == b.substr(2);
}

// "maxTokens" and "max-tokens" -> "maxtokens".
std::string Letters(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_' && c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

bool Similar(std::string_view name, std::string_view known) {
  if (known.size() < kMinSimilarLength || name.size() > 2 * known.size()) return false;
  return OneEditApart(name, known) || Letters(name) == Letters(known);
}

// Returns a served field if the name is near to one.
std::optional<std::string_view> NameMeant(std::string_view name, FieldEndpoints endpoint) {
  std::optional<std::string_view> meant;
  for (const RequestField& field : kFields) {
    if ((field.endpoints & endpoint) == 0 || !Similar(name, field.name)) continue;
    if (field.use == kServed) return field.name;
    if (!meant) meant = field.name;
  }
  return meant;
}

}  // namespace

std::span<const RequestField> RequestFields() { return kFields; }

void RefuseFields(FieldReader& fields, FieldEndpoints endpoint) {
  for (const RequestField& field : kFields) {
    if (field.use != kRefused || (field.endpoints & endpoint) == 0) continue;
    const Json* value = fields.Find(field.name);
    if (value == nullptr || AsksForNothing(field, *value)) continue;
    return fields.Fail(ErrorCode::kUnsupported, field.name, WhyRefused(field, *value));
  }
}

std::string PlainName(std::string_view name) {
  std::string plain(name);
  for (char& c : plain) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '_' && c != '-' && c != '.') c = '?';
  }
  return plain;
}

std::vector<LikelyMistake> LikelyMistakes(const Json& body, FieldEndpoints endpoint) {
  std::vector<LikelyMistake> mistakes;
  std::size_t unknown = 0;
  for (const auto& [name, value] : body.get_ref<const Json::object_t&>()) {
    if (FindField(name, endpoint) != nullptr) continue;
    if (++unknown > kMaxUnknownFields || mistakes.size() == kMaxMistakes) break;
    if (const auto meant = NameMeant(name, endpoint)) mistakes.push_back({PlainName(name), *meant});
  }
  return mistakes;
}

}  // namespace loramux
