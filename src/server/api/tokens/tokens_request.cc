#include "server/api/tokens/tokens_request.h"

#include <algorithm>
#include <utility>

namespace loramux {
namespace {

constexpr std::size_t kMaxIdBytes = 256;  // bytes

constexpr FieldName kTokensNames[] = {{"prompt_logprobs", "sampling_params.prompt_logprobs"},
                                      {"prompt", "token_ids"},
                                      {"max_tokens", "sampling_params.max_tokens"},
                                      {"min_tokens", "sampling_params.min_tokens"},
                                      {"ignore_eos", "sampling_params.ignore_eos"},
                                      {"temperature", "sampling_params.temperature"},
                                      {"top_p", "sampling_params.top_p"},
                                      {"min_p", "sampling_params.min_p"},
                                      {"top_k", "sampling_params.top_k"},
                                      {"presence_penalty", "sampling_params.presence_penalty"},
                                      {"frequency_penalty", "sampling_params.frequency_penalty"},
                                      {"repetition_penalty", "sampling_params.repetition_penalty"},
                                      {"logit_bias", "sampling_params.logit_bias"},
                                      {"seed", "sampling_params.seed"},
                                      {"n", "sampling_params.n"},
                                      {"stop", "sampling_params.stop"},
                                      {"stop_token_ids", "sampling_params.stop_token_ids"},
                                      {"logprobs", "sampling_params.logprobs"},
                                      {"logprob_token_ids", "sampling_params.logprob_token_ids"},
                                      {"structured_outputs", "sampling_params.structured_outputs"},
                                      {"bad_words", "sampling_params.bad_words"},
                                      {"allowed_token_ids", "sampling_params.allowed_token_ids"}};

// What a completion has at the top level too, and keeps its name.
constexpr std::string_view kPassed[] = {"model",     "stream",     "stream_options", "cache_salt",      "priority",
                                        "lora_path", "adapter_id", "lora",           "merged_adapters", "deadline_ms"};

constexpr DialectField kTokensFields[] = {
    {"token_ids", FieldUse::kServed, R"({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1})",
     "the prompt"},
    {"sampling_params", FieldUse::kServed, R"({"$ref": "#/components/schemas/TokensParameters"})"},
    {"model", FieldUse::kServed, R"({"type": "string"})", "without it the base model answers"},
    {"request_id", FieldUse::kServed, R"({"type": "string", "maxLength": 256})", "a part of the answer's"},
    {"stream", FieldUse::kServed, R"({"type": "boolean"})"},
    {"stream_options", FieldUse::kServed, R"({"type": "object"})"},
    {"cache_salt", FieldUse::kServed, R"({"type": "string", "minLength": 1, "maxLength": 256})"},
    {"priority", FieldUse::kServed, R"({"type": "integer", "minimum": -10, "maximum": 10})"},
    {"deadline_ms", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"return_token_ids", FieldUse::kServed, R"({"type": "boolean"})", "`prompt_token_ids` beside the choices"},
    {"lora_path", FieldUse::kServed},
    {"adapter_id", FieldUse::kServed},
    {"lora", FieldUse::kServed},
    {"merged_adapters", FieldUse::kServed},
    {"assistant_tokens_mask", FieldUse::kAccepted},
    {"token_offsets", FieldUse::kAccepted},
    {"features", FieldUse::kRefused},
    {"content_parts", FieldUse::kRefused},
    {"kv_transfer_params", FieldUse::kRefused},
};

constexpr std::string_view kBeside = "it stands beside `sampling_params`";
constexpr DialectField kTokensParameters[] = {
    {"detokenize", FieldUse::kAccepted, "{}", "answers have no text"},
    {"return_tokens_as_token_ids", FieldUse::kAccepted, "{}", "they always are"},
    {"output_kind", FieldUse::kAccepted, "{}", "`stream` decides"},
    {"stream_interval", FieldUse::kAccepted},
    {"skip_clone", FieldUse::kAccepted},
    {"flat_logprobs", FieldUse::kAccepted},
    {"skip_reading_prefix_cache", FieldUse::kAccepted, "{}", "cached prefixes do not change the output"},
    {"output_text_buffer_length", FieldUse::kAccepted},
    {"extra_args", FieldUse::kRefused},
    {"thinking_token_budget", FieldUse::kRefused, "{}", {}, "-1"},
    {"routed_experts_prompt_start", FieldUse::kRefused, "{}", {}, "0"},
    {"trace_decode_token_ids", FieldUse::kRefused},
    {"prompt_logprob_token_ids", FieldUse::kRefused, "{}", "use `prompt_logprobs`"},
    {"prompt_logprob_start", FieldUse::kRefused, "{}", "use `prompt_logprobs`"},
    {"echo", FieldUse::kRefused, "{}", "use `prompt_logprobs`"},
    {"prompt", FieldUse::kRefused, "{}", "use `token_ids`"},
    {"token_ids", FieldUse::kRefused, "{}", kBeside},
    {"model", FieldUse::kRefused, "{}", kBeside},
    {"stream", FieldUse::kRefused, "{}", kBeside},
    {"stream_options", FieldUse::kRefused, "{}", kBeside},
    {"cache_salt", FieldUse::kRefused, "{}", kBeside},
    {"priority", FieldUse::kRefused, "{}", kBeside, "0"},
    {"deadline_ms", FieldUse::kRefused, "{}", kBeside},
    {"return_token_ids", FieldUse::kRefused, "{}", kBeside},
    {"lora_path", FieldUse::kRefused, "{}", kBeside},
    {"adapter_id", FieldUse::kRefused, "{}", kBeside},
    {"lora", FieldUse::kRefused, "{}", kBeside},
    {"merged_adapters", FieldUse::kRefused, "{}", kBeside},
};

bool Has(std::span<const DialectField> table, std::string_view name) {
  return std::ranges::find(table, name, &DialectField::name) != table.end();
}

const RequestField* FieldOfCompletions(std::string_view name) {
  const auto fields = RequestFields();
  const auto found = std::ranges::find_if(fields, [name](const RequestField& field) {
    return field.name == name && (field.endpoints & kCompletionBody) != 0;
  });
  return found == fields.end() ? nullptr : &*found;
}

// Errors about fields that the table has not, unless completions know them: in `parameters` all of those, and else the
// ones without an effect.
void RefuseOthers(FieldReader& fields, const Json& object, std::span<const DialectField> table, bool parameters) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || Has(table, name)) continue;
    const RequestField* known = FieldOfCompletions(name);
    if (known != nullptr && (parameters || known->use == FieldUse::kAccepted)) continue;
    const std::string plain = PlainName(std::string_view(name).substr(0, 100));
    const std::string found = " (found " + DescribeJson(value) + ")";
    if (known != nullptr) {
      return fields.Fail(ErrorCode::kUnsupported, "sampling_params",
                         "`" + plain + "` belongs in it, not beside it" + found);
    }
    return fields.Fail(ErrorCode::kUnsupported, plain, "this server does not know it; leave it out" + found);
  }
}

}  // namespace

std::span<const FieldName> TokensNames() { return kTokensNames; }
std::span<const DialectField> TokensFields() { return kTokensFields; }
std::span<const DialectField> TokensParameters() { return kTokensParameters; }

Result<TokensCompletion> CompletionOfTokens(Json body, std::string_view base_model) {
  TokensCompletion translated;
  Json& completion = translated.completion = Json::object();
  FieldReader fields(body, "");
  RefuseFields(fields, kTokensFields);
  RefuseOthers(fields, body, kTokensFields, /*parameters=*/false);
  if (fields.String("request_id", translated.request_id) && translated.request_id.size() > kMaxIdBytes) {
    fields.Expect("request_id", "a string of at most 256 bytes", fields.Find("request_id"));
  }
  fields.Boolean("return_token_ids", translated.returns_prompt);
  const Json* tokens = fields.Find("token_ids");
  const bool ids = tokens != nullptr && tokens->is_array() && !tokens->empty() && tokens->front().is_number();
  if (!ids) fields.Expect("token_ids", "an array of at least one token id", tokens);
  const Json* object = fields.Object("sampling_params");
  if (object == nullptr) fields.Expect("sampling_params", "an object", nullptr);
  if (!fields.ok()) return fields.error();
  FieldReader parameters(*object, "sampling_params.");
  RefuseFields(parameters, kTokensParameters);
  RefuseOthers(parameters, *object, kTokensParameters, /*parameters=*/true);
  if (!parameters.ok()) return parameters.error();
  for (const std::string_view name : kPassed) {
    if (const Json* value = fields.Find(name)) completion[std::string(name)] = *value;
  }
  if (!completion.contains("model")) completion["model"] = base_model;
  completion["prompt"] = *tokens;
  completion["return_token_ids"] = true;
  Json& sampling = body["sampling_params"];
  if (sampling.contains("seed") && AsInteger(sampling["seed"]) == -1) sampling.erase("seed");  // vLLM's word for none
  PassOn(sampling, kTokensParameters, completion);
  return translated;
}

}  // namespace loramux
