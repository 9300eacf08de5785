// Parses how a model's configuration describes its recurrent layers. Internal to formats.
#pragma once

#include "base/result.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/model_family.h"

namespace loramux {

// Sets ModelConfig::recurrent if the model has such layers. REQUIRES: the extents are parsed. Errors: no layer has
// keys and values; a head of keys serves no whole number of heads of values; extents that contradict each other.
Status ParseRecurrent(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config);

}  // namespace loramux
