// Adapters in pages that the processor reads, as its kernels see them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapter/registry.h"
#include "base/ids.h"
#include "memory/tier.h"
#include "model/lora_view.h"
#include "tensor/page_arena.h"

namespace loramux {

// Points a LoraView's rows into the pages of an adapter in one tier, whose memory outlives what it builds.
class LoraViewBuilder {
 public:
  LoraViewBuilder(const PageArena& arena, std::int64_t num_layers) : arena_(arena), num_layers_(num_layers) {}

  struct Built {
    LoraView view;
    std::vector<const std::byte*> rows;  // backing store of the view's row tables
    std::vector<TokenId> tokens;         // backing store of the view's own tokens
  };

  // REQUIRES: `pages` has all pages of the layout.
  void Build(const AdapterLayout& layout, const PageSet& pages, Built& built) const {
    std::size_t row_count = 0;
    for (const ModulePlace& module : layout.modules) row_count += 2 * static_cast<std::size_t>(module.rank);
    for (const OwnPlace& own : layout.own) row_count += own.rows.size();
    built.rows.clear();
    built.rows.reserve(row_count);  // the row tables point into `rows`, which must not reallocate
    std::int64_t experts = 0;
    bool routers = false, rare = false;
    for (const ModulePlace& module : layout.modules) {
      experts = std::max<std::int64_t>(experts, module.expert + 1);
      routers |= IsOfRouting(module.target);
      rare |= LoraView::IsRare(module.target);
    }
    built.view.Clear(num_layers_, experts, routers, rare);
    for (const ModulePlace& module : layout.modules) {
      if (module.target == LoraTarget::kEmbedding) built.view.embedding_lora.tokens = module.in;
      LoraWeights& weights = module.target == LoraTarget::kEmbedding
                                 ? built.view.embedding_lora.weights
                                 : built.view.PlaceOf(module.layer, module.target, module.expert, num_layers_);
      weights.rank = module.rank;
      weights.scale = module.scale;
      weights.dtype = layout.dtype;
      weights.a_rows = AddRows(pages, module.a_rows, built.rows);
      weights.b_rows = AddRows(pages, module.b_rows, built.rows);
      if (module.factors) weights.factors = reinterpret_cast<const float*>(At(pages, *module.factors));
      if (module.vectors.empty()) continue;
      weights.gains = reinterpret_cast<const float*>(At(pages, module.vectors[0]));
      weights.shifts = reinterpret_cast<const float*>(At(pages, module.vectors[1]));
    }
    BuildOwn(layout, pages, built);
  }

 private:
  void BuildOwn(const AdapterLayout& layout, const PageSet& pages, Built& built) const {
    std::size_t token_count = 0;
    for (const OwnPlace& own : layout.own) token_count += own.tokens.size();
    built.tokens.clear();
    built.tokens.reserve(token_count);  // as `rows`
    built.view.embedding = built.view.output = {};
    built.view.norms.clear();
    for (const OwnPlace& own : layout.own) {
      if (IsNorm(own.kind)) {
        built.view.norms.resize(LoraView::NormIndex(0, OwnKind::kFinalNorm, num_layers_) + 1, nullptr);
        built.view.norms[LoraView::NormIndex(own.layer, own.kind, num_layers_)] =
            reinterpret_cast<const float*>(At(pages, own.rows[0]));
        continue;
      }
      const std::size_t first = built.tokens.size();
      built.tokens.insert(built.tokens.end(), own.tokens.begin(), own.tokens.end());
      (own.kind == OwnKind::kEmbedding ? built.view.embedding : built.view.output) = {
          static_cast<std::int64_t>(own.tokens.size()), OwnRowDType(own.kind, layout.dtype),
          built.tokens.data() + first, AddRows(pages, own.rows, built.rows)};
    }
  }
  const std::byte* At(const PageSet& pages, RowPlace place) const {
    return arena_.Page(pages.pages[place.page]) + place.offset;
  }
  const std::byte* const* AddRows(const PageSet& pages, const std::vector<RowPlace>& places,
                                  std::vector<const std::byte*>& rows) const {
    const std::size_t first = rows.size();
    for (const RowPlace place : places) rows.push_back(At(pages, place));
    return rows.data() + first;
  }

  const PageArena arena_;
  std::int64_t num_layers_;
};

}  // namespace loramux
