#include "formats/length_proxy_config.h"

#include <charconv>

#include "base/message.h"
#include "formats/file.h"
#include "formats/json_fields.h"

namespace loramux {
namespace {

constexpr std::int64_t kMaxProxyExtent = std::int64_t{1} << 20;
constexpr std::int64_t kMaxProxyLayers = 128;
constexpr std::size_t kMaxBuckets = 4096;

Status CheckKind(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const auto type, fields.String("model_type"));
  if (type != "bert") return fields.Bad("model_type", "\"bert\"");
  const nlohmann::json* architectures = fields.Find("architectures");
  if (architectures == nullptr || *architectures != nlohmann::json::array({"BertForSequenceClassification"})) {
    return fields.Bad("architectures", "[\"BertForSequenceClassification\"]");
  }
  ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  if (activation.value_or("gelu") != "gelu") return fields.Bad("hidden_act", "\"gelu\"");
  ASSIGN_OR_RETURN(const auto positions, fields.String("position_embedding_type"));
  if (positions.value_or("absolute") != "absolute") return fields.Bad("position_embedding_type", "\"absolute\"");
  return Ok{};
}

Status ParseExtents(const JsonFields& fields, LengthProxyConfig& config) {
  ASSIGN_OR_RETURN(config.hidden_size, fields.RequiredInt("hidden_size", 1, kMaxProxyExtent));
  ASSIGN_OR_RETURN(config.num_layers, fields.RequiredInt("num_hidden_layers", 1, kMaxProxyLayers));
  ASSIGN_OR_RETURN(config.num_heads, fields.RequiredInt("num_attention_heads", 1, kMaxProxyExtent));
  if (config.hidden_size % config.num_heads != 0) {
    return fields.Bad("num_attention_heads", "a divisor of hidden_size (" + std::to_string(config.hidden_size) + ")");
  }
  ASSIGN_OR_RETURN(config.intermediate_size, fields.RequiredInt("intermediate_size", 1, kMaxProxyExtent));
  ASSIGN_OR_RETURN(config.vocab_size, fields.RequiredInt("vocab_size", 1, kMaxProxyExtent));
  ASSIGN_OR_RETURN(config.max_position, fields.RequiredInt("max_position_embeddings", 3, kMaxProxyExtent));
  ASSIGN_OR_RETURN(config.type_vocab_size, fields.RequiredInt("type_vocab_size", 1, kMaxProxyExtent));
  ASSIGN_OR_RETURN(const auto eps, fields.Number("layer_norm_eps"));
  config.layer_norm_eps = static_cast<float>(eps.value_or(1e-12));  // a value too small for float becomes 0
  if (eps && (*eps > 1 || !(config.layer_norm_eps > 0)))
    return fields.Bad("layer_norm_eps", "a number above 0 and at most 1");
  return Ok{};
}

// Parses "LOW-HIGH" or "LOW-".
std::optional<LengthBucket> ParseBucket(const std::string& text) {
  LengthBucket bucket;
  const char* const end = text.data() + text.size();
  const auto low = std::from_chars(text.data(), end, bucket.low);
  if (low.ec != std::errc() || low.ptr == end || *low.ptr != '-' || bucket.low < 1) return std::nullopt;
  if (low.ptr + 1 == end) return bucket;
  const auto high = std::from_chars(low.ptr + 1, end, bucket.high);
  if (high.ec != std::errc() || high.ptr != end || bucket.high < bucket.low) return std::nullopt;
  return bucket;
}

Status ParseBuckets(const JsonFields& fields, LengthProxyConfig& config) {
  const nlohmann::json* labels = fields.Find("id2label");
  if (labels == nullptr || !labels->is_object() || labels->empty() || labels->size() > kMaxBuckets) {
    return fields.Bad("id2label", "an object of 1 to " + std::to_string(kMaxBuckets) + " labels");
  }
  for (std::size_t i = 0; i < labels->size(); ++i) {
    const auto found = labels->find(std::to_string(i));
    if (found == labels->end())
      return fields.Bad("id2label", "the keys \"0\" to \"" + std::to_string(labels->size() - 1) + "\"");
    const auto bucket = found->is_string() ? ParseBucket(found->get<std::string>()) : std::nullopt;
    const bool follows = bucket && (i == 0 || bucket->low == std::int64_t{config.buckets.back().high} + 1);
    const bool open = bucket && bucket->high == 0;
    if (!follows || (open && i + 1 < labels->size())) {
      return InvalidArgument(
          fields.label() + "id2label." + std::to_string(i) +
          ": expected a range of output tokens such as \"18-22\" that begins right after the one before (only the last "
          "may be open: \"39-\"), found " +
          Describe(*found));
    }
    config.buckets.push_back(*bucket);
  }
  return Ok{};
}

}  // namespace

Result<LengthProxyConfig> ParseLengthProxyConfig(std::string_view json, const std::string& label) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  const JsonFields fields(object, label + ": ");
  LengthProxyConfig config;
  RETURN_IF_ERROR(CheckKind(fields));
  RETURN_IF_ERROR(ParseExtents(fields, config));
  RETURN_IF_ERROR(ParseBuckets(fields, config));
  return config;
}

Result<LengthProxyConfig> LoadLengthProxyConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonFileBytes));
  return ParseLengthProxyConfig(text, path.string());
}

}  // namespace loramux
