// The fields that name an adapter beside `model`: `lora_path` (SGLang), `adapter_id` and `merged_adapters` (LoRAX),
// `lora` (llama.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "http/json_reader.h"

namespace loramux {

// An adapter with a weight of its products.
struct NamedWeight {
  std::string name;
  double weight = 1;
};

// An adapter that a field names, or the sum of several.
struct AdapterField {
  std::string field;  // "lora_path"
  std::string name;   // not empty; it may be unknown
  // Of a sum, which may also be one adapter with another weight than 1: its adapters, in their order, none twice and
  // none with weight 0. Otherwise empty. `name` then says all of it, for messages.
  std::vector<NamedWeight> parts = {};
};

// Reads all these fields; null and empty values name none. `lora` and `merged_adapters` may name several, with weights.
// Whatever else they ask for (numbers instead of names, other ways to merge) is recorded as an error, as are two fields
// that name different adapters.
std::optional<AdapterField> ReadAdapterFields(FieldReader& fields);

}  // namespace loramux
