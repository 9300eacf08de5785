// The architectures of GGUF files that loramux reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "formats/gguf_file.h"

namespace loramux {

inline constexpr std::int64_t kMostGgufLayers = 1024;

// An architecture of GGUF, and the class of transformers that computes the same.
struct GgufArchitecture {
  std::string_view name;
  const char* model_type;
  const char* class_name;
  bool interleaved;  // as HasInterleavedHeads
  // Further keys that its configuration uses.
  std::array<std::string_view, 15> keys = {};
  bool fuses = false;    // as FusesLayers
  bool adapters = true;  // whether loramux reads llama.cpp's adapters of it
};
// Names of keys that more than one architecture has, behind the architecture's.
namespace gguf_key {
inline constexpr std::string_view kWindowPattern = "attention.sliding_window_pattern",
                                  kLocalTheta = "rope.freq_base_swa", kExpertSize = "expert_feed_forward_length",
                                  kSharedSize = "expert_shared_feed_forward_length",
                                  kLayerEpsilon = "attention.layer_norm_epsilon",
                                  kRmsEpsilon = "attention.layer_norm_rms_epsilon", kParallel = "use_parallel_residual",
                                  kSections = "rope.dimension_sections", kTemperature = "attention.temperature_scale",
                                  kMtpLayers = "nextn_predict_layers", kTurns = "rope.scaling.finetuned";
// Granite's scales: attention, embedding, what layers add, logits.
inline constexpr std::array<std::string_view, 4> kScales = {"attention.scale", "embedding_scale", "residual_scale",
                                                            "logit_scale"};
}  // namespace gguf_key

// The architecture of a file. Granite 3's with a block for all tokens beside experts or in place of them is Granite
// 4's, which llama.cpp's converter calls so where no layer is Mamba-2's: `name` is then the former, and the rest the
// latter.
std::optional<GgufArchitecture> FindGgufArchitecture(const GgufFile& file);
// The same. Error: loramux does not serve it.
Result<GgufArchitecture> RequireGgufArchitecture(const GgufFile& file);

// Whether the rows of attn_q and attn_k, and their biases, lie in the order of interleaved rotary embeddings: so they
// do in files of the architecture "llama".
bool HasInterleavedHeads(const GgufFile& file);
// Whether its files hold gate and up as one matrix, under the name of up.
bool FusesLayers(const GgufFile& file);
// The layers in the file, those that predict several tokens among them; 0: it does not say.
std::int64_t GgufLayers(const GgufFile& file);
// The same as HasInterleavedHeads of a file that may be an adapter. Error: its architecture is none whose adapters
// loramux reads.
Result<bool> GgufHeadsAreInterleaved(const GgufFile& file);

}  // namespace loramux
