#include "model/device_results.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/ceil_divide.h"
#include "base/check.h"

namespace loramux {
namespace {

// Whether the token is the first of the largest logits, and nothing else is asked for.
bool IsPlainlyGreedy(const SampleRow& row) {
  return row.temperature < SamplingParams::kGreedyBelow && row.top_logprobs < 0 && row.constraint < 0 &&
         row.bias.size == 0 && row.banned.size == 0 && row.presence_penalty == 0 && row.frequency_penalty == 0 &&
         row.repetition_penalty == 1;
}

constexpr auto kAlignment = static_cast<std::int64_t>(MirroredBlock::kAlignment);

// Of an array of at most one block.
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

// Of a step that samples each row, half of them with a mask.
std::int64_t DeviceResults::BytesFor(std::int64_t logit_rows) const {
  return SampleBytes(logit_rows, logit_rows / 2 * MaskWords(), 0, 0);
}

Status DeviceResults::Reserve(std::int64_t logit_rows, int threads) {
  if (threads_ == nullptr || threads_->size() < threads) {
    threads_ = std::make_unique<ThreadPool>(threads);
    scratch_.resize(static_cast<std::size_t>(threads));
    sampling_.resize(static_cast<std::size_t>(threads));
  }
  if (block_.bytes() == 0) RETURN_IF_ERROR(block_.Begin(device_, "what a step samples", BytesFor(logit_rows)));
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

Status DeviceResults::Prepare(const SampleBatch* samples, std::span<const ScoreRow> scores) {
  greedy_ = nullptr;
  sampled_ = {};
  pending_scores_.clear();
  std::int64_t bytes = 0;
  if (samples != nullptr) {
    bytes += SampleBytes(static_cast<std::int64_t>(samples->rows.size()),
                         static_cast<std::int64_t>(samples->constraints.size()) * MaskWords(),
                         static_cast<std::int64_t>(samples->biases.size()),
                         static_cast<std::int64_t>(samples->tokens.size()));
  }
  const auto count = static_cast<std::int64_t>(scores.size());
  const std::int64_t blocks = CeilDivide(count, LogitBlock::kMaxScored);
  bytes += ArrayBytes<gpu::DeviceScoreRow>(count) + ArrayBytes<gpu::SampledOnDevice>(count) + 4 * blocks * kAlignment;
  return block_.Begin(device_, "what a step samples", bytes);
}

// Also samples rows whose arrival failed: their logits may be anything, and the engine discards their tokens.
void DeviceResults::Sample(DeviceStream& stream, GpuRows logits, const StepOnDevice& step, const SampleBatch& samples,
                           bool logits_stay, std::vector<SampledToken>& tokens) {
  tokens.clear();
  tokens.resize(samples.rows.size());
  if (tokens.empty()) return;
  logits_ = logits;
  samples_ = &samples;
  tokens_ = &tokens;
  served_.clear();
  others_.clear();
  for (std::size_t row = 0; row < samples.rows.size(); ++row) {
    (gpu::DeviceSamples(samples.rows[row]) ? served_ : others_).push_back(static_cast<std::int32_t>(row));
  }
  // Before the kernel, which changes rows in place.
  if (!others_.empty()) SampleOnHost(stream, others_);
  if (logits_stay && std::ranges::all_of(samples.rows, IsPlainlyGreedy)) {
    SampleGreedily(stream, step);
  } else if (!served_.empty()) {
    SampleOnDevice(stream);
  }
}

void DeviceResults::SampleGreedily(DeviceStream& stream, const StepOnDevice& step) {
  gpu::ArgmaxRows(stream, static_cast<std::int64_t>(samples_->rows.size()),
                  {.logits = logits_.wide,
                   .vocab = config_.vocab_size,
                   .stride = logits_.stride,
                   .rows = step.blocks.front().rows,
                   .tokens = step.sampled.device});
  step.sampled.CopyToHost(stream);
  greedy_ = step.sampled.host;
}

void DeviceResults::SampleOnDevice(DeviceStream& stream) {
  const auto rows = block_.Take<gpu::DeviceSampleRow>(served_.size());
  const auto count = block_.Take<std::int32_t>(1);
  const auto biases = block_.Take<gpu::TokenBias>(samples_->biases.size());
  const auto tokens = block_.Take<std::int32_t>(samples_->tokens.size());
  *count.host = static_cast<std::int32_t>(served_.size());
  for (std::size_t i = 0; i < biases.count; ++i) {
    const auto& [token, bias] = samples_->biases[i];
    biases.host[i] = {static_cast<std::int32_t>(token), bias};
  }
  std::ranges::transform(samples_->tokens, tokens.host, [](TokenId token) { return static_cast<std::int32_t>(token); });
  const StepPlace<std::uint32_t> masks = WriteMasks();
  for (std::size_t i = 0; i < served_.size(); ++i) {
    rows.host[i] = gpu::ToDeviceRow(samples_->rows[static_cast<std::size_t>(served_[i])], served_[i], masked_[i]);
  }
  rows.CopyToDevice(stream);
  count.CopyToDevice(stream);
  biases.CopyToDevice(stream);
  tokens.CopyToDevice(stream);
  masks.CopyToDevice(stream);
  sampled_ = block_.Take<gpu::SampledOnDevice>(served_.size());
  gpu::SampleRows(stream, static_cast<std::int64_t>(served_.size()),
                  {.logits = logits_.wide,
                   .vocab = config_.vocab_size,
                   .stride = logits_.stride,
                   .samples = rows.device,
                   .rows = count.device,
                   .biases = biases.device,
                   .tokens = tokens.device,
                   .masks = masks.device,
                   .mask_words = MaskWords(),
                   .bias_logits = block_.Take<float>(biases.count).device,
                   .token_logits = block_.Take<float>(tokens.count).device,
                   .results = sampled_.device});
  sampled_.CopyToHost(stream);
}

// Writes the masks of the served rows, and into masked_ which of them each row has; -1: none. The device computes
// meanwhile, so that waiting for a mask costs nothing until then.
StepPlace<std::uint32_t> DeviceResults::WriteMasks() {
  masked_.assign(served_.size(), -1);
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
    masked_[static_cast<std::size_t>(i)] = index;
  });
  return masks;
}

void DeviceResults::SampleOnHost(DeviceStream& stream, std::span<const std::int32_t> rows) {
  ForRows(stream, logits_, rows, [&](std::int64_t row, std::span<const float> logits, std::size_t thread) {
    const auto index = static_cast<std::size_t>(row);
    SamplerContext context;
    samples_->Unpack(index, sampling_[thread], context);
    (*tokens_)[index] = loramux::Sample(logits, sampling_[thread], context, scratch_[thread]);
  });
}

void DeviceResults::Score(DeviceStream& stream, GpuRows logits, std::span<const ScoreRow> rows,
                          std::vector<ScoredToken>& scores) {
  scores_ = &scores;
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
  if (greedy_ != nullptr) CompleteGreedy(stream);
  for (std::size_t i = 0; i < sampled_.count; ++i) {
    const auto row = static_cast<std::size_t>(served_[i]);
    (*tokens_)[row] = gpu::ToSampledToken(sampled_.host[i], samples_->rows[row].top_logprobs, config_.vocab_size);
  }
  for (const PendingScores& pending : pending_scores_) {
    for (std::size_t i = 0; i < pending.rows.size(); ++i) {
      (*scores_)[pending.first + i] =
          gpu::ToScoredToken(pending.results.host[i], pending.rows[i].top_logprobs, config_.vocab_size);
    }
  }
}

// The kernel leaves rows with values that are not finite to the processor.
void DeviceResults::CompleteGreedy(DeviceStream& stream) {
  rows_.clear();
  for (std::size_t row = 0; row < tokens_->size(); ++row) {
    if (greedy_[row] < 0) {
      rows_.push_back(static_cast<std::int32_t>(row));
    } else {
      (*tokens_)[row].id = static_cast<TokenId>(greedy_[row]);
    }
  }
  if (!rows_.empty()) SampleOnHost(stream, rows_);
}

Status DeviceResults::Finish(DeviceStream& stream) {
  if (Synchronize(stream)) CompleteSamples(stream);
  return std::exchange(status_, Status(Ok{}));
}

}  // namespace loramux
