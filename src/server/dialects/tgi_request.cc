#include "server/dialects/tgi_request.h"

#include <limits>
#include <utility>

#include "server/dialects/translation.h"

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

// Parameters that the translation reads itself; the others have the same names in both dialects.
constexpr std::string_view kTgiOwn[] = {"adapter_id",
                                        "adapter_source",
                                        "api_token",
                                        "best_of",
                                        "decoder_input_details",
                                        "details",
                                        "do_sample",
                                        "grammar",
                                        "model",
                                        "n",
                                        "max_new_tokens",
                                        "max_tokens",
                                        "prompt",
                                        "return_full_text",
                                        "seed",
                                        "stop",
                                        "temperature",
                                        "top_n_tokens",
                                        "truncate",
                                        "typical_p",
                                        "watermark",
                                        "logprobs",
                                        "stream",
                                        "stream_options",
                                        "echo",
                                        "structured_outputs",
                                        "include_stop_str_in_output",
                                        "return_tokens_as_token_ids",
                                        "truncate_prompt_tokens",
                                        "add_special_tokens"};

// Fields of other APIs, which would be this API's parameters.
constexpr std::string_view kRefusedInTgi[] = {"n",
                                              "max_tokens",
                                              "model",
                                              "prompt",
                                              "structured_outputs",
                                              "include_stop_str_in_output",
                                              "add_special_tokens",
                                              "merged_adapters",
                                              "watermark",
                                              "logprobs",
                                              "stream_options",
                                              "echo",
                                              "response_format",
                                              "truncate_prompt_tokens",
                                              "return_tokens_as_token_ids"};

// Parameters that a client may have put beside `parameters`.
constexpr std::string_view kMisplacedInTgi[] = {"adapter_id",
                                                "model",
                                                "max_new_tokens",
                                                "max_tokens",
                                                "best_of",
                                                "n",
                                                "temperature",
                                                "top_k",
                                                "top_p",
                                                "seed",
                                                "stop",
                                                "do_sample",
                                                "truncate",
                                                "repetition_penalty",
                                                "grammar",
                                                "details",
                                                "watermark",
                                                "typical_p",
                                                "top_n_tokens",
                                                "return_full_text",
                                                "frequency_penalty",
                                                "decoder_input_details"};

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

// Parameters that would change the answer in ways that are not supported.
void RefuseOthers(FieldReader& parameters) {
  RefuseFields(parameters, kRefusedInTgi);
  const auto refuse_unless = [&](std::string_view name, std::int64_t neutral) {
    const Json* value = parameters.Find(name);
    if (value == nullptr || AsInteger(*value) == neutral) return;
    parameters.Fail(ErrorCode::kUnsupported, name,
                    "this server does not support it; leave it out (found " + DescribeJson(*value) + ")");
  };
  refuse_unless("typical_p", 1);
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
  RefuseOthers(parameters);
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

Result<TgiCompletion> CompletionOfTgi(Json body, TgiPath path, std::string_view base_model) {
  FieldReader fields(body, "");
  TgiCompletion translated;
  Json& completion = translated.completion = {{"model", base_model}, {"logprobs", 0}, {"temperature", 0}};
  std::string inputs;
  if (!fields.String("inputs", inputs) || inputs.empty()) {
    fields.Expect("inputs", "a text of at least one character", fields.Find("inputs"));
  }
  completion["prompt"] = inputs;
  RefuseFields(fields, kMisplacedInTgi, "this API's fields are in `parameters`, where an adapter is `adapter_id`");
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
  PassOn(body["parameters"], kTgiOwn, completion);
  return translated;
}

}  // namespace loramux
