// What a model's generation_config.json says about sampling: the defaults of requests that say nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// The fields that vLLM takes too. Others (do_sample, num_beams, ...) have no effect.
struct GenerationDefaults {
  std::optional<float> temperature;         // 0 to 100
  std::optional<float> top_p;               // above 0, at most 1
  std::optional<float> min_p;               // 0 to 1
  std::optional<float> repetition_penalty;  // above 0, at most 100
  std::optional<std::int32_t> top_k;        // 0 and -1: off
  std::optional<std::int32_t> max_new_tokens;
  bool operator==(const GenerationDefaults&) const = default;
};

// Parses a generation_config.json. Error: it is no JSON object, or one of the fields is not as above. `label` names the
// source in errors.
Result<GenerationDefaults> ParseGenerationDefaults(std::string_view json, const std::string& label);

// Reads `eos_token_id` of a generation_config.json: an id below `vocab_size`, or a list of them. Empty: it names none.
// Errors: as above.
Result<std::vector<TokenId>> ParseEosTokens(std::string_view json, const std::string& label, std::int64_t vocab_size);
// The same of an object that is parsed; where the field is absent, `tokens` stay as they are.
class JsonFields;
Status ReadEosTokens(const JsonFields& fields, std::int64_t vocab_size, std::vector<TokenId>& tokens);

// Reads `path`: the file, or a model (a directory, or a GGUF file) with a generation_config.json. Errors: kNotFound,
// and those of parsing.
Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& path);

// Returns what is set, as in "temperature 0.6, top_p 0.9"; empty: nothing.
std::string DescribeDefaults(const GenerationDefaults& defaults);

}  // namespace loramux
