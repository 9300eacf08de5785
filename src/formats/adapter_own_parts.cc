#include "formats/adapter_own_parts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/message.h"

namespace loramux {
namespace {

constexpr std::array<const char*, kNumOwnKinds> kOwnKindNames = {"embed_tokens",
                                                                 "input_layernorm",
                                                                 "post_attention_layernorm",
                                                                 "q_norm",
                                                                 "k_norm",
                                                                 "norm",
                                                                 "lm_head",
                                                                 "the norm of attention's output",
                                                                 "the norm of the feed-forward block's output"};

// The module whose rows an adapter replaces: the embedding or the output layer.
const char* ModuleOf(OwnKind kind) { return kind == OwnKind::kEmbedding ? "model.embed_tokens" : "lm_head"; }

Error OwnError(const std::string& label, const TensorEntry& tensor, const std::string& what) {
  return InvalidArgument(label + ": tensor " + Quote(tensor.name) + ": " + what);
}

}  // namespace

const char* OwnKindName(OwnKind kind) { return kOwnKindNames[static_cast<std::size_t>(kind)]; }

// The module of the tied output layer follows the embedding, which modules_to_save then names alone.
bool OwnPartsReader::IsSaved(const AdapterTensorName& name) {
  for (const std::string& module : {name.module, name.plain_module}) {
    if (const std::string* as = config_.SavedAs(module)) {
      saved_.insert(*as);
      return true;
    }
  }
  return name.own == OwnKind::kOutput && config_.ensure_weight_tying &&
         config_.SavedAs(ModuleOf(OwnKind::kEmbedding)) != nullptr;
}

Status OwnPartsReader::CheckWhole(const TensorEntry& tensor) const {
  if (model_ == nullptr) return Ok{};
  const std::int64_t base = model_->BaseTokens(), rows = tensor.shape[0];
  const bool fits = tensor.shape[1] == model_->EmbeddingSize();
  if (fits && rows >= base && rows <= model_->vocab_size) return Ok{};
  const std::string found = "expected a matrix as the base model's, " +
                            ShapeToString(std::vector<std::int64_t>{base, model_->EmbeddingSize()}) + ", found " +
                            ShapeToString(tensor.shape);
  if (!fits) return OwnError(label_, tensor, found);
  const std::string resized = ": the vocabulary was resized for the training (resize_token_embeddings)";
  if (rows < base) {
    return Unsupported(label_ + ": tensor " + Quote(tensor.name) + ": " + found + resized +
                       ", so the adapter fits only a base model with these rows; merge it into that model");
  }
  return Unsupported(label_ + ": tensor " + Quote(tensor.name) + ": " + found + resized + " by " +
                     std::to_string(rows - base) + " tokens; expected at most " + std::to_string(model_->added_tokens) +
                     ": start the server with --adapter-tokens " + std::to_string(rows - base));
}

Status OwnPartsReader::Take(const AdapterTensorName& name, const TensorEntry& tensor) {
  using Part = AdapterTensorName::Part;
  if (name.head) return TakeHead(name, tensor);
  if (IsNorm(*name.own)) return TakeNorm(name, tensor);
  Found& found = Of(*name.own);
  const bool of_adapter = name.part != Part::kBaseWeight && IsSaved(name);
  if (name.part == Part::kWeightAgain && !of_adapter) {
    return OwnError(label_, tensor,
                    "a fully trained module, but modules_to_save does not name it: one of the two is wrong");
  }
  const TensorEntry** slot = &found.base;
  if (name.part == Part::kTokenRows) {
    slot = &found.rows;
  } else {
    RETURN_IF_ERROR(CheckWhole(tensor));
    if (of_adapter) slot = name.part == Part::kWeight ? &found.weight : &found.again;
  }
  if (*slot != nullptr) return OwnError(label_, tensor, "the file holds it twice, also as " + Quote((*slot)->name));
  *slot = &tensor;
  return Ok{};
}

std::int64_t OwnPartsReader::NormWidth(OwnKind norm, std::int64_t layer) const {
  if (norm != OwnKind::kQNorm && norm != OwnKind::kKNorm) return model_->hidden_size;
  if (model_->qk_norm != QkNorm::kRow) return model_->HeadsOf(layer).head_dim;
  return norm == OwnKind::kQNorm ? model_->QDim() : model_->KvDim();
}

Status OwnPartsReader::TakeNorm(const AdapterTensorName& name, const TensorEntry& tensor) {
  using Part = AdapterTensorName::Part;
  const bool is_weight = name.part == Part::kWeight || name.part == Part::kWeightAgain;
  if (!is_weight || !IsSaved(name)) {
    return OwnError(label_, tensor,
                    "a fully trained norm, but modules_to_save does not name it: one of the two is wrong");
  }
  if (model_ != nullptr && model_->norm_kind == NormKind::kLayer) {
    return Unsupported(label_ + ": tensor " + Quote(tensor.name) +
                       ": a fully trained LayerNorm is not supported; merge the adapter into the base model");
  }
  const bool of_heads = *name.own == OwnKind::kQNorm || *name.own == OwnKind::kKNorm;
  const std::int64_t width = model_ == nullptr ? tensor.shape[0] : NormWidth(*name.own, name.layer);
  if (model_ != nullptr && of_heads && model_->qk_norm == QkNorm::kNone) {
    return OwnError(label_, tensor, "a norm that the base model does not have: the adapter fits another base model");
  }
  if (tensor.shape[0] != width) {
    return OwnError(
        label_, tensor,
        "expected [" + std::to_string(width) + "] as the base model's, found " + ShapeToString(tensor.shape));
  }
  const auto [at, is_new] = norms_.emplace(std::pair(*name.own, name.layer), Norm{name.plain_module, &tensor});
  if (!is_new) return OwnError(label_, tensor, "the file holds it twice, also as " + Quote(at->second.tensor->name));
  return Ok{};
}

// PEFT knows the heads of SEQ_CLS without modules_to_save. A copy of a head before its training takes no part.
Status OwnPartsReader::TakeHead(const AdapterTensorName& name, const TensorEntry& tensor) {
  using Part = AdapterTensorName::Part;
  if (name.part == Part::kBaseWeight) return Ok{};
  if (name.part == Part::kTokenRows) return OwnError(label_, tensor, "rows of trained tokens in a classification head");
  if (config_.task_type == "TOKEN_CLS") {
    return Unsupported(label_ + ": tensor " + Quote(tensor.name) +
                       ": a head for the classes of each token (task_type TOKEN_CLS) is not supported; heads for "
                       "whole texts (SEQ_CLS) are");
  }
  if (!IsSaved(name) && config_.task_type != "SEQ_CLS") {
    return OwnError(label_, tensor,
                    "a classification head, but neither does modules_to_save name it nor is task_type SEQ_CLS: one of "
                    "the two is wrong");
  }
  if (!config_.invocation_tokens.empty()) {
    return Unsupported(label_ + ": tensor " + Quote(tensor.name) +
                       ": a classification head in an activated LoRA, which PEFT does not define");
  }
  if (head_) return OwnError(label_, tensor, "a second classification head, beside " + Quote(head_->tensor->name));
  const std::int64_t width = model_ == nullptr ? tensor.shape[1] : model_->EmbeddingSize();
  if (tensor.shape[1] != width || tensor.shape[0] < 1 || tensor.shape[0] > kMaxClasses) {
    return OwnError(label_, tensor,
                    "expected a classification head [classes, " + std::to_string(width) + "], with 1 to " +
                        std::to_string(kMaxClasses) + " classes, found " + ShapeToString(tensor.shape));
  }
  head_ = ClassHead{.module = name.plain_module, .tensor = &tensor};
  return Ok{};
}

Status OwnPartsReader::Finish(AdapterFile& file) {
  RETURN_IF_ERROR(CheckAllNamed());
  file.head = std::move(head_);
  for (const OwnKind kind : {OwnKind::kEmbedding, OwnKind::kOutput}) {
    Found& found = Of(kind);
    if (found.weight == nullptr) found.weight = std::exchange(found.again, nullptr);
    RETURN_IF_ERROR(found.weight != nullptr ? AddWhole(kind, file)
                    : AddsTokens(kind)      ? AddAddedRows(kind, file)
                                            : AddRows(kind, file));
    if (kind == OwnKind::kOutput) break;
    for (const auto& [place, norm] : norms_) {
      file.own.push_back(
          {.kind = place.first, .layer = place.second, .module = norm.module, .tensor = norm.tensor, .rows = {{0, 0}}});
    }
  }
  file.embedding_base_copy = Of(OwnKind::kEmbedding).base;
  file.lm_head_base_copy = Of(OwnKind::kOutput).base;
  return CheckAddedTokens(file);
}

// A token that one of the two matrices lacks would have the row that the training drew at random, and did not save.
Status OwnPartsReader::CheckAddedTokens(const AdapterFile& file) const {
  if (model_ == nullptr) return Ok{};
  std::array<std::vector<TokenId>, kNumOwnKinds> added;
  for (const OwnPart& part : file.own) {
    for (const OwnRow& row : part.rows) {
      if (!IsNorm(part.kind) && row.token >= model_->BaseTokens()) {
        added[static_cast<std::size_t>(part.kind)].push_back(row.token);
      }
    }
  }
  const auto& embedding = added[static_cast<std::size_t>(OwnKind::kEmbedding)];
  const auto& output = added[static_cast<std::size_t>(OwnKind::kOutput)];
  if (embedding == output) return Ok{};
  const auto [at, other] = std::ranges::mismatch(embedding, output);
  const bool of_embedding = other == output.end() || (at != embedding.end() && *at < *other);
  return InvalidArgument(label_ + ": the file has a row of " +
                         OwnKindName(of_embedding ? OwnKind::kEmbedding : OwnKind::kOutput) + " for the token " +
                         std::to_string(of_embedding ? *at : *other) +
                         ", which the base model does not have, but none of " +
                         OwnKindName(of_embedding ? OwnKind::kOutput : OwnKind::kEmbedding) +
                         ": save the adapter with save_embedding_layers=True");
}

// A copy of the base model's matrix with more rows, in which the adapter was trained: PEFT's save_embedding_layers.
// With tied embeddings, that of the embedding is the output matrix's too.
bool OwnPartsReader::AddsTokens(OwnKind kind) const {
  const TensorEntry* const copy = ResizedCopy(kind);
  return copy != nullptr && copy->shape[0] > model_->BaseTokens();
}

const TensorEntry* OwnPartsReader::ResizedCopy(OwnKind kind) const {
  if (model_ == nullptr) return nullptr;
  const TensorEntry* const copy = found_[static_cast<std::size_t>(kind)].base;
  const bool tied = kind == OwnKind::kOutput && model_->tie_word_embeddings;
  return copy == nullptr && tied ? found_[static_cast<std::size_t>(OwnKind::kEmbedding)].base : copy;
}

// The rows beyond the base model's, unless they are trained.
Status OwnPartsReader::AddAddedRows(OwnKind kind, AdapterFile& file) {
  const TensorEntry& copy = *ResizedCopy(kind);
  const std::size_t parts = file.own.size();
  RETURN_IF_ERROR(AddRows(kind, file));
  OwnPart added{.kind = kind, .tensor = &copy, .tied = &copy != Of(kind).base};
  for (std::int64_t row = model_->BaseTokens(); row < copy.shape[0]; ++row) {
    added.rows.push_back({static_cast<TokenId>(row), static_cast<std::int32_t>(row)});
  }
  if (file.own.size() == parts) {
    file.own.push_back(std::move(added));
    return Ok{};
  }
  std::set<TokenId> trained;
  for (const OwnRow& row : file.own.back().rows) trained.insert(row.token);
  for (const OwnRow& row : added.rows) {
    if (trained.contains(row.token)) continue;
    return OwnError(label_, copy,
                    "it adds the token " + std::to_string(row.token) +
                        ", and trainable_token_indices names others: "
                        "expected all added tokens to be trained, or none; name it there too");
  }
  return Ok{};
}

// PEFT would go on with the base model's weights.
Status OwnPartsReader::CheckAllNamed() const {
  for (const std::string& name : config_.modules_to_save) {
    if (saved_.contains(name) || (head_ && IsHeadName(name))) continue;
    return InvalidArgument(label_ + ": modules_to_save names " + Quote(name) +
                           ", but the file lacks such a weight; of modules_to_save, embed_tokens, lm_head, norms and "
                           "classification heads (score, classifier) are supported");
  }
  for (const auto& [name, tokens] : config_.trainable_tokens) {
    const auto ends_so = [&name = name](OwnKind kind) { return std::string_view(ModuleOf(kind)).ends_with(name); };
    if (ends_so(OwnKind::kEmbedding) || ends_so(OwnKind::kOutput)) continue;
    return InvalidArgument(label_ + ": trainable_token_indices names " + Quote(name) +
                           ", expected embed_tokens or lm_head");
  }
  return Ok{};
}

Status OwnPartsReader::AddWhole(OwnKind kind, AdapterFile& file) {
  const Found& found = Of(kind);
  const bool tied_rows = kind == OwnKind::kOutput && model_ != nullptr && model_->tie_word_embeddings &&
                         TokensOf(OwnKind::kEmbedding) != nullptr && TokensOf(kind) == nullptr;
  if (found.rows != nullptr || TokensOf(kind) != nullptr || tied_rows) {
    return OwnError(label_, *found.weight,
                    std::string("trained as a whole (modules_to_save), and rows of ") + OwnKindName(kind) +
                        " too (trainable_token_indices): PEFT cannot compute with both");
  }
  if (found.again != nullptr) file.own_copies.emplace_back(found.again, found.weight);
  std::vector<TokenId> tokens(static_cast<std::size_t>(found.weight->shape[0]));
  std::iota(tokens.begin(), tokens.end(), 0);
  return AddPart({.kind = kind, .tensor = found.weight, .whole = true}, tokens, file);
}

const std::vector<TokenId>* OwnPartsReader::TokensOf(OwnKind kind) const {
  return config_.TrainedTokens(ModuleOf(kind));
}

// With tied embeddings, the embedding's rows are those of the output matrix too, unless that has others.
Status OwnPartsReader::AddRows(OwnKind kind, AdapterFile& file) {
  const Found& embedding = Of(OwnKind::kEmbedding);
  const std::vector<TokenId>* tokens = TokensOf(kind);
  const std::vector<TokenId>* const of_embedding = TokensOf(OwnKind::kEmbedding);
  const TensorEntry* rows = Of(kind).rows;
  const bool may_be_tied = kind == OwnKind::kOutput && (model_ == nullptr || model_->tie_word_embeddings) &&
                           of_embedding != nullptr && embedding.rows != nullptr;
  const bool tied = may_be_tied && (tokens == nullptr || (rows == nullptr && *tokens == *of_embedding));
  if (tied) {
    if (rows != nullptr) file.own_copies.emplace_back(rows, embedding.rows);
    if (model_ == nullptr && rows == nullptr) return Ok{};  // it is not known whether they are
    return AddPart({.kind = kind, .tensor = embedding.rows, .tied = true}, *of_embedding, file);
  }
  if (rows == nullptr && tokens == nullptr) return Ok{};
  if (rows == nullptr) {
    return InvalidArgument(label_ + ": trainable_token_indices names " + OwnKindName(kind) +
                           ", but the file lacks its token_adapter.trainable_tokens_delta");
  }
  if (tokens == nullptr) {
    return OwnError(label_, *rows,
                    std::string("rows of trained tokens, but trainable_token_indices does not name ") +
                        OwnKindName(kind) + ": one of the two is wrong");
  }
  return AddPart({.kind = kind, .tensor = rows}, *tokens, file);
}

Status OwnPartsReader::AddPart(OwnPart part, const std::vector<TokenId>& tokens, AdapterFile& file) const {
  const TensorEntry& tensor = *part.tensor;
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (tensor.shape[0] != count || (model_ != nullptr && tensor.shape[1] != model_->EmbeddingSize())) {
    const std::string width = model_ == nullptr ? "hidden size" : std::to_string(model_->EmbeddingSize());
    return OwnError(label_, tensor,
                    "expected [" + std::to_string(count) + ", " + width +
                        "], a row for each token of trainable_token_indices; found " + ShapeToString(tensor.shape));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (model_ != nullptr && tokens[i] >= model_->vocab_size) {
      return OwnError(label_, tensor,
                      "expected tokens from 0 to " + std::to_string(model_->vocab_size - 1) +
                          ", in trainable_token_indices; found " + std::to_string(tokens[i]));
    }
    part.rows.push_back({tokens[i], static_cast<std::int32_t>(i)});
  }
  std::ranges::sort(part.rows, {}, &OwnRow::token);
  file.own.push_back(std::move(part));
  return Ok{};
}

}  // namespace loramux
