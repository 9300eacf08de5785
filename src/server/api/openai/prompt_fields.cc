#include "server/api/openai/prompt_fields.h"

#include <string>
#include <utility>

namespace loramux {
namespace {

std::string NameOf(std::string_view field, std::size_t index) {
  return std::string(field) + "[" + std::to_string(index) + "]";
}

void ReadTokenPrompt(FieldReader& fields, const Json& list, const std::string& name, const RequestLimits& limits,
                     std::vector<Prompt>& prompts) {
  if (static_cast<std::int64_t>(list.size()) > limits.max_tokens) {
    return fields.Fail(ErrorCode::kInvalidArgument, name,
                       "this model's maximum context length is " + std::to_string(limits.max_tokens) +
                           " tokens. However, you sent " + std::to_string(list.size()) + ". Please reduce the length.");
  }
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const auto id = AsInteger(item);
    if (!id || *id < 0 || *id >= limits.vocab_size) {
      return fields.Expect(NameOf(name, ids.size()), "a token id from 0 to " + std::to_string(limits.vocab_size - 1),
                           &item);
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  if (ids.empty()) return fields.Expect(name, "at least one token id", &list);
  prompts.emplace_back(std::move(ids));
}

}  // namespace

void FailTooManySequences(FieldReader& fields, std::string_view field, const RequestLimits& limits,
                          std::int64_t found) {
  fields.Fail(ErrorCode::kInvalidArgument, field,
              "expected at most " + std::to_string(limits.max_sequences) +
                  " sequences in a request (prompts times `n`), found " + std::to_string(found) +
                  "; send several requests, or let the operator raise --max-sequences-per-request");
}

void ReadPrompts(FieldReader& fields, std::string_view field, const RequestLimits& limits, std::int64_t n,
                 std::vector<Prompt>& prompts) {
  constexpr std::string_view kExpected =
      "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
  const Json* prompt = fields.Find(field);
  if (prompt == nullptr || !(prompt->is_string() || prompt->is_array()) || (prompt->is_array() && prompt->empty())) {
    return fields.Expect(field, kExpected, prompt);
  }
  if (prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
    return;
  }
  if (prompt->front().is_number()) return ReadTokenPrompt(fields, *prompt, std::string(field), limits, prompts);
  if (static_cast<std::int64_t>(prompt->size()) > limits.max_sequences) {
    return FailTooManySequences(fields, field, limits, static_cast<std::int64_t>(prompt->size()) * n);
  }
  const bool texts = prompt->front().is_string();
  for (std::size_t i = 0; i < prompt->size() && fields.ok(); ++i) {
    const Json& item = (*prompt)[i];
    if (texts && item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (!texts && item.is_array()) {
      ReadTokenPrompt(fields, item, NameOf(field, i), limits, prompts);
    } else {
      return fields.Expect(NameOf(field, i), texts ? "a string like the ones before" : kExpected, &item);
    }
  }
}

}  // namespace loramux
