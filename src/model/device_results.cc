#include "model/device_results.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"

namespace loramux {
namespace {

// Whether the token is the first of the largest logits, and nothing else is asked for.
bool IsPlainlyGreedy(const SampleRow& row) {
  return row.params.temperature < SamplingParams::kGreedyBelow && row.params.top_logprobs < 0 && row.constraint < 0 &&
         row.bias.size == 0 && row.banned.size == 0 && row.params.presence_penalty == 0 &&
         row.params.frequency_penalty == 0 && row.params.repetition_penalty == 1;
}

constexpr auto kAlignment = static_cast<std::int64_t>(MirroredBlock::kAlignment);

// Bytes of an array, which has at most one block.
template <typename T>
std::int64_t ArrayBytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(T)) + kAlignment;
}

std::int64_t SampleBytes(std::int64_t rows, std::int64_t mask_words, std::int64_t biases, std::int64_t tokens) {
  return ArrayBytes<gpu::DeviceSampleRow>(rows) + ArrayBytes<std::int32_t>(1) + ArrayBytes<gpu::SampledOnDevice>(rows) +
         ArrayBytes<std::uint32_t>(mask_words) + ArrayBytes<gpu::TokenBias>(biases) + ArrayBytes<float>(biases) +
         ArrayBytes<std::int32_t>(tokens) + ArrayBytes<float>(tokens);
}

}  // namespace

DeviceResults::DeviceResults(Device& device, const ModelConfig& config) : device_(device), config_(config) {}

// Bytes of a step that samples each row, half of them with a mask.
std::int64_t DeviceResults::BytesFor(const ModelConfig& config, std::int64_t logit_rows) {
  return SampleBytes(logit_rows, logit_rows / 2 * MaskWords(config), 0, 0);
}

Status DeviceResults::Reserve(std::int64_t logit_rows, int threads) {
  if (threads_ == nullptr || threads_->size() < threads) {
    threads_ = std::make_unique<ThreadPool>(threads);
    scratch_.resize(static_cast<std::size_t>(threads));
  }
  if (block_.bytes() == 0) RETURN_IF_ERROR(block_.Begin(device_, "what a step samples", BytesFor(config_, logit_rows)));
  const std::int64_t bytes =
      std::min(logit_rows, kHostRows) * config_.vocab_size * static_cast<std::int64_t>(sizeof(float));
  if (bytes == 0 || (host_ != nullptr && host_->size() >= bytes)) return Ok{};
  host_ = nullptr;
  ASSIGN_OR_RETURN(host_, device_.AllocatePinned("rows of logits", bytes));
  return Ok{};
}

bool DeviceResults::Synchronize(DeviceStream& stream) {
  if (Status status = stream.Synchronize(); !status.ok()) status_ = std::move(status);
  return status_.ok();
}

void DeviceResults::ForRows(DeviceStream& stream, GpuRows logits, std::span<const std::int32_t> rows,
                            const UseRow& use) {
  const std::int64_t vocab = config_.vocab_size;
  auto* const host = reinterpret_cast<float*>(host_->base());
  for (std::size_t first = 0; first < rows.size(); first += kHostRows) {
    const auto piece = rows.subspan(first, std::min<std::size_t>(kHostRows, rows.size() - first));
    for (std::size_t i = 0; i < piece.size(); ++i) {
      stream.CopyToHost(host + static_cast<std::int64_t>(i) * vocab, logits.wide + piece[i] * logits.stride,
                        static_cast<std::size_t>(vocab) * sizeof(float));
    }
    if (!Synchronize(stream)) return;
    threads_->Run(static_cast<std::int64_t>(piece.size()), [&](std::int64_t i, int thread) {
      use(piece[static_cast<std::size_t>(i)], {host + i * vocab, static_cast<std::size_t>(vocab)},
          static_cast<std::size_t>(thread));
    });
  }
}

Status DeviceResults::Prepare(const StepBatch& step, StepResult& result, std::int64_t room) {
  const SampleBatch& samples = step.samples;
  samples_ = &samples;
  result_ = &result;
  result.tokens.clear();
  result.tokens.resize(samples.rows.size());
  result.scores.clear();
  pending_scores_.clear();
  served_.clear();
  others_.clear();
  for (std::size_t row = 0; row < samples.rows.size(); ++row) {
    (gpu::DeviceSamples(samples.rows[row]) ? served_ : others_).push_back(static_cast<std::int32_t>(row));
  }
  room_ = RoomFor(samples, !step.scores.empty(), room);
  const auto count = static_cast<std::int64_t>(step.scores.size());
  const std::int64_t blocks = CeilDivide(count, LogitBlock::kMaxScored);
  const std::int64_t masks = static_cast<std::int64_t>(samples.constraints.size());
  const std::int64_t bytes =
      SampleBytes(static_cast<std::int64_t>(room_.rows), masks * MaskWords(), static_cast<std::int64_t>(room_.biases),
                  static_cast<std::int64_t>(room_.tokens)) +
      ArrayBytes<gpu::DeviceScoreRow>(count) + ArrayBytes<gpu::SampledOnDevice>(count) + 4 * blocks * kAlignment;
  RETURN_IF_ERROR(block_.Begin(device_, "what a step samples", bytes));
  if (room_.way == SampleRoom::Way::kGreedy) greedy_ = block_.Take<std::int32_t>(room_.rows);
  if (room_.way == SampleRoom::Way::kKernel) WriteInputs();
  return Ok{};
}

SampleRoom DeviceResults::RoomFor(const SampleBatch& samples, bool scores, std::int64_t rows) const {
  SampleRoom room;
  if (samples.rows.empty()) return room;
  // Rows that the greedy kernel leaves to the processor must keep their logits until the end of the step.
  const bool greedy = !scores && std::ranges::all_of(samples.rows, IsPlainlyGreedy);
  room.way = greedy ? SampleRoom::Way::kGreedy : SampleRoom::Way::kKernel;
  room.by_device_alone = others_.empty() && samples.constraints.empty();
  room.rows = greedy ? samples.rows.size() : served_.size();
  if (rows > 0) {
    CHECK_LE(room.rows, static_cast<std::size_t>(rows));
    room.rows = static_cast<std::size_t>(rows);
  }
  if (greedy) return room;
  const auto room_of = [&](std::size_t size) { return rows > 0 && size > 0 ? std::bit_ceil(size) : size; };
  room.biases = room_of(samples.biases.size());
  room.tokens = room_of(samples.tokens.size());
  return room;
}

void DeviceResults::WriteInputs() {
  count_ = block_.Take<std::int32_t>(1);
  sample_rows_ = block_.Take<gpu::DeviceSampleRow>(room_.rows);
  biases_ = block_.Take<gpu::TokenBias>(room_.biases);
  sample_tokens_ = block_.Take<std::int32_t>(room_.tokens);
  input_bytes_ = block_.used();
  sampled_ = block_.Take<gpu::SampledOnDevice>(room_.rows);
  *count_.host = static_cast<std::int32_t>(served_.size());
  for (std::size_t i = 0; i < served_.size(); ++i) {
    sample_rows_.host[i] = gpu::ToDeviceRow(samples_->rows[static_cast<std::size_t>(served_[i])], served_[i], -1);
  }
  std::ranges::transform(samples_->biases, biases_.host, [](const auto& bias) {
    return gpu::TokenBias{static_cast<std::int32_t>(bias.first), bias.second};
  });
  std::ranges::transform(samples_->tokens, sample_tokens_.host,
                         [](TokenId token) { return static_cast<std::int32_t>(token); });
}

void DeviceResults::Upload(DeviceStream& stream) const {
  if (room_.way == SampleRoom::Way::kKernel && room_.by_device_alone) block_.CopyToDevice(stream, input_bytes_);
}

// Also samples rows whose arrival failed: their logits may be anything, and the engine discards their tokens.
void DeviceResults::Sample(DeviceStream& stream, GpuRows logits, const StepOnDevice& step) {
  logits_ = logits;
  if (room_.way == SampleRoom::Way::kNothing) return;
  // Before the kernel, which changes rows in place.
  if (!others_.empty()) SampleOnHost(stream, others_);
  if (room_.way == SampleRoom::Way::kGreedy) {
    SampleGreedily(stream, step);
  } else if (!served_.empty()) {
    SampleOnDevice(stream);
  }
}

void DeviceResults::SampleGreedily(DeviceStream& stream, const StepOnDevice& step) {
  gpu::ArgmaxRows(stream, static_cast<std::int64_t>(room_.rows),
                  {.logits = logits_.wide,
                   .vocab = config_.vocab_size,
                   .stride = logits_.stride,
                   .rows = step.blocks.front().rows,
                   .tokens = greedy_.device});
  greedy_.CopyToHost(stream);
}

void DeviceResults::SampleOnDevice(DeviceStream& stream) {
  StepPlace<std::uint32_t> masks;
  if (!room_.by_device_alone) {
    masks = WriteMasks();
    block_.CopyToDevice(stream, input_bytes_);
    masks.CopyToDevice(stream);
  }
  gpu::SampleRows(stream, static_cast<std::int64_t>(room_.rows),
                  {.logits = logits_.wide,
                   .vocab = config_.vocab_size,
                   .stride = logits_.stride,
                   .samples = sample_rows_.device,
                   .rows = count_.device,
                   .biases = biases_.device,
                   .tokens = sample_tokens_.device,
                   .masks = masks.device,
                   .mask_words = MaskWords(),
                   .bias_logits = block_.Take<float>(room_.biases).device,
                   .token_logits = block_.Take<float>(room_.tokens).device,
                   .results = sampled_.device});
  sampled_.CopyToHost(stream);
}

// Writes the masks of the served rows, and which of them each row has. The device computes meanwhile, so that waiting
// for a mask costs nothing until then.
StepPlace<std::uint32_t> DeviceResults::WriteMasks() {
  const auto words = static_cast<std::size_t>(MaskWords());
  const auto masks = block_.Take<std::uint32_t>(samples_->constraints.size() * words);
  if (masks.count == 0) return masks;
  threads_->Run(static_cast<std::int64_t>(served_.size()), [&](std::int64_t i, int) {
    const std::int32_t index =
        samples_->rows[static_cast<std::size_t>(served_[static_cast<std::size_t>(i)])].constraint;
    if (index < 0) return;
    const auto constraint = static_cast<std::size_t>(index);
    const std::span<const std::uint32_t> allowed = samples_->constraints[constraint]->Allowed();
    if (allowed.empty()) return;
    std::uint32_t* const mask = masks.host + constraint * words;
    const std::size_t known = std::min(words, allowed.size());
    std::ranges::copy(allowed.first(known), mask);
    std::fill(mask + known, mask + words, 0u);
    sample_rows_.host[i].mask = index;
  });
  return masks;
}

void DeviceResults::SampleOnHost(DeviceStream& stream, std::span<const std::int32_t> rows) {
  ForRows(stream, logits_, rows, [&](std::int64_t row, std::span<const float> logits, std::size_t thread) {
    const auto index = static_cast<std::size_t>(row);
    const SampleRow& of = samples_->rows[index];
    result_->tokens[index] = loramux::Sample(logits, of.params, samples_->ContextOf(of), scratch_[thread]);
  });
}

void DeviceResults::Score(DeviceStream& stream, GpuRows logits, std::span<const ScoreRow> rows) {
  std::vector<ScoredToken>& scores = result_->scores;
  const std::size_t first = scores.size();
  scores.resize(first + rows.size());
  if (!std::ranges::all_of(rows, gpu::DeviceScores)) {
    rows_.resize(rows.size());
    std::iota(rows_.begin(), rows_.end(), 0);
    ForRows(stream, logits, rows_, [&](std::int64_t row, std::span<const float> of_row, std::size_t thread) {
      const auto index = static_cast<std::size_t>(row);
      scores[first + index] = loramux::Score(of_row, rows[index], scratch_[thread]);
    });
    return;
  }
  const auto places = block_.Take<gpu::DeviceScoreRow>(rows.size());
  const auto count = block_.Take<std::int32_t>(1);
  for (std::size_t i = 0; i < rows.size(); ++i)
    places.host[i] = gpu::ToDeviceRow(rows[i], static_cast<std::int32_t>(i));
  *count.host = static_cast<std::int32_t>(rows.size());
  places.CopyToDevice(stream);
  count.CopyToDevice(stream);
  const auto results = block_.Take<gpu::SampledOnDevice>(rows.size());
  gpu::ScoreRows(stream, static_cast<std::int64_t>(rows.size()),
                 {.logits = logits.wide,
                  .vocab = config_.vocab_size,
                  .stride = logits.stride,
                  .scores = places.device,
                  .rows = count.device,
                  .results = results.device});
  results.CopyToHost(stream);
  pending_scores_.push_back({rows, results, first});
}

Status DeviceResults::CopyLogits(DeviceStream& stream, GpuRows logits, std::int64_t rows, std::vector<float>& out) {
  out.resize(static_cast<std::size_t>(rows * config_.vocab_size));
  rows_.resize(static_cast<std::size_t>(rows));
  std::iota(rows_.begin(), rows_.end(), 0);
  ForRows(stream, logits, rows_, [&](std::int64_t row, std::span<const float> of_row, std::size_t) {
    std::ranges::copy(of_row, out.begin() + row * config_.vocab_size);
  });
  return std::exchange(status_, Status(Ok{}));
}

void DeviceResults::CompleteSamples(DeviceStream& stream) {
  if (room_.way == SampleRoom::Way::kGreedy) CompleteGreedy(stream);
  const std::size_t by_kernel = room_.way == SampleRoom::Way::kKernel ? served_.size() : 0;
  for (std::size_t i = 0; i < by_kernel; ++i) {
    const auto row = static_cast<std::size_t>(served_[i]);
    result_->tokens[row] =
        gpu::ToSampledToken(sampled_.host[i], samples_->rows[row].params.top_logprobs, config_.vocab_size);
  }
  for (const PendingScores& pending : pending_scores_) {
    for (std::size_t i = 0; i < pending.rows.size(); ++i) {
      result_->scores[pending.first + i] =
          gpu::ToScoredToken(pending.results.host[i], pending.rows[i].top_logprobs, config_.vocab_size);
    }
  }
}

// The kernel leaves rows with values that are not finite to the processor.
void DeviceResults::CompleteGreedy(DeviceStream& stream) {
  rows_.clear();
  for (std::size_t row = 0; row < result_->tokens.size(); ++row) {
    if (greedy_.host[row] < 0) {
      rows_.push_back(static_cast<std::int32_t>(row));
    } else {
      result_->tokens[row].id = static_cast<TokenId>(greedy_.host[row]);
    }
  }
  if (!rows_.empty()) SampleOnHost(stream, rows_);
}

Status DeviceResults::Finish(DeviceStream& stream) {
  if (Synchronize(stream)) CompleteSamples(stream);
  return std::exchange(status_, Status(Ok{}));
}

}  // namespace loramux
