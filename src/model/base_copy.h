// Adapters' embeddings and output matrices beside the base model's: copies of these, and own ones.
#pragma once

#include "base/result.h"
#include "formats/adapter_config.h"
#include "model/base_matrix.h"

namespace loramux {

// Rejects an adapter that was saved with another output matrix or embedding than the model's. It was trained on another
// base, or changed the matrix itself, and would give wrong answers. A quantised matrix must be the copy's within what
// quantising changes.
Status CheckBaseCopies(const BaseMatrices& matrices, const AdapterFile& file);

// Leaves out the rows of the adapter's own matrices (OwnPart::whole) that are the base's: as stored in the tensor's
// type, or within what quantising changes. Error: of reads.
Status SelectOwnRows(const BaseMatrices& matrices, AdapterFile& file);

}  // namespace loramux
