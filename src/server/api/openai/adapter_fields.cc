#include "server/api/openai/adapter_fields.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "adapter/registry.h"

namespace loramux {
namespace {

// Notes the adapter that a field names. Two fields must agree.
void Take(FieldReader& fields, std::string_view field, const Json& value, std::optional<AdapterField>& adapter) {
  if (!value.is_string()) return fields.Expect(field, "the name of one adapter", &value);
  const auto& name = value.get_ref<const std::string&>();
  if (name.empty()) return;
  if (adapter && (adapter->name != name || !adapter->parts.empty())) {
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

constexpr double kMostWeight = 1e6;

// The weight that a value says; records an error if it is none.
std::optional<double> Weight(FieldReader& fields, std::string_view field, const Json& value) {
  const double weight = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (std::abs(weight) <= kMostWeight) return weight;
  fields.Expect(field, "a scale or weight from -1000000 to 1000000", &value);
  return std::nullopt;
}

// Notes adapters with their weights. Those of weight 0 are not used.
void TakeSum(FieldReader& fields, std::string_view field, std::vector<NamedWeight> sum, const Json& value,
             std::optional<AdapterField>& adapter) {
  std::erase_if(sum, [](const NamedWeight& part) { return part.weight == 0; });
  if (sum.empty()) return;
  if (sum.size() == 1 && sum.front().weight == 1) return Take(fields, field, Json(sum.front().name), adapter);
  if (sum.size() > AdapterRegistry::kMaxWeightedAdapters) {
    return fields.Expect(
        field, "at most " + std::to_string(AdapterRegistry::kMaxWeightedAdapters) + " adapters in a request", &value);
  }
  std::set<std::string_view> names;
  std::string all;
  for (const NamedWeight& part : sum) {
    if (part.name.empty()) return fields.Expect(field, "names of adapters", &value);
    if (!names.insert(part.name).second) {
      return fields.Fail(ErrorCode::kInvalidArgument, field,
                         "expected each adapter once, found " + DescribeJson(Json(part.name)) + " twice");
    }
    all += (all.empty() ? "" : "+") + part.name;
  }
  if (adapter) return fields.Expect(field, "the adapter that `" + adapter->field + "` names", &value);
  adapter = AdapterField{std::string(field), std::move(all), std::move(sum)};
}

// llama.cpp's entries are {"id", "scale"}, with the adapter's place in its command line as the id.
bool ReadLoraEntry(FieldReader& fields, const Json& entry, std::vector<NamedWeight>& sum) {
  const auto member = [&](const char* key) -> const Json* {
    const auto found = entry.is_object() ? entry.find(key) : entry.end();
    return !entry.is_object() || found == entry.end() ? nullptr : &*found;
  };
  NamedWeight part;
  if (const Json* scale = member("scale")) {
    const auto weight = Weight(fields, "lora", *scale);
    if (!weight) return false;
    if (*weight == 0) return true;
    part.weight = *weight;
  }
  const Json* name = member("id") == nullptr ? member("name") : member("id");
  if (name == nullptr || !name->is_string()) {
    fields.Expect("lora", "objects {\"id\": NAME, \"scale\": NUMBER}; adapters have names here, and no numbers",
                  name == nullptr ? &entry : name);
    return false;
  }
  part.name = name->get<std::string>();
  sum.push_back(std::move(part));
  return true;
}

void ReadLora(FieldReader& fields, std::optional<AdapterField>& adapter) {
  const Json* value = fields.Find("lora");
  if (value == nullptr) return;
  if (value->is_string()) return Take(fields, "lora", *value, adapter);
  if (!value->is_array()) return fields.Expect("lora", "an array of {\"id\": NAME, \"scale\": NUMBER}", value);
  std::vector<NamedWeight> sum;
  for (const Json& entry : *value)
    if (!ReadLoraEntry(fields, entry, sum)) return;
  TakeSum(fields, "lora", std::move(sum), *value, adapter);
}

// {"ids": [NAME, ...], "weights": [NUMBER, ...], "merge_strategy": "linear"}. The other fields are of other strategies.
void ReadMerged(FieldReader& fields, std::optional<AdapterField>& adapter) {
  constexpr std::string_view kField = "merged_adapters";
  const Json* merged = fields.Object(kField);
  if (merged == nullptr || merged->empty()) return;
  const Json none;
  const auto member = [&](const char* key) -> const Json& {
    const auto found = merged->find(key);
    return found == merged->end() ? none : *found;
  };
  const Json &ids = member("ids"), &weights = member("weights"), &strategy = member("merge_strategy");
  if (!ids.is_array() || ids.empty()) return fields.Expect(kField, "names of adapters in `ids`", &ids);
  if (ids.size() > 1 && !strategy.is_null() && strategy != "linear") {
    return fields.Fail(ErrorCode::kUnsupported, kField,
                       "expected the merge_strategy \"linear\", the weighted sum of what the adapters do, found " +
                           DescribeJson(strategy));
  }
  const bool weighted = !weights.is_null() && !(weights.is_array() && weights.empty());
  if (weighted && (!weights.is_array() || weights.size() != ids.size())) {
    return fields.Expect(kField, "as many `weights` as `ids`", &weights);
  }
  std::vector<NamedWeight> sum;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].is_string()) return fields.Expect(kField, "names of adapters in `ids`", &ids[i]);
    const auto weight = weighted ? Weight(fields, kField, weights[i]) : 1.0;
    if (!weight) return;
    sum.push_back({ids[i].get<std::string>(), *weight});
  }
  TakeSum(fields, kField, std::move(sum), *merged, adapter);
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
