// The tensors of a rank's part of a model.
#pragma once

#include "formats/model_part.h"
#include "model/model_tensors.h"

namespace loramux {

// Leaves the outputs of every layer that the rank computes (OutputsOf), and its heads' vectors. What all ranks compute
// stays whole: norms, routers, positions, projections beside a narrow embedding. Error (kUnsupported): layers that
// share a matrix in memory are quantised in different formats, and the rank's rows do not fill panels. REQUIRES:
// CheckParts.
Status TakePart(const ModelPart& part, const ModelConfig& whole, ModelTensors& tensors);

}  // namespace loramux
