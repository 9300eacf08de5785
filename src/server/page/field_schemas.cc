#include "server/page/field_schemas.h"

#include <algorithm>
#include <iterator>

namespace loramux {
namespace {

constexpr std::string_view kString = R"({"type":"string"})";
constexpr std::string_view kBoolean = R"({"type":"boolean"})";
constexpr std::string_view kObject = R"({"type":"object"})";
constexpr std::string_view kObjects = R"({"type":"array","items":{"type":"object"}})";
constexpr std::string_view kStrings = R"({"type":"array","items":{"type":"string"}})";
constexpr std::string_view kTokens = R"({"type":"array","items":{"type":"integer","minimum":0}})";
constexpr std::string_view kCount = R"({"type":"integer","minimum":0})";
constexpr std::string_view kTextLists =
    R"({"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},)"
    R"({"type":"array","items":{"type":"array","items":{"type":"integer"}}}]})";

constexpr FieldSchema kSchemas[] = {
    {"model", kString},
    {"lora_path", R"({"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"},"maxItems":1}]})"},
    {"adapter_id", kString},
    {"lora", kObjects},
    {"merged_adapters", kObject},
    {"messages", kObjects},
    {"prompt", kTextLists},
    {"prompt_logprobs", R"({"type":"integer","minimum":-1})"},
    {"echo", kBoolean},
    {"tools", kObjects},
    {"tool_choice", R"({"oneOf":[{"enum":["auto","none","required"]},{"type":"object"}]})"},
    {"function_call", R"({"enum":["auto","none"]})"},
    {"parallel_tool_calls", kBoolean},
    {"documents", kObjects, kTemplateBodies},
    {"documents", R"({"type":"array","items":{"oneOf":[{"type":"string"},{"type":"object"}]}})", kRerankBody},
    {"query", kString},
    {"top_n", kCount},
    {"return_documents", kBoolean},
    {"text_1", R"({"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})"},
    {"text_2", R"({"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})"},
    {"use_activation", kBoolean},
    {"add_generation_prompt", kBoolean},
    {"continue_final_message", kBoolean},
    {"chat_template_kwargs", kObject},
    {"add_special_tokens", kBoolean},
    {"truncate_prompt_tokens", R"({"type":"integer","minimum":-1})"},
    {"input", kTextLists},
    {"encoding_format", R"({"enum":["float","base64"]})"},
    {"dimensions", R"({"type":"integer","minimum":1})"},
    {"normalize", kBoolean},
    {"max_tokens", kCount},
    {"max_completion_tokens", kCount},
    {"min_tokens", kCount},
    {"ignore_eos", kBoolean},
    {"stop", R"({"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"},"maxItems":16}]})"},
    {"stop_token_ids", kTokens},
    {"include_stop_str_in_output", kBoolean},
    {"temperature", R"({"type":"number","minimum":0,"maximum":100})"},
    {"top_p", R"({"type":"number","exclusiveMinimum":0,"maximum":1})"},
    {"top_k", R"({"type":"integer","minimum":-1})"},
    {"min_p", R"({"type":"number","minimum":0,"maximum":1})"},
    {"presence_penalty", R"({"type":"number","minimum":-2,"maximum":2})"},
    {"frequency_penalty", R"({"type":"number","minimum":-2,"maximum":2})"},
    {"repetition_penalty", R"({"type":"number","exclusiveMinimum":0,"maximum":100})"},
    {"logit_bias", R"({"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}})"},
    {"seed", R"({"type":"integer"})"},
    {"n", R"({"type":"integer","minimum":1,"maximum":128})"},
    {"best_of", R"({"type":"integer","minimum":1,"maximum":128})"},
    {"response_format", kObject},
    {"guided_json", kObject},
    {"guided_regex", kString},
    {"guided_choice", kStrings},
    {"guided_grammar", kString},
    {"structured_outputs", kObject},
    {"grammar", kString},
    {"json_schema", kObject},
    {"reasoning_effort", kString},
    {"verbosity", kString},
    {"include_reasoning", kBoolean},
    {"logprobs", kBoolean, kChatBody},
    {"logprobs", R"({"type":"integer","minimum":0,"maximum":20})", kCompletionBody},
    {"top_logprobs", R"({"type":"integer","minimum":0,"maximum":20})"},
    {"logprob_token_ids", R"({"type":"array","items":{"type":"integer","minimum":0},"maxItems":128})"},
    {"skip_special_tokens", kBoolean},
    {"stream", kBoolean},
    {"stream_options", kObject},
    {"return_tokens_as_token_ids", kBoolean},
    {"return_token_ids", kBoolean},
    {"priority", R"({"type":"integer","minimum":-10,"maximum":10})"},
    {"deadline_ms", R"({"type":"integer","minimum":1,"maximum":86400000})"},
    {"speculate", kBoolean},
    {"cache_salt", R"({"type":"string","minLength":1,"maxLength":256})"},
};

}  // namespace

std::span<const FieldSchema> FieldSchemas() { return kSchemas; }

std::string_view SchemaOf(std::string_view field, FieldEndpoints endpoint) {
  const auto found = std::find_if(std::begin(kSchemas), std::end(kSchemas), [&](const FieldSchema& schema) {
    return schema.name == field && (schema.endpoints & endpoint) != 0;
  });
  return found == std::end(kSchemas) ? std::string_view() : found->schema;
}

}  // namespace loramux
