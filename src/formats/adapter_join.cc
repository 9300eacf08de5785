#include "formats/adapter_join.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.h"
#include "formats/adapter_form.h"

namespace loramux {
namespace {

// What a share adds to one layer.
struct Piece {
  const AdapterShare* share;
  const LoraModule* module;
  std::size_t first_file;  // index of the share's first file in the shared reader
  double scale;            // its own, times the weight
};
using Pieces = std::map<std::tuple<bool, std::int32_t, LoraTarget, std::int32_t>, std::vector<Piece>>;

Status CheckShare(const AdapterShare& share) {
  const std::string adapter = "adapter " + Quote(share.name);
  if (!share.file->config.invocation_tokens.empty()) {
    return Unsupported(adapter +
                       " is an activated LoRA, which acts on a part of the prompt alone: give it alone, with "
                       "weight 1");
  }
  if (share.file->head) {
    return Unsupported(adapter +
                       " brings a classification head, which cannot be added to others: give it alone, with "
                       "weight 1");
  }
  if (!share.file->own.empty()) {
    return Unsupported(adapter + " brings rows of " + OwnKindName(share.file->own.front().kind) +
                       " of its own, which cannot be added to others: give it alone, with weight 1");
  }
  for (const LoraModule& module : share.file->modules) {
    if (!module.has_vectors()) continue;
    return Unsupported(adapter + (module.magnitude != nullptr ? " has DoRA" : " has trained biases") +
                       ", so that what it does is no sum with others: give it alone, with weight 1");
  }
  ASSIGN_OR_RETURN(const std::string digest, ScanAdapterTensors(*share.file, {}));
  if (digest == share.file->digest) return Ok{};
  return InvalidArgument(adapter + ": its weights were changed in place since it was loaded; load it again");
}

TensorEntry Moved(const Piece& piece, const TensorEntry& tensor) {
  TensorEntry moved = tensor;
  moved.file += piece.first_file;
  return moved;
}

// `factors`: of the elements of each piece; empty: 1.
TensorEntry Joined(const std::vector<Piece>& pieces, const TensorEntry* LoraModule::*which, bool beside,
                   const std::vector<float>& factors) {
  TensorView view{.beside = beside};
  const auto first_type = (pieces.front().module->*which)->dtype;
  TensorEntry whole{.name = (pieces.front().module->*which)->name, .dtype = first_type};
  const std::size_t along = beside ? 1 : 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const TensorEntry& tensor = *(pieces[i].module->*which);
    view.joined.push_back({Moved(pieces[i], tensor), factors.empty() ? 1.0F : factors[i]});
    if (tensor.dtype != first_type || view.joined.back().factor != 1) whole.dtype = DType::kF32;
    if (i == 0) {
      whole.shape = tensor.shape;
    } else {
      whole.shape[along] += tensor.shape[along];
    }
  }
  whole.bytes = DTypeSize(whole.dtype) * static_cast<std::uint64_t>(whole.shape[0] * whole.shape[1]);
  whole.view = std::make_shared<const TensorView>(std::move(view));
  return whole;
}

Result<LoraModule> Join(const std::vector<Piece>& all, const std::string& label, TensorReader& reader) {
  LoraModule module = *all.front().module;
  std::vector<Piece> pieces;
  for (const Piece& piece : all)
    if (piece.scale != 0) pieces.push_back(piece);
  if (pieces.empty()) pieces.push_back(all.front());
  module.scale = static_cast<float>(pieces.front().scale);
  std::int64_t rank = 0;
  std::vector<float> factors;
  for (const Piece& piece : pieces) {
    rank += piece.module->rank;
    factors.push_back(static_cast<float>(piece.scale / static_cast<double>(module.scale)));
    if (std::isfinite(module.scale) && (pieces.size() == 1 || std::isfinite(factors.back()))) continue;
    return InvalidArgument("adapter " + Quote(piece.share->name) + ": its scale times its weight does not fit a float");
  }
  if (rank > kMaxLoraRank) {
    return InvalidArgument(label + ": expected ranks of together at most " + std::to_string(kMaxLoraRank) + ", found " +
                           std::to_string(rank));
  }
  module.rank = static_cast<std::int32_t>(rank);
  if (pieces.size() == 1) {
    module.a = reader.Keep(Moved(pieces.front(), *pieces.front().module->a));
    module.b = reader.Keep(Moved(pieces.front(), *pieces.front().module->b));
    return module;
  }
  factors.front() = 1;
  module.a = reader.Keep(Joined(pieces, &LoraModule::a, /*beside=*/false, {}));
  module.b = reader.Keep(Joined(pieces, &LoraModule::b, /*beside=*/true, factors));
  return module;
}

}  // namespace

Result<AdapterFile> JoinAdapters(std::span<const AdapterShare> shares, const std::string& label) {
  std::vector<const TensorReader*> readers;
  for (const AdapterShare& share : shares) {
    RETURN_IF_ERROR(CheckShare(share));
    readers.push_back(share.file->tensors.get());
  }
  AdapterFile file;
  file.directory = label;
  std::vector<std::size_t> files;
  file.tensors = std::make_unique<TensorReader>(TensorReader::Sharing(readers, label, files));
  Pieces pieces;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    for (const LoraModule& module : shares[i].file->modules) {
      pieces[{module.target == LoraTarget::kLmHead, module.layer, module.target, module.expert}].push_back(
          {&shares[i], &module, files[i], static_cast<double>(module.scale) * shares[i].weight});
    }
  }
  for (const auto& [key, of_layer] : pieces) {
    ASSIGN_OR_RETURN(const LoraModule module, Join(of_layer, label, *file.tensors));
    file.max_rank = std::max(file.max_rank, module.rank);
    file.modules.push_back(module);
  }
  ASSIGN_OR_RETURN(file.digest, ScanAdapterTensors(file, {}, [&](std::size_t, const Sha256Digest& so_far) -> Status {
                     file.layer_digests.push_back(so_far);
                     return Ok{};
                   }));
  return file;
}

}  // namespace loramux
