#include "server/openai/adapter_fields.h"

namespace loramux {
namespace {

// Notes the adapter that a field names. Two fields must agree.
void Take(FieldReader& fields, std::string_view field, const Json& value, std::optional<AdapterField>& adapter) {
  if (!value.is_string()) return fields.Expect(field, "the name of one adapter", &value);
  const auto& name = value.get_ref<const std::string&>();
  if (name.empty()) return;
  if (adapter && adapter->name != name) {
    return fields.Expect(field, "the adapter that `" + adapter->field + "` names", &value);
  }
  if (!adapter) adapter = AdapterField{std::string(field), name};
}

// A name, or an array of one name.
void ReadLoraPath(FieldReader& fields, std::optional<AdapterField>& adapter) {
  const Json* value = fields.Find("lora_path");
  if (value == nullptr || (value->is_array() && value->empty())) return;
  const bool one_in_array = value->is_array() && value->size() == 1;
  Take(fields, "lora_path", one_in_array ? value->front() : *value, adapter);
}

bool IsNumber(const Json& value, double number) { return value.is_number() && value.get<double>() == number; }

// llama.cpp's entries are {"id", "scale"}, with the adapter's place in its command line as the id.
bool IsUnused(const Json& entry) { return entry.is_object() && entry.contains("scale") && IsNumber(entry["scale"], 0); }

void ReadLoraEntry(FieldReader& fields, const Json& entry, std::optional<AdapterField>& adapter) {
  constexpr std::string_view kExpected = "one object {\"id\": NAME}; adapters have names here, and no numbers";
  if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_string()) {
    return fields.Expect("lora", kExpected, entry.is_object() && entry.contains("id") ? &entry["id"] : &entry);
  }
  if (entry.contains("scale") && !IsNumber(entry["scale"], 1)) {
    return fields.Fail(
        ErrorCode::kUnsupported, "lora",
        "expected scale 1, because adapters are served with their own scale, found " + DescribeJson(entry["scale"]));
  }
  Take(fields, "lora", entry["id"], adapter);
}

void ReadLora(FieldReader& fields, std::optional<AdapterField>& adapter) {
  const Json* value = fields.Find("lora");
  if (value == nullptr) return;
  if (value->is_string()) return Take(fields, "lora", *value, adapter);
  if (!value->is_array()) return fields.Expect("lora", "an array of one {\"id\": NAME}", value);
  const Json* used = nullptr;
  for (const Json& entry : *value) {
    if (IsUnused(entry)) continue;
    if (used != nullptr) return fields.Expect("lora", "one adapter", value);
    used = &entry;
  }
  if (used != nullptr) ReadLoraEntry(fields, *used, adapter);
}

// {"ids": [NAME], "weights": [1], ...}. The other fields say how several adapters are merged.
void ReadMerged(FieldReader& fields, std::optional<AdapterField>& adapter) {
  const Json* merged = fields.Object("merged_adapters");
  if (merged == nullptr || merged->empty()) return;
  const auto ids = merged->find("ids");
  if (ids == merged->end() || !ids->is_array() || ids->size() != 1) {
    return fields.Fail(ErrorCode::kUnsupported, "merged_adapters",
                       "this server merges no adapters: expected one name in `ids`, found " +
                           (ids == merged->end() ? "nothing" : DescribeJson(*ids)));
  }
  const auto weights = merged->find("weights");
  const bool plain =
      weights == merged->end() || weights->is_null() ||
      (weights->is_array() && (weights->empty() || (weights->size() == 1 && IsNumber(weights->front(), 1))));
  if (!plain) {
    return fields.Fail(ErrorCode::kUnsupported, "merged_adapters",
                       "expected the weight 1, because adapters are served with their own scale, found another in "
                       "`weights`");
  }
  Take(fields, "merged_adapters", ids->front(), adapter);
}

}  // namespace

std::optional<AdapterField> ReadAdapterFields(FieldReader& fields) {
  std::optional<AdapterField> adapter;
  ReadLoraPath(fields, adapter);
  if (const Json* id = fields.Find("adapter_id")) Take(fields, "adapter_id", *id, adapter);
  ReadLora(fields, adapter);
  ReadMerged(fields, adapter);
  return adapter;
}

}  // namespace loramux
