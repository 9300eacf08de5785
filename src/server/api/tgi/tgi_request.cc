#include "server/api/tgi/tgi_request.h"

#include <limits>
#include <utility>

namespace loramux {
namespace {

constexpr FieldName kTgiNames[] = {{"model", "parameters.adapter_id"},
                                   {"prompt", "inputs"},
                                   {"max_tokens", "parameters.max_new_tokens"},
                                   {"temperature", "parameters.temperature"},
                                   {"top_k", "parameters.top_k"},
                                   {"top_p", "parameters.top_p"},
                                   {"repetition_penalty", "parameters.repetition_penalty"},
                                   {"frequency_penalty", "parameters.frequency_penalty"},
                                   {"seed", "parameters.seed"},
                                   {"stop", "parameters.stop"},
                                   {"n", "parameters.best_of"},
                                   {"logprobs", "parameters.top_n_tokens"},
                                   {"truncate_prompt_tokens", "parameters.truncate"},
                                   {"structured_outputs", "parameters.grammar"}};

// What the translation reads beside `parameters`, and parameters that a client may have put there.
constexpr std::string_view kMisplaced = "this API's fields are in `parameters`, where an adapter is `adapter_id`";
constexpr DialectField kTgiFields[] = {
    {"inputs", FieldUse::kServed, R"({"type": "string", "minLength": 1})", "the prompt"},
    {"parameters", FieldUse::kServed, R"({"$ref": "#/components/schemas/GenerateParameters"})"},
    {"stream", FieldUse::kServed, R"({"type": "boolean"})", "at `/` alone"},
    {"add_special_tokens", FieldUse::kServed, R"({"type": "boolean"})"},
    {"adapter_id", FieldUse::kRefused, "{}", kMisplaced},
    {"model", FieldUse::kRefused, "{}", kMisplaced},
    {"max_new_tokens", FieldUse::kRefused, "{}", kMisplaced},
    {"max_tokens", FieldUse::kRefused, "{}", kMisplaced},
    {"best_of", FieldUse::kRefused, "{}", kMisplaced},
    {"n", FieldUse::kRefused, "{}", kMisplaced},
    {"temperature", FieldUse::kRefused, "{}", kMisplaced},
    {"top_k", FieldUse::kRefused, "{}", kMisplaced},
    {"top_p", FieldUse::kRefused, "{}", kMisplaced},
    {"seed", FieldUse::kRefused, "{}", kMisplaced},
    {"stop", FieldUse::kRefused, "{}", kMisplaced},
    {"do_sample", FieldUse::kRefused, "{}", kMisplaced},
    {"truncate", FieldUse::kRefused, "{}", kMisplaced},
    {"repetition_penalty", FieldUse::kRefused, "{}", kMisplaced},
    {"grammar", FieldUse::kRefused, "{}", kMisplaced},
    {"details", FieldUse::kRefused, "{}", kMisplaced},
    {"watermark", FieldUse::kRefused, "{}", kMisplaced},
    {"typical_p", FieldUse::kRefused, "{}", kMisplaced},
    {"top_n_tokens", FieldUse::kRefused, "{}", kMisplaced},
    {"return_full_text", FieldUse::kRefused, "{}", kMisplaced},
    {"frequency_penalty", FieldUse::kRefused, "{}", kMisplaced},
    {"decoder_input_details", FieldUse::kRefused, "{}", kMisplaced},
};

// What the translation reads within `parameters`, and fields of other APIs, which would be parameters here.
constexpr DialectField kTgiParameters[] = {
    {"adapter_id", FieldUse::kServed, R"({"type": "string"})", "the adapter"},
    {"max_new_tokens", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"do_sample", FieldUse::kServed, R"({"type": "boolean"})"},
    {"temperature", FieldUse::kServed, R"({"type": "number", "exclusiveMinimum": 0, "maximum": 100})"},
    {"seed", FieldUse::kServed, R"({"type": "integer"})"},
    {"stop", FieldUse::kServed, R"({"type": "array", "items": {"type": "string"}})"},
    {"best_of", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"top_n_tokens", FieldUse::kServed, R"({"type": "integer", "minimum": 0})"},
    {"truncate", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"grammar", FieldUse::kServed, R"({"type": "object"})", "{type: json, json_schema or regex, value}"},
    {"details", FieldUse::kServed, R"({"type": "boolean"})"},
    {"decoder_input_details", FieldUse::kServed, R"({"type": "boolean"})"},
    {"return_full_text", FieldUse::kServed, R"({"type": "boolean"})"},
    {"adapter_source", FieldUse::kAccepted},
    {"api_token", FieldUse::kAccepted},
    {"stream", FieldUse::kAccepted},
    {"typical_p", FieldUse::kRefused, "{}", {}, "1"},
    {"watermark", FieldUse::kRefused},
    {"n", FieldUse::kRefused, "{}", "use `best_of`"},
    {"max_tokens", FieldUse::kRefused, "{}", "use `max_new_tokens`"},
    {"model", FieldUse::kRefused, "{}", "use `adapter_id`"},
    {"prompt", FieldUse::kRefused, "{}", "use `inputs`"},
    {"structured_outputs", FieldUse::kRefused, "{}", "use `grammar`"},
    {"include_stop_str_in_output", FieldUse::kRefused},
    {"add_special_tokens", FieldUse::kRefused},
    {"merged_adapters", FieldUse::kRefused},
    {"logprobs", FieldUse::kRefused, "{}", "use `top_n_tokens`"},
    {"logprob_token_ids", FieldUse::kRefused, "{}", "use /v1/completions"},
    {"stream_options", FieldUse::kRefused},
    {"echo", FieldUse::kRefused},
    {"response_format", FieldUse::kRefused, "{}", "use `grammar`"},
    {"truncate_prompt_tokens", FieldUse::kRefused, "{}", "use `truncate`"},
    {"return_tokens_as_token_ids", FieldUse::kRefused},
    {"return_token_ids", FieldUse::kRefused, "{}", "use `details`, whose tokens have their ids"},
};

// True if TGI would draw from the distribution; otherwise it takes the likeliest token.
bool Samples(FieldReader& parameters) {
  bool sample = false;
  float temperature = 1, top_p = 1;
  parameters.Boolean("do_sample", sample);
  parameters.Number("temperature", 0, 100, true, temperature);
  parameters.Number("top_p", 0, 1, true, top_p);
  const Json* top_k = parameters.Find("top_k");
  return sample || temperature != 1 || top_p < 1 || (top_k != nullptr && AsInteger(*top_k) != 0);
}

// As in TGI, the prompt's tokens come with a whole answer only.
void TranslateDetails(FieldReader& parameters, bool stream, TgiCompletion& translated) {
  parameters.Boolean("details", translated.details);
  parameters.Boolean("decoder_input_details", translated.prompt_details);
  if (translated.prompt_details && stream) {
    parameters.Expect("decoder_input_details", "false for an answer that is streamed",
                      parameters.Find("decoder_input_details"));
  }
  if (translated.prompt_details) translated.completion["echo"] = translated.details = true;
}

void TranslateBestOf(FieldReader& parameters, bool sampling, bool stream, Json& completion) {
  const Json* best_of = parameters.Find("best_of");
  if (best_of == nullptr || AsInteger(*best_of) == 1) return;
  completion["n"] = *best_of;
  if (!sampling) parameters.Expect("best_of", "1 without sampling (`do_sample`)", best_of);
  if (stream) parameters.Expect("best_of", "1 for an answer that is streamed", best_of);
  if (completion.contains("seed")) parameters.Expect("best_of", "1 together with `seed`", best_of);
}

void TranslateGrammar(FieldReader& parameters, Json& completion) {
  const Json* object = parameters.Object("grammar");
  if (object == nullptr) return;
  FieldReader grammar(*object, "grammar.");
  std::string type;
  grammar.String("type", type);
  const Json* value = grammar.Find("value");
  if (value == nullptr || (type != "json" && type != "json_schema" && type != "regex")) {
    return parameters.Expect("grammar", "{\"type\", \"value\"} with type \"json\", \"json_schema\" or \"regex\"",
                             object);
  }
  const bool inner = type == "json_schema" && value->is_object() && value->contains("schema");
  completion["structured_outputs"] = {{type == "regex" ? "regex" : "json", inner ? (*value)["schema"] : *value}};
}

void TranslateParameters(FieldReader& parameters, bool stream, Json& completion) {
  RefuseFields(parameters, kTgiParameters);
  const bool sampling = Samples(parameters);
  std::string adapter;
  if (parameters.String("adapter_id", adapter) && !adapter.empty()) completion["model"] = adapter;
  if (const Json* length = parameters.Find("max_new_tokens")) completion["max_tokens"] = *length;
  if (const Json* seed = parameters.Find("seed")) completion["seed"] = *seed;
  if (const Json* tokens = parameters.Find("truncate")) completion["truncate_prompt_tokens"] = *tokens;
  if (const Json* tokens = parameters.Find("top_n_tokens")) completion["logprobs"] = *tokens;
  const Json* stop = parameters.Array("stop");
  if (stop != nullptr && !stop->empty()) completion["stop"] = *stop;
  const Json* temperature = parameters.Find("temperature");
  completion["temperature"] = !sampling ? Json(0) : temperature == nullptr ? Json(1) : *temperature;
  TranslateBestOf(parameters, sampling, stream, completion);
  TranslateGrammar(parameters, completion);
}

bool Streams(FieldReader& fields, TgiPath path) {
  bool asked = false;
  fields.Boolean("stream", asked);
  return path == TgiPath::kGenerateStream || (path == TgiPath::kRoot && asked);
}

}  // namespace

std::span<const FieldName> TgiNames() { return kTgiNames; }

std::span<const DialectField> TgiFields() { return kTgiFields; }
std::span<const DialectField> TgiParameters() { return kTgiParameters; }

Result<TgiCompletion> CompletionOfTgi(Json body, TgiPath path, std::string_view base_model) {
  FieldReader fields(body, "");
  TgiCompletion translated;
  Json& completion = translated.completion = {{"model", base_model}, {"logprobs", 0}, {"temperature", 0}};
  std::string inputs;
  if (!fields.String("inputs", inputs) || inputs.empty()) {
    fields.Expect("inputs", "a text of at least one character", fields.Find("inputs"));
  }
  completion["prompt"] = inputs;
  RefuseFields(fields, kTgiFields);
  bool special = true, full_text = false;
  fields.Boolean("add_special_tokens", special);
  completion["add_special_tokens"] = special;
  completion["include_stop_str_in_output"] = true;  // TGI keeps the stop string
  const bool stream = Streams(fields, path);
  completion["stream"] = stream;
  const Json* object = fields.Object("parameters");
  if (!fields.ok()) return fields.error();
  if (object == nullptr) return translated;
  FieldReader parameters(*object, "parameters.");
  TranslateParameters(parameters, stream, completion);
  TranslateDetails(parameters, stream, translated);
  parameters.Boolean("return_full_text", full_text);
  if (!parameters.ok()) return parameters.error();
  if (full_text) translated.prefix = std::move(inputs);
  PassOn(body["parameters"], kTgiParameters, completion);
  return translated;
}

}  // namespace loramux
