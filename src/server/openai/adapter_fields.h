// The fields that name an adapter beside `model`: `lora_path` (SGLang), `adapter_id` and `merged_adapters` (LoRAX),
// `lora` (llama.cpp).
#pragma once

#include <optional>
#include <string>

#include "http/json_reader.h"

namespace loramux {

// An adapter that a field names.
struct AdapterField {
  std::string field;  // "lora_path"
  std::string name;   // not empty; it may be unknown
};

// Reads all these fields. Each may name one adapter, with its own scale; null and empty values name none. Whatever else
// they ask for (several adapters, another scale, numbers instead of names) is recorded as an error, as are two fields
// that name different adapters.
std::optional<AdapterField> ReadAdapterFields(FieldReader& fields);

}  // namespace loramux
