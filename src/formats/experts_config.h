// Parses how a model's configuration describes its mixtures of experts. Internal to formats.
#pragma once

#include "base/result.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/model_family.h"

namespace loramux {

// Sets ModelConfig::experts, and intermediate_size if all layers have experts. REQUIRES: the extents are parsed.
// Errors: a family without experts has some; more are chosen than there are.
Status ParseExperts(const JsonFields& fields, const FamilyInfo& family, ModelConfig& config);

}  // namespace loramux
