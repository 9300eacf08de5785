// The kernels of experts.h that list the experts' work and combine what they return.
#pragma once

#include <cstdint>

#include "gpu/kernel_api.h"
#include "gpu/kernels/count_bits.h"
#include "gpu/kernels/elementwise_kernels.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/lora_expand_kernel.h"

namespace loramux::gpu {

// Adjacent places of one expert whose rows have one adapter that changes it.
struct ExpertRun {
  const ExpertLoraOnDevice* lora = nullptr;  // null: none begins here
  std::int32_t rows = 0;

  // The one that begins at place p of the expert's [begin, end).
  LORAMUX_DEVICE static ExpertRun At(const ListChosenArguments& a, std::int32_t expert, std::int32_t begin,
                                     std::int32_t end, std::int32_t p) {
    const ExpertLoraOnDevice* lora = LoraOf(a, p);
    if (lora == nullptr || expert >= Load(&lora->experts)) return {};
    if ((p - begin) % kLoraItemRows != 0 && LoraOf(a, p - 1) == lora) return {};
    ExpertRun run;
    run.lora = lora;
    for (run.rows = 1; p + run.rows < end && (p + run.rows - begin) % kLoraItemRows != 0; ++run.rows)
      if (LoraOf(a, p + run.rows) != lora) break;
    return run;
  }
  LORAMUX_DEVICE static const ExpertLoraOnDevice* LoraOf(const ListChosenArguments& a, std::int32_t p) {
    return Load(a.adapters + Load(a.lists.place_row + p));
  }

  LORAMUX_DEVICE std::int32_t ShrinkItems() const {
    return lora == nullptr ? 0 : (Load(&lora->max_rank) + kLoraRankTile - 1) / kLoraRankTile;
  }
  LORAMUX_DEVICE std::int32_t ExpandItems() const {
    if (lora == nullptr) return 0;
    return rows > kLoraFewRows ? kLoraExpandTile / kLoraManyOutputs : 1;
  }
};

// One block an expert: finds its pairs, in order, and counts what ListExperts lists.
template <typename T>
struct SortChosenKernel {
  using Arguments = ListChosenArguments;
  static constexpr int kThreads = 256, kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  struct Memory {
    std::uint32_t equal[kWarps], less[kWarps], shrink[kWarps], expand[kWarps];
  };

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    Memory& shared = Shared<Memory>();
    const auto expert = static_cast<std::int32_t>(BlockX()), warp = static_cast<std::int32_t>(Warp());
    const auto lane = static_cast<std::int32_t>(Lane());
    const std::int32_t pairs = Load(a.rows) * a.per_token;
    const std::int32_t part = (pairs + kThreads - 1) / kThreads * 32;  // pairs that a warp counts
    const std::int32_t begin = warp * part, end = begin + part < pairs ? begin + part : pairs;
    std::uint32_t equal = 0, less = 0;
    for (std::int32_t i = begin + lane; i < end; i += 32) {
      const std::int32_t chosen = Load(a.lists.experts + i);
      equal += chosen == expert ? 1 : 0;
      less += chosen < expert ? 1 : 0;
    }
    equal = SumWarp(equal);
    less = SumWarp(less);
    if (lane == 0) {
      shared.equal[warp] = equal;
      shared.less[warp] = less;
    }
    SyncBlock();
    std::uint32_t first = 0, count = 0, before = 0;
    for (int w = 0; w < kWarps; ++w) {
      first += shared.less[w];
      if (w < warp) before += shared.equal[w];
      count += shared.equal[w];
    }
    Place(a, expert, begin, end, static_cast<std::int32_t>(first + before));
    SyncBlock();  // the rows of places are read below
    Count(a, expert, static_cast<std::int32_t>(first), static_cast<std::int32_t>(first + count));
  }

 private:
  // Puts the pairs [begin, end) of the expert at the places from `at` on.
  LORAMUX_DEVICE static void Place(const Arguments& a, std::int32_t expert, std::int32_t begin, std::int32_t end,
                                   std::int32_t at) {
    for (std::int32_t base = begin; base < end; base += 32) {
      const std::int32_t i = base + static_cast<std::int32_t>(Lane());
      const bool mine = i < end && Load(a.lists.experts + i) == expert;
      const std::uint32_t all = SumWarp(mine ? 1u << Lane() : 0u);
      if (mine) {
        const std::int32_t place = at + static_cast<std::int32_t>(CountBits(all & ((1u << Lane()) - 1)));
        Store(a.lists.place_row + place, i / a.per_token);
        Store(a.lists.places + i, place);
      }
      at += static_cast<std::int32_t>(CountBits(all));
    }
  }

  LORAMUX_DEVICE static void Count(const Arguments& a, std::int32_t expert, std::int32_t begin, std::int32_t end) {
    Memory& shared = Shared<Memory>();
    std::uint32_t shrink = 0, expand = 0;
    for (std::int32_t p = begin + static_cast<std::int32_t>(ThreadIndex()); a.adapters != nullptr && p < end;
         p += kThreads) {
      const ExpertRun run = ExpertRun::At(a, expert, begin, end, p);
      shrink += static_cast<std::uint32_t>(run.ShrinkItems());
      expand += static_cast<std::uint32_t>(run.ExpandItems());
    }
    shrink = SumWarp(shrink);
    expand = SumWarp(expand);
    if (Lane() == 0) {
      shared.shrink[Warp()] = shrink;
      shared.expand[Warp()] = expand;
    }
    SyncBlock();
    if (ThreadIndex() != 0) return;
    shrink = expand = 0;
    for (int w = 0; w < kWarps; ++w) {
      shrink += shared.shrink[w];
      expand += shared.expand[w];
    }
    std::int32_t* counts = a.lists.counts + 3 * expert;
    Store(counts, (end - begin + kExpertTileRows - 1) / kExpertTileRows);
    Store(counts + 1, static_cast<std::int32_t>(shrink));
    Store(counts + 2, static_cast<std::int32_t>(expand));
    Store(a.lists.begins + expert, begin);
    if (expert == a.experts - 1) Store(a.lists.begins + a.experts, end);
  }
};

// One warp an expert: writes its items behind those of the experts before.
template <typename T>
struct ListExpertsKernel {
  using Arguments = ListChosenArguments;
  static constexpr int kThreads = 32, kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    const auto expert = static_cast<std::int32_t>(BlockX()), lane = static_cast<std::int32_t>(Lane());
    std::int32_t at[3];  // next place for tiles, shrink items, expand items
    LORAMUX_UNROLL
    for (int kind = 0; kind < 3; ++kind) {
      std::uint32_t before = 0;
      for (std::int32_t e = lane; e < expert; e += 32)
        before += static_cast<std::uint32_t>(Load(a.lists.counts + 3 * e + kind));
      at[kind] = static_cast<std::int32_t>(SumWarp(before));
      if (expert == a.experts - 1 && lane == 0)
        Store(a.lists.totals + kind, at[kind] + Load(a.lists.counts + 3 * expert + kind));
    }
    const std::int32_t begin = Load(a.lists.begins + expert), end = Load(a.lists.begins + expert + 1);
    for (std::int32_t tile = lane; tile * kExpertTileRows < end - begin; tile += 32) {
      const std::int32_t first = begin + tile * kExpertTileRows;
      ExpertTile* to = a.lists.tiles + at[0] + tile;
      Store(&to->expert, expert);
      Store(&to->first, first);
      Store(&to->rows, end - first < kExpertTileRows ? end - first : kExpertTileRows);
    }
    for (std::int32_t base = begin; a.adapters != nullptr && base < end; base += 32) {
      const std::int32_t p = base + lane;
      const ExpertRun run = p < end ? ExpertRun::At(a, expert, begin, end, p) : ExpertRun();
      const std::int32_t shrink = run.ShrinkItems(), expand = run.ExpandItems();
      const std::int32_t shrink_end = SumUpTo(shrink), expand_end = SumUpTo(expand);
      if (run.lora != nullptr) Write(a, expert, p, run, at[1] + shrink_end - shrink, at[2] + expand_end - expand);
      at[1] += Shuffle(shrink_end, 31);
      at[2] += Shuffle(expand_end, 31);
    }
  }

 private:
  // The sum of the values of this lane and those before.
  LORAMUX_DEVICE static std::int32_t SumUpTo(std::int32_t value) {
    LORAMUX_UNROLL
    for (std::uint32_t step = 1; step < 32; step *= 2) {
      const std::int32_t before = Shuffle(value, Lane() >= step ? Lane() - step : Lane());
      if (Lane() >= step) value += before;
    }
    return value;
  }

  LORAMUX_DEVICE static void Write(const Arguments& a, std::int32_t expert, std::int32_t p, const ExpertRun& run,
                                   std::int32_t shrink_at, std::int32_t expand_at) {
    const std::int32_t shrink = run.ShrinkItems(), expand = run.ExpandItems();
    for (std::int32_t i = 0; i < shrink; ++i)
      WriteItem(a, expert, p, run, i * kLoraRankTile, 0, 1, a.lists.shrink + shrink_at + i);
    for (std::int32_t i = 0; i < expand; ++i)
      WriteItem(a, expert, p, run, 0, static_cast<std::int16_t>(i), static_cast<std::int16_t>(expand),
                a.lists.expand + expand_at + i);
  }
  LORAMUX_DEVICE static void WriteItem(const Arguments& a, std::int32_t expert, std::int32_t p, const ExpertRun& run,
                                       std::int32_t first_rank, std::int16_t part, std::int16_t parts, LoraItem* to) {
    Store(&to->modules, Load(&run.lora->modules) + static_cast<std::int64_t>(expert) * a.modules);
    Store(&to->first_row, p);
    Store(&to->rows, run.rows);
    Store(&to->first_rank, first_rank);
    Store(&to->part, part);
    Store(&to->parts, parts);
    Store(&to->dtype, Load(&run.lora->dtype));
    Store(&to->gate, static_cast<const std::uint32_t*>(nullptr));
  }
};

template <typename T>
struct CombineChosenKernel {
  using Arguments = CombineChosenArguments;
  static constexpr int kThreads = kPartThreads, kMinBlocks = 1;

  LORAMUX_DEVICE static void Run(const Arguments& a) {
    if (IsBeyond(a.rows, a.width)) return;
    const std::int64_t row = BlockX(), column = ColumnOfThread();
    float sums[kGroup] = {};
    if (a.form.keeps) {
      LoadGroup<float>({a.y, a.y_stride}, row, column, a.width, sums);
      if (a.form.gates != nullptr) {
        const float factor = 1.0f / (1.0f + Exp(-Load(a.form.gates + row * a.form.gate_stride)));
        LORAMUX_UNROLL
        for (float& sum : sums) sum *= factor;
      }
    }
    for (std::int64_t c = row * a.form.per_token; c < (row + 1) * a.form.per_token; ++c) {
      float x[kGroup];
      LoadGroup<float>({a.x, a.x_stride}, Load(a.places + c), column, a.width, x);
      const float weight = Load(a.weights + c);
      LORAMUX_UNROLL
      for (int i = 0; i < kGroup; ++i) sums[i] = Fma(weight, x[i], sums[i]);
    }
    StoreGroup<float>({a.y, a.y_stride}, row, column, a.width, sums);
  }
};

}  // namespace loramux::gpu
