// Angles of the rotary position embedding, in the float32 arithmetic of transformers.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/model_config.h"

namespace loramux {

// The head_dim / 2 inverse frequencies of the configuration's scaling. `length` is the sequence's length; only kDynamic
// uses it, and up to max_position it scales nothing. Source: transformers, modeling_rope_utils.py (every operation is
// rounded to float32 as there).
std::vector<float> RopeInverseFrequencies(const ModelConfig& config, std::int64_t length);

// Cosines and sines by position. Rows of a static scaling are computed once and kept. Rows of dynamic NTK scaling
// beyond the original length are computed on request, because they also depend on the length. Not thread-safe.
class RopeTable {
 public:
  // Computes no rows yet.
  explicit RopeTable(const ModelConfig& config);

  // Reserves memory for positions [0, positions), for which Row() then does not allocate. Computes nothing.
  void Reserve(std::int64_t positions);

  // Writes the head_dim / 2 cosines and sines of `position` in a sequence of `length` tokens. REQUIRES: 0 <= position <
  // length.
  void Row(std::int64_t position, std::int64_t length, float* cos, float* sin);

 private:
  void Extend(std::int64_t positions);

  ModelConfig config_;
  std::int64_t half_dim_;
  std::int64_t dynamic_from_;       // greater lengths are scaled by length; never reached without kDynamic
  std::vector<float> frequencies_;  // of the static rows
  std::vector<float> table_;        // [positions][2][half_dim]: cosines, then sines
  std::int64_t positions_ = 0;
  std::vector<float> dynamic_frequencies_;  // of dynamic_length_
  std::int64_t dynamic_length_ = -1;
};

}  // namespace loramux
