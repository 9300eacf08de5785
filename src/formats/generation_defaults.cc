#include "formats/generation_defaults.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "formats/json_fields.h"
#include "formats/model_files.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxGenerationConfigBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxEosTokens = 1024;
constexpr std::int64_t kMaxInt32Value = std::numeric_limits<std::int32_t>::max();

Status ReadNumber(const JsonFields& fields, const char* key, double low, double high, bool open_low,
                  std::optional<float>& value) {
  ASSIGN_OR_RETURN(const std::optional<double> number, fields.Number(key));
  if (!number) return Ok{};
  if (*number < low || *number > high || (open_low && static_cast<float>(*number) <= low)) {
    char expected[64];
    std::snprintf(expected, sizeof(expected), "a number %s %g to %g", open_low ? "above" : "from", low, high);
    return fields.Bad(key, expected);
  }
  value = static_cast<float>(*number);
  return Ok{};
}

Status ReadInteger(const JsonFields& fields, const char* key, std::int64_t low, std::optional<std::int32_t>& value) {
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> number, fields.Int(key, low, kMaxInt32Value));
  if (number) value = static_cast<std::int32_t>(*number);
  return Ok{};
}

template <typename Number>
void Append(std::string& text, const char* name, const std::optional<Number>& value) {
  if (!value) return;
  char number[32];
  std::snprintf(number, sizeof(number), "%g", static_cast<double>(*value));
  if (!text.empty()) text += ", ";
  text += std::string(name) + " " + (std::is_integral_v<Number> ? std::to_string(static_cast<long>(*value)) : number);
}

}  // namespace

Result<GenerationDefaults> ParseGenerationDefaults(std::string_view json, const std::string& label) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  const JsonFields fields(object, label + ": ");
  GenerationDefaults defaults;
  RETURN_IF_ERROR(ReadNumber(fields, "temperature", 0, 100, false, defaults.temperature));
  RETURN_IF_ERROR(ReadNumber(fields, "top_p", 0, 1, true, defaults.top_p));
  RETURN_IF_ERROR(ReadNumber(fields, "min_p", 0, 1, false, defaults.min_p));
  RETURN_IF_ERROR(ReadNumber(fields, "repetition_penalty", 0, 100, true, defaults.repetition_penalty));
  RETURN_IF_ERROR(ReadInteger(fields, "top_k", -1, defaults.top_k));
  RETURN_IF_ERROR(ReadInteger(fields, "max_new_tokens", 1, defaults.max_new_tokens));
  return defaults;
}

Status ReadEosTokens(const JsonFields& fields, std::int64_t vocab_size, std::vector<TokenId>& tokens) {
  const nlohmann::json* value = fields.Find("eos_token_id");
  if (value == nullptr) return Ok{};
  const std::string expected = "a token id below vocab_size " + std::to_string(vocab_size) + ", or a list of them";
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  if (list.size() > kMaxEosTokens)
    return fields.Bad("eos_token_id", "at most " + std::to_string(kMaxEosTokens) + " ids");
  std::vector<TokenId> ids;
  for (const nlohmann::json& item : list) {
    const auto id = IntegerIn(item, 0, vocab_size - 1);
    if (!id) {
      return InvalidArgument(fields.label() + "eos_token_id: expected " + expected + ", found " + Describe(item));
    }
    const auto token = static_cast<TokenId>(*id);
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  }
  tokens = std::move(ids);
  return Ok{};
}

Result<std::vector<TokenId>> ParseEosTokens(std::string_view json, const std::string& label, std::int64_t vocab_size) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  std::vector<TokenId> tokens;
  RETURN_IF_ERROR(ReadEosTokens(JsonFields(object, label + ": "), vocab_size, tokens));
  return tokens;
}

Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool model = std::filesystem::is_directory(path, ignored) || IsGgufModel(path);
  const std::filesystem::path file = model ? path / "generation_config.json" : path;
  ASSIGN_OR_RETURN(const std::string text, ReadModelFile(file, kMaxGenerationConfigBytes));
  return ParseGenerationDefaults(text, file.string());
}

std::string DescribeDefaults(const GenerationDefaults& defaults) {
  std::string text;
  Append(text, "temperature", defaults.temperature);
  Append(text, "top_p", defaults.top_p);
  Append(text, "top_k", defaults.top_k);
  Append(text, "min_p", defaults.min_p);
  Append(text, "repetition_penalty", defaults.repetition_penalty);
  Append(text, "max_new_tokens", defaults.max_new_tokens);
  return text;
}

}  // namespace loramux
