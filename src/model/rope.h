// Angles of the rotary position embedding, in the float32 arithmetic of transformers.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/model_config.h"

namespace loramux {

// The rotary_dim / 2 inverse frequencies of an embedding of the model. `length` is the sequence's length; only kDynamic
// and kLongRope use it, and up to TurnsAlikeUpTo it changes nothing. Source: transformers, modeling_rope_utils.py
// (every operation is rounded to float32 as there).
std::vector<float> RopeInverseFrequencies(const ModelConfig& config, const RopeConfig& rope, std::int64_t length);

// Cosines and sines by position. Rows of a static scaling are computed once and kept. Those of sequences beyond
// TurnsAlikeUpTo are computed on request, because they also depend on the length. Not thread-safe.
class RopeTable {
 public:
  // Computes no rows yet.
  RopeTable(const ModelConfig& config, const RopeConfig& rope);

  // Reserves memory for positions [0, positions), for which Row() then does not allocate. Computes nothing.
  void Reserve(std::int64_t positions);

  // Elements of a head that turn.
  std::int64_t rotary_dim() const { return 2 * half_dim_; }

  // Writes the rotary_dim / 2 cosines and sines of `position` in a sequence of `length` tokens. REQUIRES: 0 <= position
  // < length.
  void Row(std::int64_t position, std::int64_t length, float* cos, float* sin);

 private:
  void Extend(std::int64_t positions);
  void ComputeRow(const std::vector<float>& frequencies, std::int64_t position, float* cos, float* sin) const;

  ModelConfig config_;
  RopeConfig rope_;
  std::int64_t half_dim_;
  std::int64_t dynamic_from_;       // greater lengths are scaled by length
  std::vector<float> frequencies_;  // frequencies of the static rows
  std::vector<float> table_;        // [positions][2][half_dim]: cosines, then sines
  std::int64_t positions_ = 0;
  std::vector<float> dynamic_frequencies_;  // frequencies for dynamic_length_
  std::int64_t dynamic_length_ = -1;
};

}  // namespace loramux
