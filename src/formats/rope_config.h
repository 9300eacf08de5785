// Parses how a model's configuration describes its rotary embeddings. Internal to formats.
#pragma once

#include "base/result.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/model_family.h"

namespace loramux {

// Sets ModelConfig::rope, local_rope and layer_rope from rope_scaling and rope_theta (transformers 4) or
// rope_parameters (transformers 5), which may differ between layers with and without a window. REQUIRES: extents,
// heads and windows are parsed.
Status ParseRopes(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config);

}  // namespace loramux
