// Adapters as their tools write them: PEFT's `adapter_config.json` and `adapter_model.safetensors`, and the other forms
// of adapter_form.h, which are read as what PEFT would write. In serving, the tensors are authoritative, and the
// configuration is a cross-check.
#pragma once

#include <array>
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

#include "base/ids.h"
#include "base/result.h"
#include "formats/class_head.h"
#include "formats/embedding_config.h"
#include "formats/lora_target.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"
#include "formats/tensor_reader.h"

namespace loramux {

// Extents of a base layer W [out, in].
struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
// The extents of the base layer of `target`, without tokens that adapters add; of an expert if there is one.
LinearShape TargetShape(const ModelConfig& model, LoraTarget target, std::int64_t layer = 0, std::int32_t expert = -1);

class AdapterPatterns;  // compiled patterns (adapter_patterns.h)

// The form in which a tool writes adapters.
enum class AdapterForm : std::uint8_t { kPeft, kMlx, kGguf, kTorchtune };

// The fields of adapter_config.json that loramux uses.
struct AdapterConfig {
  AdapterForm form = AdapterForm::kPeft;
  std::int64_t r = 0;
  double lora_alpha = 0;
  bool use_rslora = false;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;  // in file order: the first match counts
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // target_modules: a list, or one string that is a regular expression or "all-linear". If none of the three is given:
  // any module.
  std::vector<std::string> target_modules;
  std::optional<std::string> target_modules_regex;
  bool all_linear = false;
  bool no_modules = false;  // the list is there and empty: target_parameters alone says what is adapted
  // exclude_modules: a list or a regular expression; it overrides target_modules.
  std::vector<std::string> exclude_modules;
  std::optional<std::string> exclude_modules_regex;
  // layers_to_transform (with layers_pattern): restricts a list of target_modules to these layers, which are sorted.
  // Empty: all layers.
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;
  std::vector<std::string> target_parameters;  // such as those of all experts of a layer
  bool before_peft_0_19 = false;               // PEFT exchanged in and out of all experts' lora_A and lora_B then
  // mlx-lm: the adapter changes the last so many layers; nullopt: any. Opening an adapter for a model makes
  // layers_to_transform of it.
  std::optional<std::int64_t> last_layers;
  // The scale of every module where the form has it and no alpha.
  std::optional<double> factor;
  bool use_dora = false, lora_bias = false;
  // modules_to_save: modules whose names end so were trained as a whole. With ensure_weight_tying, the output matrix of
  // a model with tied embeddings is among them if the embedding is.
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;
  // trainable_token_indices: the tokens whose rows of the modules whose names end so were trained, in the order of the
  // rows in the file.
  std::vector<std::pair<std::string, std::vector<TokenId>>> trainable_tokens;
  std::string base_model_name;  // informational
  std::string task_type;        // the kind of head that PEFT made the model for: "CAUSAL_LM", "SEQ_CLS"; empty: unsaid
  // Activated LoRA (aLoRA): the adapter acts from the last occurrence of these tokens in a prompt on, and not at all on
  // a prompt without them. Empty: it acts on every token.
  std::vector<TokenId> invocation_tokens;

  // The patterns of the fields above, set by ParseAdapterConfig. Code that changes a field must call CompilePatterns.
  std::shared_ptr<const AdapterPatterns> patterns;

  // Compiles the patterns; `label` names the source in errors. Error: a pattern of rank_pattern, alpha_pattern or
  // layers_pattern that is malformed or that loramux cannot evaluate in bounded time (look-around, back-references). In
  // target_modules and exclude_modules only a malformed pattern is an error: see Targets.
  Status CompilePatterns(const std::string& label);

  // Rank and scale of a module such as "model.layers.0.self_attn.q_proj". The first pattern key for which
  // `(.*\.)?(key)$` matches from the start of the name decides, else r and lora_alpha. The scale is alpha / rank, or
  // alpha / sqrt(rank) with rsLoRA. REQUIRES: CompilePatterns was called, or there are no patterns.
  std::int64_t RankOf(std::string_view module) const;
  double ScaleOf(std::string_view module) const;

  // Whether the configuration says that the module is adapted, by PEFT's rule for target_modules, exclude_modules and
  // layers_to_transform. True where this is unknown: without target_modules or with null, or with a regular expression
  // that has look-around or back-references. REQUIRES: as RankOf.
  bool Targets(std::string_view module) const;
  // The same of a parameter and target_parameters: "model.layers.0.mlp.experts.down_proj".
  bool TargetsParameter(std::string_view parameter) const;
  // The name in modules_to_save that says that the module was trained as a whole; null: none. Likewise the tokens whose
  // rows of the module were trained.
  const std::string* SavedAs(std::string_view module) const;
  const std::vector<TokenId>* TrainedTokens(std::string_view module) const;
};

// The tool that writes the form, for messages: "PEFT".
const char* AdapterFormName(AdapterForm form);

// Parses an adapter_config.json of PEFT or mlx-lm. Refuses by name everything that loramux does not serve
// (layer_replication, an initialization that changed the base model's weights, ...). Ignores unknown fields, and
// `bias`: the tensors tell. r and ranks must be in 1..4096, and alpha must be finite; r and lora_alpha are required.
// `label` names the source in errors.
Result<AdapterConfig> ParseAdapterConfig(std::string_view json, const std::string& label);

// What an adapter does to one linear layer: y += scale * (B (A x) + b_bias), with `a` [rank, in], `b` [out, rank] and
// the vectors [out], all as stored. DoRA has a `magnitude`: each row of W + scale B A is then scaled to that length. A
// `bias` takes the place of the base layer's. The tensors belong to AdapterFile, and are null if there is none. Of the
// embedding, a token's row += scale * B (A's column of the token), after own rows took the place of the base's, and
// `in` is the vocabulary with the tokens that the adapter adds.
struct LoraModule {
  std::int32_t layer = 0;
  LoraTarget target = LoraTarget::kQ;
  std::int32_t expert = -1;  // index of an expert in the layer; -1: the layer's own matrix
  std::int32_t rank = 0;     // 0: a bias alone, without a and b
  float scale = 0;
  const TensorEntry* a = nullptr;
  const TensorEntry* b = nullptr;
  const TensorEntry* magnitude = nullptr;
  const TensorEntry* b_bias = nullptr;
  const TensorEntry* bias = nullptr;

  std::int64_t in() const { return a == nullptr ? 0 : a->shape[1]; }
  std::int64_t out() const { return b == nullptr ? bias->shape[0] : b->shape[0]; }
  // Whether its outputs have ModuleVectors.
  bool has_vectors() const { return magnitude != nullptr || b_bias != nullptr || bias != nullptr; }
};

// What DoRA and biases make of the outputs of a linear layer with its LoRA and the base's bias: y = gains * y + shifts.
// [out] each, or empty both.
struct ModuleVectors {
  std::vector<float> gains, shifts;
};

// What an adapter brings in place of the base model's: rows of a matrix, or the weights of a norm.
// Digests have the numbers.
enum class OwnKind : std::uint8_t {
  kEmbedding,
  kInputNorm,  // the norm before attention
  kMlpNorm,    // the norm before the feed-forward block
  kQNorm,
  kKNorm,
  kFinalNorm,
  kOutput,
  kAttentionOutputNorm,
  kMlpOutputNorm,
};
inline constexpr int kNumOwnKinds = 9;
// The name for messages, as in Llama: "embed_tokens", "input_layernorm", ..., "norm", "lm_head".
const char* OwnKindName(OwnKind kind);
constexpr bool IsNorm(OwnKind kind) { return kind != OwnKind::kEmbedding && kind != OwnKind::kOutput; }

// A row of a matrix that an adapter brings.
struct OwnRow {
  TokenId token = 0;
  std::int32_t row = 0;  // index of the row in the tensor
};

// A part of the model that an adapter brings: rows [hidden_size] of the embedding or of the output matrix, or a norm.
// LoRA of the output layer acts beside them. The tensor belongs to AdapterFile.
struct OwnPart {
  OwnKind kind = OwnKind::kEmbedding;
  std::int32_t layer = 0;  // the layer that a norm belongs to
  std::string module;      // the name of a norm in the model, "model.layers.3.input_layernorm"
  const TensorEntry* tensor = nullptr;
  std::vector<OwnRow> rows;  // ascending by token; a norm is a single row
  // The tensor has a row for each token. `rows` has those that differ from the base's, once they were compared
  // (SelectOwnRows in model/base_copy.h); until then all.
  bool whole = false;
  bool tied = false;  // the tensor is that of the embedding, to which the base model's output matrix is tied

  std::int64_t width() const { return tensor->shape.back(); }  // elements of a row
};
// The type in memory of own rows beside rows of A and B of this type: 8 bits are for those alone, and norms are exact.
constexpr DType OwnRowDType(OwnKind kind, DType of_modules) {
  if (IsNorm(kind)) return DType::kF32;
  return HasRowFactors(of_modules) ? DType::kBF16 : of_modules;
}

// A SHA-256.
using Sha256Digest = std::array<unsigned char, 32>;

// A parsed and validated adapter whose weights are still on disk. Immutable; thread-safe to read. It holds the tensor
// file open, so replacing the file by renaming has no effect here. Rewriting it in place is detected
// (ScanAdapterTensors).
struct AdapterFile {
  AdapterConfig config;
  std::filesystem::path directory;
  // On the heap, so that the pointers in `modules` survive a move of AdapterFile.
  std::unique_ptr<TensorReader> tensors;
  // Sorted by (layer, target, expert), lm_head last; never empty. The embedding counts as the last target of layer 0.
  std::vector<LoraModule> modules;
  // Gains and shifts of each module, from the base model's weights (ComputeVectors in model/output_vectors.h); empty
  // until they are computed.
  std::vector<ModuleVectors> vectors;
  std::vector<OwnPart> own;  // by kind and layer, at most one of each
  std::optional<ClassHead> head;
  std::int32_t max_rank = 0;
  // The SHA-256 of ranks, scales and weights as 64 hexadecimal digits. It identifies the content in every cache key, so
  // it must not be possible to make other content with the same one. The same content under other tensor names, or with
  // other unused options, has the same digest.
  std::string digest;
  // What the digest was after the modules of each layer that has any, in the order of `modules`. A load can check its
  // first layers with them before it has read the rest.
  std::vector<Sha256Digest> layer_digests;
  // PEFT saves copies of the base model's output matrix and embedding with an lm_head adapter
  // (`lm_head.base_layer.weight`), with save_embedding_layers, and if the vocabulary was resized. They are not part of
  // the adapter; the runtime compares them with the base's weights. Null if there is none.
  const TensorEntry* lm_head_base_copy = nullptr;
  const TensorEntry* embedding_base_copy = nullptr;
  // Further copies of tensors of `own`, which PEFT saves with save_embedding_layers; compared likewise.
  std::vector<std::pair<const TensorEntry*, const TensorEntry*>> own_copies;
  // The order of its rows depends on the base model, and it was opened without one: it has no digest.
  bool rows_need_base = false;
  // How sentence-transformers makes embeddings with it; nullopt: as with the base model. An error does not keep it from
  // generating text.
  Result<std::optional<EmbeddingConfig>> embedding = std::optional<EmbeddingConfig>();
};

// Reads all weights of an adapter, and computes the digest of the bytes read: own rows of the embedding and norms, then
// tensor by tensor (A, then B and the vectors of each module), then own rows of the output matrix, then the head (from
// ClassHead::weights, where they were read: those are what is served). Passes each tensor
// to `visit`, rows of `own` from `first_row` on to `visit_own`, and after the modules of a layer their number so far
// and the digest of all that was read to `after_layer` (modules of another layer follow, or none); an error from any
// ends the scan. Returns the digest. Errors: kIoError, or theirs.
using AdapterTensorVisitor =
    std::function<Status(std::size_t module, const TensorEntry& tensor, std::span<const std::byte> data)>;
using AdapterLayerVisitor = std::function<Status(std::size_t modules, const Sha256Digest& so_far)>;
using AdapterOwnVisitor =
    std::function<Status(std::size_t part, std::int64_t first_row, std::span<const std::byte> rows)>;
Result<std::string> ScanAdapterTensors(const AdapterFile& file, const AdapterTensorVisitor& visit,
                                       const AdapterLayerVisitor& after_layer = {},
                                       const AdapterOwnVisitor& visit_own = {});

// Digests were XXH3-128 before, which can be forged. True if `digest` is one of those.
bool IsOldAdapterDigest(std::string_view digest);
// Reads all weights and returns their XXH3-128, for comparison with a digest that an older version recorded. Error:
// kIoError.
Result<std::string> OldAdapterDigest(const AdapterFile& file);

// Checks a file that was just opened, before anything is read from it. `real_path` is its real location.
using OpenedFileCheck = std::function<Status(const std::filesystem::path& real_path)>;

// Opens DIR, or a GGUF file, parses both files, matches every tensor with the base model and checks it against the
// configuration. May be called from any thread; may block on the disk, because it reads every byte once for the digest.
// `check`, if given, is called for both files; if it returns an error, nothing is read.
//
// Refuses, naming the tensor:
// - a name that matches nothing, lora_A without lora_B, a module named twice;
// - a magnitude of DoRA or a bias of lora_B that the configuration does not say, or the other way round;
// - a bias where the base model has none;
// - a shape that does not fit the base layer;
// - ranks that differ between A, B and the configuration;
// - a module that target_modules does not cover (PEFT would ignore it);
// - a weight that neither modules_to_save nor trainable_token_indices names, or one that they name and the file lacks;
// - a head other than one matrix for the classes of a whole text, or with other labels than its config.json names;
// - a token that the base model does not have;
// - a dtype other than f32, bf16 and f16.
// A targeted module without tensors is accepted and adds nothing, as in PEFT. Values are not checked.
//
// Accepts a `.default` part, a `base_layer.` part, a `language_model.` prefix and the other spellings of
// ParseAdapterTensorName, and the other forms (AdapterForm). Patterns see the module's name as in the file, without
// `base_model.model.`. Where the folder holds something else, such as checkpoints, the error says what to do.
//
// Errors: kNotFound if DIR does not exist, otherwise kInvalidArgument, kUnsupported or kIoError.
Result<AdapterFile> OpenAdapter(const std::filesystem::path& directory, const ModelConfig& model,
                                const OpenedFileCheck& check = {});

// The same, but it does not read the weights: the result has no digest. Takes milliseconds. An adapter that this
// function refuses cannot be served; one that it accepts may still have weights that cannot be read.
Result<AdapterFile> OpenAdapterHeaders(const std::filesystem::path& directory, const ModelConfig& model,
                                       const OpenedFileCheck& check = {});

// Reads DIR/adapter_config.json alone. Errors: as OpenAdapter.
Result<AdapterConfig> ReadAdapterConfig(const std::filesystem::path& directory, const OpenedFileCheck& check = {});
// OpenAdapter without a base model, for `loramux inspect`: checks shapes among themselves; it may fit no model.
Result<AdapterFile> OpenAdapterWithoutBase(const std::filesystem::path& directory);

}  // namespace loramux
