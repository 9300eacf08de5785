// What a router needs of a request's body, found in one pass without building a document. Bodies have up to 16 MiB, and
// a router reads each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// What a body asks for. Fields that are absent, or of another type, keep their defaults: the server will say so.
struct ScannedRequest {
  std::string model;                           // the field `model`
  std::size_t model_begin = 0, model_end = 0;  // where its value stands in the body; equal: it has no such field
  std::string adapter;  // lora_path, adapter_id or lora, also within `parameters`: other names of an adapter
  // Every text of a field that names a model or an adapter, wherever it stands; names_known is false if such a field
  // has another form, so that the names are not all known. A name that is repeated stands here once; more than
  // kMostNames different ones count as not known.
  static constexpr std::size_t kMostNames = 16;
  std::vector<std::string> names;
  bool names_known = true;
  bool stream = false;           // the field `stream`
  std::int64_t max_tokens = -1;  // max_tokens, max_completion_tokens, max_output_tokens or max_new_tokens; -1: absent
  std::int64_t choices = 1;      // `n`: the answers to each prompt
  std::int64_t prompts = 1;      // prompts that `prompt` or `input` lists
  // The beginning of the prompt's text, as cluster/prompt_text.h defines it, up to the last block of a fingerprint.
  std::string text;
  std::int64_t text_bytes = 0;  // bytes of the text of all prompts
  std::int64_t token_ids = 0;   // numbers in prompts that are given as token ids
};

// Reads the body of a completion, chat, embedding, response, message or generation. False: it is not a JSON object, or
// ends early; what was found by then stays. Never fails otherwise: the server checks the body.
bool ScanRequest(std::string_view body, ScannedRequest& request);

// Returns the body with `model` in the place of the model that it names. REQUIRES: ScanRequest(body, request) was true.
std::string WithModel(std::string_view body, const ScannedRequest& request, std::string_view model);

// The tokens of the request's prompts, counted or estimated.
std::int64_t PromptTokens(const ScannedRequest& request);

}  // namespace loramux
