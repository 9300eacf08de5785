// The fields that name an adapter beside `model`: `lora_path` (SGLang), `adapter_id` and `merged_adapters` (LoRAX),
// `lora` (llama.cpp).
#pragma once

#include <optional>

#include "http/json_reader.h"
#include "server/completion/completion_request.h"

namespace loramux {

// Reads all these fields; null and empty values name none. `lora` and `merged_adapters` may name several, with weights.
// Whatever else they ask for (numbers instead of names, other ways to merge) is recorded as an error, as are two fields
// that name different adapters.
std::optional<AdapterField> ReadAdapterFields(FieldReader& fields);

}  // namespace loramux
