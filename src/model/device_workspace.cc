#include "model/device_workspace.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/lora.h"
#include "model/step_room.h"

namespace loramux {
namespace {

constexpr std::int64_t kPieceAlignment = 256;  // bytes
constexpr std::int64_t kRowAlignment = 64;     // elements
// Of the decode kernel's partial sums. More chunks of positions are computed in several launches.
constexpr std::int64_t kAttentionBytes = std::int64_t{128} << 20;
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

// Hands out pieces of memory one after the other.
class PiecePlacer {
 public:
  PiecePlacer(DType dtype, std::byte* base) : base_(base), low_size_(static_cast<std::int64_t>(DTypeSize(dtype))) {}

  GpuRows Rows(std::int64_t rows, std::int64_t width, bool low, bool wide) {
    const std::int64_t stride = CeilDivide(width, kRowAlignment) * kRowAlignment;
    GpuRows out = {.stride = stride};
    if (low) out.low = Take(rows * stride * low_size_);
    if (wide) out.wide = Floats(rows * stride);
    return out;
  }
  float* Floats(std::int64_t count) { return Array<float>(count); }
  template <typename T>
  T* Array(std::int64_t count) {
    return reinterpret_cast<T*>(Take(count * static_cast<std::int64_t>(sizeof(T))));
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* Take(std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += CeilDivide(bytes, kPieceAlignment) * kPieceAlignment;
    return base_ == nullptr ? nullptr : base_ + at;
  }

  std::byte* base_;
  std::int64_t low_size_;
  std::int64_t bytes_ = 0;
};

std::int64_t LoraFloats(const ModelConfig& config, const ActivationSizes& sizes) {
  if (sizes.max_rank == 0) return 0;
  const std::int64_t rows = std::max(sizes.rows, sizes.logit_rows);
  const auto rank = static_cast<std::int32_t>(sizes.max_rank);
  std::int64_t of_experts = 0;
  if (config.experts) {
    const std::int64_t places = sizes.rows * config.experts->route.per_token;
    of_experts = std::max(gpu::LoraPartialFloats(places, config.hidden_size, 2, rank),
                          gpu::LoraPartialFloats(places, config.experts->intermediate_size, 1, rank));
  }
  return std::max({of_experts,
                   gpu::LoraPartialFloats(rows, std::max(config.hidden_size, config.EmbeddingSize()), 3, rank),  // qkv
                   gpu::LoraPartialFloats(rows, config.MostAttended(), 1, rank),
                   gpu::LoraPartialFloats(rows, config.MostBlockSize(), 1, rank)});
}

// What the layers with experts need beside.
void PlaceExperts(const ModelConfig& config, const ActivationSizes& sizes, PiecePlacer& place, Activations& out) {
  const ExpertsConfig& experts = *config.experts;
  const gpu::ExpertBounds most =
      gpu::MaxExpertWork(experts.route, sizes.rows, sizes.rows, static_cast<std::int32_t>(sizes.max_rank));
  const std::int64_t count = experts.route.experts;
  out.rows.router = place.Rows(sizes.rows, count + 1, false, true);
  out.rows.chosen = place.Rows(most.places, config.hidden_size, true, true);
  out.rows.chosen_up = place.Rows(most.places, 2 * experts.intermediate_size, false, true);
  out.rows.chosen_between = place.Rows(most.places, experts.intermediate_size, true, false);
  out.experts = {.experts = place.Array<std::int32_t>(most.places),
                 .weights = place.Floats(most.places),
                 .begins = place.Array<std::int32_t>(count + 1),
                 .place_row = place.Array<std::int32_t>(most.places),
                 .places = place.Array<std::int32_t>(most.places),
                 .tiles = place.Array<gpu::ExpertTile>(most.tiles),
                 .shrink = place.Array<gpu::LoraItem>(most.shrink),
                 .expand = place.Array<gpu::LoraItem>(most.expand),
                 .counts = place.Array<std::int32_t>(3 * count),
                 .totals = place.Array<std::int32_t>(3)};
}

// With room for what the launches of recorded steps cover.
DeviceModelLimits Widened(DeviceModelLimits limits) {
  limits.max_sequences = std::max(limits.max_sequences, RowRoom(limits.max_sequences));
  limits.max_logit_rows = std::max(limits.max_logit_rows, RowRoom(limits.max_logit_rows));
  return limits;
}

// The rank that launches cover: few different ones, for the sake of few graphs, but no more than half of the blocks
// find nothing to do because of it.
std::int32_t RankRoom(std::int32_t max_rank, std::int64_t most) {
  const auto power = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(max_rank)));
  return std::min(std::max(power, gpu::kLoraRankTile), static_cast<std::int32_t>(most));
}

// All that are wanted, or what kAttentionBytes holds, but at least one sequence's.
std::int64_t ChunksWithin(const ModelConfig& config, std::int64_t wanted, std::int64_t max_positions) {
  const std::int64_t of_one = CeilDivide(max_positions, gpu::kAttentionChunk);
  const std::int64_t each = gpu::AttentionPartialFloats(1, config.num_heads, config.head_dim) * kFloat;
  return std::max(of_one, std::min(wanted, kAttentionBytes / each));
}

ActivationSizes SizesFor(const ModelConfig& config, std::int64_t widened_bytes, const DeviceModelLimits& limits) {
  const std::int64_t of_one = CeilDivide(limits.max_positions, gpu::kAttentionChunk);
  return {.rows = std::max(limits.max_tokens, limits.max_sequences),
          .logit_rows = std::max(limits.max_logit_rows, std::min(limits.max_tokens, LogitBlock::kMaxScored)),
          .max_rank = limits.max_rank,
          .chunks = ChunksWithin(config, of_one * limits.max_sequences, limits.max_positions),
          .widened = widened_bytes};
}

}  // namespace

ActivationSizes ActivationSizes::Max(const ActivationSizes& other) const {
  return {.rows = std::max(rows, other.rows),
          .logit_rows = std::max(logit_rows, other.logit_rows),
          .max_rank = std::max(max_rank, other.max_rank),
          .chunks = std::max(chunks, other.chunks),
          .widened = std::max(widened, other.widened)};
}

Activations Activations::Place(const ModelConfig& config, DType dtype, const ActivationSizes& sizes, std::byte* base) {
  PiecePlacer place(dtype, base);
  Activations out;
  const std::int64_t rows = sizes.rows;
  out.rows.hidden = place.Rows(rows, config.hidden_size, false, true);
  out.rows.normed = place.Rows(rows, config.hidden_size, true, true);
  if (config.embedding_size != 0) {
    out.rows.embedded = place.Rows(rows, config.embedding_size, true, true);
    out.rows.last_embedded = place.Rows(sizes.logit_rows, config.embedding_size, true, true);
  }
  out.rows.qkv = place.Rows(rows, config.MostQkvDim(), false, true);
  // Wide until it is gated.
  out.rows.attended = place.Rows(rows, config.MostAttended(), true, config.output_gate || config.recurrent);
  if (config.recurrent) {
    out.rows.mixed = place.Rows(rows, config.recurrent->Channels(), false, true);
    out.rows.state_gates = place.Rows(rows, 2 * config.recurrent->value_heads, false, true);
  }
  out.rows.gate_up = place.Rows(rows, config.GateUpDim(config.MostBlockSize()), false, true);
  out.rows.activated = place.Rows(rows, config.MostBlockSize(), true, false);
  out.rows.last_hidden = place.Rows(sizes.logit_rows, config.hidden_size, true, true);
  out.rows.logits = place.Rows(sizes.logit_rows, config.vocab_size, false, true);
  if (config.experts) PlaceExperts(config, sizes, place, out);
  out.lora = place.Floats(LoraFloats(config, sizes));
  out.attention = place.Floats(gpu::AttentionPartialFloats(sizes.chunks, config.num_heads, config.head_dim));
  if (sizes.widened > 0) out.widened = place.Array<std::byte>(sizes.widened);
  out.bytes = place.bytes();
  return out;
}

DeviceWorkspace::DeviceWorkspace(Device& device, const ModelConfig& config, DType dtype, std::int64_t widened_bytes)
    : step(device, config),
      results(device, config),
      device_(device),
      config_(config),
      dtype_(dtype),
      widened_bytes_(widened_bytes) {}

std::int64_t DeviceWorkspace::BytesFor(const ModelConfig& config, DType dtype, std::int64_t widened_bytes,
                                       const DeviceModelLimits& of) {
  const DeviceModelLimits limits = Widened(of);
  const ActivationSizes sizes = SizesFor(config, widened_bytes, limits);
  return Activations::Place(config, dtype, sizes, nullptr).bytes + MostCounts(limits).Bytes(config) +
         DeviceResults::BytesFor(config, sizes.logit_rows);
}

Status DeviceWorkspace::Reserve(const DeviceModelLimits& limits) {
  const std::int64_t free = device_.FreeMemory() + bytes();
  const std::int64_t wanted = BytesFor(limits);
  if (wanted > free) {
    DeviceModelLimits less = limits;
    std::int64_t fits = 0, beyond = limits.max_tokens;
    while (beyond - fits > 1) {
      less.max_tokens = fits + (beyond - fits) / 2;
      (BytesFor(less) <= free ? fits : beyond) = less.max_tokens;
    }
    return ResourceExhausted("computing batches of up to " + std::to_string(limits.max_tokens) + " tokens needs " +
                             std::to_string(wanted) + " bytes of device memory beside the model, but " +
                             std::to_string(free) + " are free; " +
                             (fits > 0 ? "batches of up to " + std::to_string(fits) + " tokens would fit"
                                       : std::string("not even batches of one token fit")));
  }
  const DeviceModelLimits wide = Widened(limits);
  RETURN_IF_ERROR(Grow(sizes_.Max(SizesFor(config_, widened_bytes_, wide))));
  RETURN_IF_ERROR(step.Reserve(MostCounts(wide), limits.max_positions));
  return results.Reserve(sizes_.logit_rows, limits.threads);
}

Status DeviceWorkspace::Grow(const ActivationSizes& sizes) {
  if (sizes == sizes_) return Ok{};
  arena_ = nullptr;
  activations_ = {};
  sizes_ = {};
  ++generation_;
  const std::int64_t bytes = Activations::Place(config_, dtype_, sizes, nullptr).bytes;
  ASSIGN_OR_RETURN(arena_, device_.Allocate("the activations of a batch", bytes));
  activations_ = Activations::Place(config_, dtype_, sizes, arena_->base());
  sizes_ = sizes;
  return Ok{};
}

Status DeviceWorkspace::Prepare(const KvLayout& layout, StepResult& result, StepRoom* room) {
  ActivationSizes sizes = {.rows = batch.num_rows, .logit_rows = batch.MostLogitRows()};
  if (room != nullptr) {
    sizes = {.rows = room->rows, .logit_rows = room->logit_rows, .max_rank = room->max_rank};
  }
  for (const auto& group : batch.adapters) {
    sizes.max_rank = std::max<std::int64_t>(sizes.max_rank, group.adapter->MostRank());
  }
  std::int64_t chunks = 0;
  for (const StepSequence& sequence : batch.step->sequences) {
    if (sequence.tokens.size == 1) chunks += sequence.position / gpu::kAttentionChunk + 1;
  }
  sizes.chunks = ChunksWithin(config_, chunks, batch.max_positions);
  sizes.widened = widened_bytes_;
  RETURN_IF_ERROR(Grow(sizes_.Max(sizes)));
  RETURN_IF_ERROR(results.Reserve(sizes_.logit_rows, 1));
  if (room != nullptr && room->max_rank > 0) room->max_rank = RankRoom(room->max_rank, sizes_.max_rank);
  RETURN_IF_ERROR(results.Prepare(*batch.step, result, room == nullptr ? 0 : room->logit_rows));
  return step.Write(batch, layout, sizes_.chunks, room);
}

void DeviceWorkspace::Upload(DeviceStream& stream) const {
  step.Enqueue(stream);
  results.Upload(stream);
}

}  // namespace loramux
