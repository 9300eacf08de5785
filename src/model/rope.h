// Angles of the rotary position embedding, in the float32 arithmetic that transformers uses.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/model_config.h"

namespace loramux {

// The head_dim / 2 inverse frequencies of a scaling. `length` matters to kDynamic alone: the length of the sequence;
// up to max_position nothing is scaled.
// Source: transformers, modeling_rope_utils.py (every step is rounded to float32 as there).
std::vector<float> RopeInverseFrequencies(const ModelConfig& config, std::int64_t length);

// Cosines and sines by position. Rows of a static scaling are computed once and kept; rows of dynamic NTK scaling
// beyond the original length are computed when they are asked for, because they depend on the length too.
// Not thread-safe.
class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config);

  // Makes room for positions [0, positions): Row() does not allocate below that. Computes nothing.
  void Reserve(std::int64_t positions);

  // Writes the head_dim / 2 cosines and sines of `position` in a sequence of `length` tokens.
  // REQUIRES: 0 <= position < length.
  void Row(std::int64_t position, std::int64_t length, float* cos, float* sin);

 private:
  void Extend(std::int64_t positions);

  ModelConfig config_;
  std::int64_t half_dim_;
  std::int64_t dynamic_from_;       // lengths above it are scaled by length; never reached without kDynamic
  std::vector<float> frequencies_;  // of the static rows
  std::vector<float> table_;        // [positions][2][half_dim]: cosines, then sines
  std::int64_t positions_ = 0;
  std::vector<float> dynamic_frequencies_;  // of dynamic_length_
  std::int64_t dynamic_length_ = -1;
};

}  // namespace loramux
