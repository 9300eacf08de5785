#include "model/step_upload.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/skinny.h"

namespace loramux {
namespace {

using Batch = StepRows<DeviceLoraView>;

std::int64_t PagesOf(const StepSequence& sequence, const KvLayout& layout) {
  return layout.PagesFor(sequence.position + sequence.tokens.size);
}

// Room for attention's chunks, when a launch covers more than there are.
std::size_t ChunkRoom(std::size_t chunks) { return std::bit_ceil(chunks); }

gpu::LoraItemBounds LoraRoom(std::int64_t rows, std::int32_t max_rank) {
  return gpu::MaxLoraItems(static_cast<std::int32_t>(rows), static_cast<std::int32_t>(rows), max_rank);
}

}  // namespace

std::int64_t StepCounts::Bytes(const ModelConfig& config) const {
  constexpr auto kInt = static_cast<std::int64_t>(sizeof(std::int32_t));
  // The largest item of attention's lists has three numbers.
  const std::int64_t ints = rows * 3 + pages + attention_items * 3 + 2 * logit_rows;
  const std::int64_t angles =
      config.RotaryDim(config.rope) + (config.local_rope ? config.RotaryDim(*config.local_rope) : 0) + 1;  // per row
  const std::int64_t sections = 24 + 6 * attention_groups + 7 * logit_blocks;
  return ints * kInt + rows * angles * static_cast<std::int64_t>(sizeof(float)) +
         sequences * static_cast<std::int64_t>(sizeof(gpu::SequenceOnDevice)) +
         lora_items * static_cast<std::int64_t>(sizeof(gpu::LoraItem)) +
         (own_rows + expert_rows) * static_cast<std::int64_t>(sizeof(void*)) +
         pool_ranges * (static_cast<std::int64_t>(sizeof(gpu::PoolRangeOnDevice)) +
                        config.EmbeddingSize() * static_cast<std::int64_t>(sizeof(double))) +
         sections * static_cast<std::int64_t>(MirroredBlock::kAlignment);
}

StepCounts MostCounts(const DeviceModelLimits& limits) {
  StepCounts most;
  most.rows = std::max(limits.max_tokens, limits.max_sequences);
  most.sequences = limits.max_sequences;
  most.pages = limits.max_sequences * (limits.state_pages + CeilDivide(limits.max_positions, limits.page_tokens));
  most.logit_rows = limits.max_logit_rows + most.rows;
  most.logit_blocks = 1 + CeilDivide(limits.max_tokens, LogitBlock::kMaxScored);
  // Twice the chunks: lists have room for a power of two.
  most.attention_items = limits.max_sequences * (2 + 2 * CeilDivide(limits.max_positions, gpu::kAttentionChunk)) +
                         CeilDivide(limits.max_tokens, gpu::kPrefillTile);
  most.attention_groups = 2;
  if (limits.max_rank > 0) {
    most.own_rows = most.rows + most.logit_rows;
    most.expert_rows = most.rows;
    // Each row may be in the list of the batch, in that of the sampled rows and in one of the scored rows.
    const auto items = [&](std::int64_t rows, std::int64_t ranges) {
      const gpu::LoraItemBounds bounds =
          gpu::MaxLoraItems(static_cast<std::int32_t>(rows), static_cast<std::int32_t>(ranges),
                            static_cast<std::int32_t>(limits.max_rank));
      return static_cast<std::int64_t>(bounds.shrink) + bounds.expand;
    };
    most.lora_items = items(most.rows, limits.max_sequences) + items(limits.max_logit_rows, limits.max_logit_rows) +
                      items(most.rows, limits.max_sequences + most.logit_blocks) +
                      std::min<std::int64_t>(most.rows, gpu::kSkinnyRows);
  }
  return most;
}

Status StepUpload::Reserve(const StepCounts& counts, std::int64_t max_positions) {
  rope_.Reserve(max_positions);
  if (local_rope_) local_rope_->Reserve(max_positions);
  return Begin(counts);
}

Status StepUpload::Begin(const StepCounts& counts) {
  return block_.Begin(device_, "what a step tells the device", counts.Bytes(config_));
}

StepCounts StepUpload::Count(const Batch& batch, const KvLayout& layout) const {
  StepCounts counts;
  counts.rows = batch.num_rows;
  counts.sequences = static_cast<std::int64_t>(batch.step->sequences.size());
  for (const StepSequence& sequence : batch.step->sequences) counts.pages += PagesOf(sequence, layout);
  counts.lora_items = static_cast<std::int64_t>(shrink_.size() + expand_.size() + pieces_.size());
  for (std::size_t i = 0; i < attention_groups_; ++i) {
    const gpu::AttentionWorkLists& lists = attention_[i];
    counts.attention_items +=
        static_cast<std::int64_t>(lists.chunks.size() + lists.decode_rows.size() + lists.tiles.size());
  }
  counts.attention_groups = static_cast<std::int64_t>(attention_groups_);
  counts.logit_rows = static_cast<std::int64_t>(batch.logit_rows.size());
  if (step_.expert_rank > 0) counts.expert_rows = counts.rows;
  if (std::ranges::any_of(batch.adapters, [](const auto& group) { return group.adapter->own != nullptr; }))
    counts.own_rows = counts.rows + counts.logit_rows;
  counts.logit_blocks = 1 + static_cast<std::int64_t>(batch.scored.size());
  counts.pool_ranges = static_cast<std::int64_t>(batch.step->pools.ranges.size());
  return counts;
}

Status StepUpload::Write(const Batch& batch, const KvLayout& layout, std::int64_t max_chunks, const StepRoom* room) {
  ListAttention(batch, max_chunks);
  ListLora(batch, room);
  counts_ = Count(batch, layout);
  if (room != nullptr) WidenTo(*room);
  RETURN_IF_ERROR(Begin(counts_));
  step_.rows = CopyCount(static_cast<std::size_t>(batch.num_rows));
  step_.max_rows = counts_.rows;
  if (config_.experts) {
    const std::size_t ranges = room != nullptr ? static_cast<std::size_t>(room->rows) : batch.adapters.size();
    step_.expert_work = gpu::MaxExpertWork(config_.experts->route, step_.max_rows, static_cast<std::int64_t>(ranges),
                                           step_.expert_rank);
  }
  WriteRows(batch, layout);
  step_.angles[0] = WriteAngles(batch, rope_);
  if (local_rope_) step_.angles[1] = WriteAngles(batch, *local_rope_);
  if (config_.rope.query_beta != 0) step_.query_scale = WriteQueryScales(batch);
  WriteAttention(room);
  step_.own = WriteOwn(batch.adapters, batch.num_rows);
  step_.experts = WriteExperts(batch.adapters);
  step_.lora = WriteLora(items_[0]);
  if (piece_room_ > 0) {
    step_.lora.pieces = Copy(std::span(std::as_const(pieces_)), piece_room_);
    step_.lora.piece_count = CopyCount(pieces_.size());
    step_.lora.max_pieces = static_cast<std::int32_t>(piece_room_);
  }
  step_.blocks.clear();
  std::size_t block = 1;  // index in items_
  if (batch.num_logit_rows > 0) WriteBlock(batch, batch.logits, items_[block++]);
  for (const LogitBlock& scored : batch.scored) WriteBlock(batch, scored, items_[block++]);
  step_.pool_sums = {};
  if (!batch.step->pools.ranges.empty()) WritePools(batch.step->pools);
  // Last: their number has no bound that is worth having room for.
  WritePages(batch, layout);
  return Ok{};
}

void StepUpload::WidenTo(const StepRoom& room) {
  CHECK_GE(room.rows, counts_.rows);
  CHECK_GE(room.logit_rows, counts_.logit_rows);
  CHECK_EQ(counts_.logit_blocks + counts_.pool_ranges, 1);
  counts_.rows = counts_.sequences = room.rows;
  if (counts_.expert_rows > 0) counts_.expert_rows = room.rows;
  counts_.logit_rows = room.logit_rows;
  counts_.attention_items = static_cast<std::int64_t>(attention_groups_) * room.rows;
  for (std::size_t i = 0; i < attention_groups_; ++i) {
    counts_.attention_items += static_cast<std::int64_t>(ChunkRoom(attention_[i].chunks.size()));
    CHECK(attention_[i].tiles.empty());
  }
  counts_.lora_items = static_cast<std::int64_t>(piece_room_);
  const auto widen = [&](ItemRange& items, std::int64_t rows) {
    const gpu::LoraItemBounds most = LoraRoom(rows, room.max_rank);
    CHECK_GE(room.max_rank, items.max_rank);
    items.max_rank = room.max_rank;
    items.shrink_room = static_cast<std::size_t>(most.shrink);
    items.expand_room = static_cast<std::size_t>(most.expand);
    counts_.lora_items += most.shrink + most.expand;
  };
  if (room.max_rank > 0) widen(items_[0], room.rows);
  if (room.LoraAfterLayers() && items_.size() > 1) widen(items_[1], room.logit_rows);
}

// Sequences of one row go to the decode kernel. A group has no more chunks than its partial sums have room for.
void StepUpload::ListAttention(const Batch& batch, std::int64_t max_chunks) {
  std::int64_t window = 0;
  for (const std::int64_t of_layer : config_.sliding_window) {
    if (of_layer == 0) {
      window = 0;
      break;
    }
    window = std::max(window, of_layer);
  }
  attention_groups_ = 0;
  const auto begin_group = [&] {
    if (attention_.size() == attention_groups_) attention_.emplace_back();
    attention_[attention_groups_++].Clear();
  };
  begin_group();
  for (std::size_t i = 0; i < batch.step->sequences.size(); ++i) {
    const StepSequence& sequence = batch.step->sequences[i];
    const auto row = static_cast<std::int32_t>(sequence.tokens.first);
    const auto size = static_cast<std::int32_t>(sequence.tokens.size);
    if (size > 1) {
      attention_[0].AddPrefill(static_cast<std::int32_t>(i), size);
    } else {
      const std::size_t listed = attention_[attention_groups_ - 1].chunks.size();
      const std::int64_t most = sequence.position / gpu::kAttentionChunk + 1;
      if (listed > 0 && static_cast<std::int64_t>(listed) + most > max_chunks) begin_group();
      attention_[attention_groups_ - 1].AddDecodeRow(row, sequence.position, window);
    }
  }
}

void StepUpload::ListLora(const Batch& batch, const StepRoom* room) {
  step_.lora_targets.assign(static_cast<std::size_t>(config_.num_layers) + 1, 0);
  for (const auto& group : batch.adapters) {
    const std::vector<LayerTargets>& targets = group.adapter->targets;
    CHECK_EQ(targets.size(), step_.lora_targets.size());
    for (std::size_t i = 0; i < targets.size(); ++i) step_.lora_targets[i] |= targets[i];
  }
  step_.expert_rank = 0;
  for (const auto& group : batch.adapters) step_.expert_rank = std::max(step_.expert_rank, group.adapter->expert_rank);
  if (room != nullptr && room->max_rank > 0) {
    step_.lora_targets.assign(room->lora_targets.begin(), room->lora_targets.end());
    if (config_.experts) step_.expert_rank = room->max_rank;
  }
  shrink_.clear();
  expand_.clear();
  items_.clear();
  items_.push_back(AppendItems(batch.adapters, /*of_block=*/false));
  ListPieces(batch, room);
  if (batch.num_logit_rows > 0) items_.push_back(AppendItems(batch.AdaptersOf(batch.logits), true));
  for (const LogitBlock& block : batch.scored) items_.push_back(AppendItems(batch.AdaptersOf(block), true));
}

// With a room they depend on it alone, and there may be one a row.
void StepUpload::ListPieces(const Batch& batch, const StepRoom* room) {
  pieces_.clear();
  piece_room_ = 0;
  if (room != nullptr ? room->max_rank == 0 : items_[0].expand == 0) return;
  if ((room != nullptr ? room->rows : batch.num_rows) > gpu::kSkinnyRows) return;
  std::int32_t row = 0;
  for (const auto& group : batch.adapters) {
    const DeviceLoraView& adapter = *group.adapter;
    const auto begin = static_cast<std::int32_t>(group.begin), end = static_cast<std::int32_t>(group.end);
    gpu::AppendLoraPieces(nullptr, adapter.dtype, row, begin - row, pieces_);
    gpu::AppendLoraPieces(adapter.max_rank == 0 ? nullptr : adapter.modules, adapter.dtype, begin, end - begin, pieces_,
                          adapter.gate);
    row = end;
  }
  gpu::AppendLoraPieces(nullptr, DType::kF32, row, static_cast<std::int32_t>(batch.num_rows) - row, pieces_);
  piece_room_ = room != nullptr ? static_cast<std::size_t>(room->rows) : pieces_.size();
}

StepUpload::ItemRange StepUpload::AppendItems(std::span<const AdapterRowsOf<DeviceLoraView>> groups, bool of_block) {
  ItemRange range = {.first_shrink = shrink_.size(), .first_expand = expand_.size()};
  for (const auto& group : groups) {
    const DeviceLoraView& adapter = *group.adapter;
    if (adapter.max_rank == 0 || (of_block && adapter.targets.back() == 0)) continue;
    gpu::AppendLoraItems(adapter.modules, adapter.dtype, adapter.max_rank, static_cast<std::int32_t>(group.begin),
                         static_cast<std::int32_t>(group.end - group.begin), shrink_, expand_, adapter.gate);
    range.max_rank = std::max(range.max_rank, adapter.max_rank);
  }
  range.shrink = shrink_.size() - range.first_shrink;
  range.expand = expand_.size() - range.first_expand;
  range.shrink_room = range.shrink;
  range.expand_room = range.expand;
  return range;
}

template <typename T>
const T* StepUpload::Copy(std::span<const T> values, std::size_t room) {
  const auto place = block_.Take<T>(room);
  std::ranges::copy(values, place.host);
  return place.device;
}

const std::int32_t* StepUpload::CopyCount(std::size_t value) {
  const auto count = static_cast<std::int32_t>(value);
  return Copy(std::span(&count, 1), 1);
}

void StepUpload::WriteRows(const Batch& batch, const KvLayout& layout) {
  const auto rows = static_cast<std::size_t>(counts_.rows);
  const auto tokens = block_.Take<std::int32_t>(rows), position = block_.Take<std::int32_t>(rows),
             sequence = block_.Take<std::int32_t>(rows);
  const auto sequences = block_.Take<gpu::SequenceOnDevice>(static_cast<std::size_t>(counts_.sequences));
  std::int32_t row = 0, first_page = 0;
  for (std::size_t i = 0; i < batch.step->sequences.size(); ++i) {
    const StepSequence& of = batch.step->sequences[i];
    const auto size = static_cast<std::int32_t>(of.tokens.size);
    const auto first_position = static_cast<std::int32_t>(of.position);
    sequences.host[i] = {row, size, first_position, first_page + static_cast<std::int32_t>(layout.state_pages)};
    first_page += static_cast<std::int32_t>(PagesOf(of, layout));
    for (std::int32_t t = 0; t < size; ++t, ++row) {
      const TokenId token = batch.step->tokens[static_cast<std::size_t>(row)];
      CHECK(token >= 0 && token < config_.vocab_size);
      tokens.host[row] = static_cast<std::int32_t>(token);
      position.host[row] = first_position + t;
      sequence.host[row] = static_cast<std::int32_t>(i);
    }
  }
  step_.tokens = tokens.device;
  step_.row_position = position.device;
  step_.row_sequence = sequence.device;
  step_.sequences = sequences.device;
  step_.num_sequences = CopyCount(batch.step->sequences.size());
  step_.max_sequences = counts_.sequences;
}

void StepUpload::WritePages(const Batch& batch, const KvLayout& layout) {
  const auto tables = block_.Take<std::uint32_t>(static_cast<std::size_t>(counts_.pages));
  std::uint32_t* to = tables.host;
  for (const StepSequence& sequence : batch.step->sequences) {
    to = std::copy_n(batch.step->PagesOf(sequence).data(), PagesOf(sequence, layout), to);
  }
  step_.page_tables = tables.device;
}

// The angles are the same in every layer.
StepOnDevice::Angles StepUpload::WriteAngles(const Batch& batch, RopeTable& table) {
  const std::int64_t half = table.rotary_dim() / 2;
  const auto cos = block_.Take<float>(static_cast<std::size_t>(counts_.rows * half));
  const auto sin = block_.Take<float>(static_cast<std::size_t>(counts_.rows * half));
  std::int64_t at = 0;
  for (const StepSequence& sequence : batch.step->sequences) {
    const std::int64_t end = sequence.position + sequence.tokens.size;
    for (std::int64_t p = sequence.position; p < end; ++p, at += half) {
      table.Row(p, std::max(sequence.prompt_tokens, p + 1), cos.host + at, sin.host + at);
    }
  }
  return {cos.device, sin.device};
}

const float* StepUpload::WriteQueryScales(const Batch& batch) {
  const auto scales = block_.Take<float>(static_cast<std::size_t>(counts_.rows));
  float* to = scales.host;
  for (const StepSequence& sequence : batch.step->sequences) {
    const std::int64_t end = sequence.position + sequence.tokens.size;
    for (std::int64_t p = sequence.position; p < end; ++p) *to++ = config_.QueryScale(p);
  }
  return scales.device;
}

void StepUpload::WriteAttention(const StepRoom* room) {
  step_.attention.clear();
  for (std::size_t i = 0; i < attention_groups_; ++i) {
    const gpu::AttentionWorkLists& lists = attention_[i];
    StepAttention& to = step_.attention.emplace_back();
    const std::size_t chunks = room == nullptr ? lists.chunks.size() : ChunkRoom(lists.chunks.size());
    const std::size_t rows = room == nullptr ? lists.decode_rows.size() : static_cast<std::size_t>(room->rows);
    to.work.chunks = Copy(std::span(lists.chunks), chunks);
    to.work.num_chunks = CopyCount(lists.chunks.size());
    to.work.decode_rows = Copy(std::span(lists.decode_rows), rows);
    to.work.num_decode_rows = CopyCount(lists.decode_rows.size());
    to.work.tiles = Copy(std::span(lists.tiles), lists.tiles.size());
    to.work.num_tiles = CopyCount(lists.tiles.size());
    to.max_rows = static_cast<std::int64_t>(rows);
    to.max_chunks = static_cast<std::int64_t>(chunks);
    to.tiles = static_cast<std::int64_t>(lists.tiles.size());
  }
}

gpu::LoraWork StepUpload::WriteLora(const ItemRange& items) {
  if (items.expand_room == 0) return {};
  return {
      .shrink = Copy(std::span(std::as_const(shrink_)).subspan(items.first_shrink, items.shrink), items.shrink_room),
      .expand = Copy(std::span(std::as_const(expand_)).subspan(items.first_expand, items.expand), items.expand_room),
      .shrink_count = CopyCount(items.shrink),
      .expand_count = CopyCount(items.expand),
      .max_shrink = static_cast<std::int32_t>(items.shrink_room),
      .max_expand = static_cast<std::int32_t>(items.expand_room),
      .max_rank = items.max_rank};
}

const gpu::OwnPartsOnDevice* const* StepUpload::WriteOwn(std::span<const AdapterRowsOf<DeviceLoraView>> groups,
                                                         std::int64_t rows) {
  if (std::ranges::none_of(groups, [](const auto& group) { return group.adapter->own != nullptr; })) return nullptr;
  const auto own = block_.Take<const gpu::OwnPartsOnDevice*>(static_cast<std::size_t>(rows));
  std::fill_n(own.host, rows, nullptr);
  for (const auto& group : groups) std::fill(own.host + group.begin, own.host + group.end, group.adapter->own);
  return own.device;
}

const gpu::ExpertLoraOnDevice* const* StepUpload::WriteExperts(std::span<const AdapterRowsOf<DeviceLoraView>> groups) {
  if (counts_.expert_rows == 0) return nullptr;
  const auto experts = block_.Take<const gpu::ExpertLoraOnDevice*>(static_cast<std::size_t>(counts_.expert_rows));
  std::fill_n(experts.host, counts_.expert_rows, nullptr);
  for (const auto& group : groups) {
    std::fill(experts.host + group.begin, experts.host + group.end, group.adapter->experts);
  }
  return experts.device;
}

void StepUpload::WriteBlock(const Batch& batch, const LogitBlock& block, const ItemRange& items) {
  // With a room there is one block, which has the room's rows.
  const std::int64_t max_rows = batch.scored.empty() ? counts_.logit_rows : block.count;
  const auto indices = block_.Take<std::int32_t>(static_cast<std::size_t>(max_rows));
  std::ranges::transform(batch.RowsOf(block), indices.host,
                         [](std::int64_t row) { return static_cast<std::int32_t>(row); });
  std::int64_t max_own = 0;
  for (const auto& group : batch.AdaptersOf(block)) {
    max_own = std::max<std::int64_t>(max_own, group.adapter->own_outputs);
  }
  step_.blocks.push_back({.first = block.first,
                          .count = block.count,
                          .max_rows = max_rows,
                          .rows = CopyCount(static_cast<std::size_t>(block.count)),
                          .indices = indices.device,
                          .lora = WriteLora(items),
                          .own = WriteOwn(batch.AdaptersOf(block), block.count),
                          .max_own = max_own});
}

void StepUpload::WritePools(const PoolBatch& pools) {
  const auto hidden = static_cast<std::size_t>(config_.EmbeddingSize());
  const auto ranges = block_.Take<gpu::PoolRangeOnDevice>(pools.ranges.size());
  step_.pool_sums = block_.Take<double>(pools.ranges.size() * hidden);
  double* sum = step_.pool_sums.host;
  for (std::size_t i = 0; i < pools.ranges.size(); ++i, sum += hidden) {
    const PoolRange& range = pools.ranges[i];
    ranges.host[i] = {static_cast<std::int32_t>(range.first_row), static_cast<std::int32_t>(range.rows)};
    const std::span<const double> before = pools.SumBefore(range);
    if (before.empty()) {
      std::fill_n(sum, hidden, 0.0);
    } else {
      CHECK_EQ(before.size(), hidden);
      std::ranges::copy(before, sum);
    }
  }
  step_.pool_ranges = ranges.device;
}

}  // namespace loramux
