// Collects what an adapter brings in place of the base model's embedding, output matrix and norms, and a head for
// classes. Internal to formats.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/adapter_tensor_name.h"

namespace loramux {

// Takes the weights in an adapter's file one after the other, then makes AdapterFile::own and ::head of them. Which
// weights are the adapter's, and to which tokens rows belong, is PEFT's rule.
class OwnPartsReader {
 public:
  // `model` may be null: then nothing is compared with it. `label` names the file of tensors.
  OwnPartsReader(const AdapterConfig& config, const ModelConfig* model, std::string label)
      : config_(config), model_(model), label_(std::move(label)) {}

  // Takes a tensor whose name has an OwnKind or is a head's, of two dimensions, a norm of one. Error: it is there
  // twice, or does not fit.
  Status Take(const AdapterTensorName& name, const TensorEntry& tensor);
  // Error: the configuration speaks of weights that the file lacks, or the other way round.
  Status Finish(AdapterFile& file);

 private:
  // The tensors of the embedding or of the output layer.
  struct Found {
    const TensorEntry *weight = nullptr, *again = nullptr, *base = nullptr, *rows = nullptr;
  };

  struct Norm {
    std::string module;
    const TensorEntry* tensor;
  };

  bool IsSaved(const AdapterTensorName& name);
  std::int64_t NormWidth(OwnKind norm, std::int64_t layer) const;
  Found& Of(OwnKind kind) { return found_[static_cast<std::size_t>(kind)]; }
  Status TakeNorm(const AdapterTensorName& name, const TensorEntry& tensor);
  Status TakeHead(const AdapterTensorName& name, const TensorEntry& tensor);
  Status CheckWhole(const TensorEntry& tensor) const;
  Status AddWhole(OwnKind kind, AdapterFile& file);
  Status AddRows(OwnKind kind, AdapterFile& file);
  bool AddsTokens(OwnKind kind) const;
  const TensorEntry* ResizedCopy(OwnKind kind) const;
  Status AddAddedRows(OwnKind kind, AdapterFile& file);
  Status CheckAddedTokens(const AdapterFile& file) const;
  Status AddPart(OwnPart part, const std::vector<TokenId>& tokens, AdapterFile& file) const;
  const std::vector<TokenId>* TokensOf(OwnKind kind) const;
  Status CheckAllNamed() const;

  const AdapterConfig& config_;
  const ModelConfig* model_;
  const std::string label_;
  std::array<Found, kNumOwnKinds> found_ = {};
  std::map<std::pair<OwnKind, std::int32_t>, Norm> norms_;
  std::optional<ClassHead> head_;
  std::set<std::string> saved_;  // names of modules_to_save whose weight was read
};

}  // namespace loramux
