// Writes a model with quantised weights, for `loramux quantize`.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "model/weights.h"

namespace loramux {

// Writes the model of the directory `from` as a directory `to` whose matrices have the formats of `options`:
// config.json with a quantization_config (quant/panel_matrix.h), one model.safetensors, and copies of all other files
// (tokenizer, templates, generation defaults). Quantised matrices lie in the kernels' own layout and q, k and v one
// after the other, so that the model is served from the mapped file without a copy. Needs memory for one matrix at a
// time. Errors: those of the files; `to` exists and is not empty; the disk is full (the unfinished directory is
// removed). `progress` may be empty.
// An unfinished folder has the name of `to` and ".partial".
Status WriteQuantisedModel(const std::filesystem::path& from, const std::filesystem::path& to,
                           const WeightOptions& options, const Progress& progress);
// Error: `to`, or the unfinished folder beside it, has content.
Status CheckQuantisedDirectory(const std::filesystem::path& to);

}  // namespace loramux
