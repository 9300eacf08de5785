// PEFT adapters as saved: `adapter_config.json` and `adapter_model.safetensors`. At serving time the tensors decide
// and the configuration is the cross-check.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "formats/tensor_reader.h"

namespace loramux {

// The linear layers that an adapter can change. kLmHead has no layer (layer index 0 is used).
enum class LoraTarget : std::uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kLmHead };
inline constexpr int kNumLoraTargets = 8;
// "q_proj", ..., "down_proj", "lm_head".
const char* LoraTargetName(LoraTarget target);
// Extents of the base layer W [out, in] that the target stands for.
struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
LinearShape TargetShape(const ModelConfig& model, LoraTarget target);

class AdapterPatterns;  // compiled patterns (adapter_patterns.h)

struct AdapterConfig {
  std::int64_t r = 0;
  double lora_alpha = 0;
  bool use_rslora = false;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;  // in file order: the first match counts
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // target_modules: a list, or one string that is a regular expression or "all-linear". None of the three: any module.
  std::vector<std::string> target_modules;
  std::optional<std::string> target_modules_regex;
  bool all_linear = false;
  // exclude_modules: a list or a regular expression; it wins over target_modules.
  std::vector<std::string> exclude_modules;
  std::optional<std::string> exclude_modules_regex;
  // layers_to_transform (with layers_pattern): narrows a list of target_modules to these layers. Empty: all.
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;
  std::string base_model_name;  // informational

  // The patterns above, compiled once by ParseAdapterConfig. Whoever fills or changes an AdapterConfig by hand calls
  // CompilePatterns afterwards.
  std::shared_ptr<const AdapterPatterns> patterns;

  // Error: a pattern that is malformed or that loramux cannot evaluate in bounded time (look-around, back-references);
  // `label` names the source. Such a target_modules or exclude_modules is not an error: see Targets.
  Status CompilePatterns(const std::string& label);

  // Rank and scale of a module such as "model.layers.0.self_attn.q_proj": the first pattern key for which
  // `(.*\.)?(key)$` matches from the start of the name, else r / lora_alpha; scale = alpha / rank, or
  // alpha / sqrt(rank) with rsLoRA. REQUIRES: CompilePatterns was called, or there are no patterns.
  std::int64_t RankOf(std::string_view module) const;
  double ScaleOf(std::string_view module) const;

  // Whether the configuration says that the module is adapted: PEFT's rule for target_modules, exclude_modules and
  // layers_to_transform. True where it cannot be told: no target_modules, or a regular expression with look-around or
  // back-references. REQUIRES: as RankOf.
  bool Targets(std::string_view module) const;
};

// Parses an adapter_config.json. What loramux does not serve (DoRA, biases, modules_to_save, an initialization that
// changed the base model's weights, ...) is refused by name. Unknown fields are ignored. r and ranks must be in
// 1..4096, alpha finite; both must be there. `label` names the source in errors.
Result<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& label);

// One LoRA pair of an adapter: y += scale * B (A x). `a` is [rank, in], `b` is [out, rank], both as stored.
struct LoraModule {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t rank = 0;
  float scale = 0;
  const TensorEntry* a = nullptr;  // owned by AdapterFile
  const TensorEntry* b = nullptr;
};

// A parsed and validated adapter whose weights are still on disk. Immutable; thread-safe to read. Holds the tensor file
// open, so replacing it by renaming changes nothing here; rewriting it in place is detected (ScanAdapterTensors).
struct AdapterFile {
  AdapterConfig config;
  std::filesystem::path directory;
  // Owned on the heap so that the pointers in `modules` survive a move of AdapterFile.
  std::unique_ptr<TensorReader> tensors;
  std::vector<LoraModule> modules;  // sorted by (layer, target); lm_head last; never empty
  std::int32_t max_rank = 0;
  // 128-bit XXH3 of ranks, scales and weights as 32 hexadecimal digits: names the content in every cache key. The same
  // content under other tensor names, or with other unused options, has the same digest. Not cryptographic.
  std::string digest;
  // PEFT saves a copy of the base model's output matrix beside an lm_head adapter (`lm_head.base_layer.weight`). It
  // is not part of the adapter: the runtime, which has the base's weights, compares it. Null if there is none.
  const TensorEntry* lm_head_base_copy = nullptr;
};

// Reads all weights of an adapter, tensor by tensor (a module's A, then its B), while computing the digest of what was
// read. `visit` gets each; its error ends the scan. Returns the digest. Errors: kIoError, or visit's.
using AdapterTensorVisitor =
    std::function<Status(std::size_t module, const TensorEntry& tensor, std::span<const std::byte> data)>;
Result<std::string> ScanAdapterTensors(const AdapterFile& file, const AdapterTensorVisitor& visit);

// Looks at a file that was just opened, before anything is read from it: `real_path` is where it really lies.
using OpenedFileCheck = std::function<Status(const std::filesystem::path& real_path)>;

// Opens DIR, parses both files, matches every tensor against the base model and cross-checks it with the
// configuration. Refuses, naming the tensor: one that matches nothing, lora_A without lora_B, a module named twice, a
// shape that does not fit the base layer, ranks that differ between A, B and the configuration, a module that
// target_modules does not cover (PEFT would ignore it), a dtype other than f32, bf16, f16. A targeted module without
// tensors is fine: it adds nothing, in PEFT too. Values are not looked at.
// Tolerates a `.default` part, a `base_layer.` part and a `language_model.` prefix; patterns see the module's name as
// in the file, without `base_model.model.`. Reads safetensors only.
// Errors: kNotFound if DIR does not exist, else kInvalidArgument, kUnsupported or kIoError.
// Safe to call from any thread; may block on the disk (it reads every byte once, for the digest). `check`, if given, is
// called for both files; its error is returned and nothing is read.
Result<AdapterFile> OpenAdapter(const std::filesystem::path& directory, const ModelConfig& model,
                                const OpenedFileCheck& check = {});

// The same without a base model: shapes and layers are only checked against one another's ranks. For looking at an
// adapter (`loramux inspect`); what this accepts may still fit no model.
Result<AdapterFile> OpenAdapterWithoutBase(const std::filesystem::path& directory);

}  // namespace loramux
