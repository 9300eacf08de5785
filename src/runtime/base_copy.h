// The check of adapters that were saved with copies of the base model's output matrix or embedding.
#pragma once

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/base_matrix.h"

namespace loramux {

// Rejects an adapter that was saved with another output matrix or embedding than the model's. It was trained on another
// base, or changed the matrix itself, and would give wrong answers. A quantised matrix must be the copy's within what
// quantising changes.
Status CheckBaseCopies(const BaseMatrices& matrices, const AdapterFile& file);

}  // namespace loramux
