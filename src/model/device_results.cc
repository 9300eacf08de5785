#include "model/device_results.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "gpu/kernels/sampling.h"

namespace loramux {
namespace {

// Whether the token is the first of the largest logits, and nothing else is asked for.
bool IsPlainlyGreedy(const SampleRow& row) {
  return row.temperature < SamplingParams::kGreedyBelow && row.top_logprobs < 0 && row.constraint < 0 &&
         row.bias.size == 0 && row.banned.size == 0 && row.presence_penalty == 0 && row.frequency_penalty == 0 &&
         row.repetition_penalty == 1;
}

}  // namespace

DeviceResults::DeviceResults(Device& device, const ModelConfig& config) : device_(device), config_(config) {}

Status DeviceResults::Reserve(std::int64_t logit_rows, int threads) {
  if (threads_ == nullptr || threads_->size() < threads) {
    threads_ = std::make_unique<ThreadPool>(threads);
    scratch_.resize(static_cast<std::size_t>(threads));
    sampling_.resize(static_cast<std::size_t>(threads));
  }
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

// Also samples rows whose arrival failed: their logits may be anything, and the engine discards their tokens.
void DeviceResults::Sample(DeviceStream& stream, GpuRows logits, const StepOnDevice& step, const SampleBatch& samples,
                           bool now, std::vector<SampledToken>& tokens) {
  tokens.clear();
  tokens.resize(samples.rows.size());
  logits_ = logits;
  samples_ = &samples;
  tokens_ = &tokens;
  greedy_.clear();
  others_.clear();
  for (std::size_t row = 0; row < samples.rows.size(); ++row) {
    (IsPlainlyGreedy(samples.rows[row]) ? greedy_ : others_).push_back(static_cast<std::int32_t>(row));
  }
  if (!greedy_.empty()) {
    gpu::ArgmaxRows(stream, static_cast<std::int64_t>(samples.rows.size()),
                    {.logits = logits.wide,
                     .vocab = config_.vocab_size,
                     .stride = logits.stride,
                     .rows = step.blocks.front().rows,
                     .tokens = step.sampled.device});
    stream.CopyToHost(step.sampled.host, step.sampled.device, step.sampled.count * sizeof(std::int32_t));
    sampled_ = step.sampled.host;
  }
  if (!others_.empty()) SampleOnHost(stream, others_);
  if (now) CompleteGreedy(stream);
}

void DeviceResults::SampleOnHost(DeviceStream& stream, std::span<const std::int32_t> rows) {
  ForRows(stream, logits_, rows, [&](std::int64_t row, std::span<const float> logits, std::size_t thread) {
    const auto index = static_cast<std::size_t>(row);
    SamplerContext context;
    samples_->Unpack(index, sampling_[thread], context);
    (*tokens_)[index] = loramux::Sample(logits, sampling_[thread], context, scratch_[thread]);
  });
}

// The kernel leaves rows with values that are not finite to the processor.
void DeviceResults::CompleteGreedy(DeviceStream& stream) {
  if (greedy_.empty() || !Synchronize(stream)) return;
  rows_.clear();
  for (const std::int32_t row : greedy_) {
    const std::int32_t token = sampled_[row];
    if (token < 0) {
      rows_.push_back(row);
    } else {
      (*tokens_)[static_cast<std::size_t>(row)].id = static_cast<TokenId>(token);
    }
  }
  greedy_.clear();
  if (!rows_.empty()) SampleOnHost(stream, rows_);
}

void DeviceResults::Score(DeviceStream& stream, GpuRows logits, std::span<const ScoreRow> rows,
                          std::vector<ScoredToken>& scores) {
  const std::size_t first = scores.size();
  scores.resize(first + rows.size());
  rows_.resize(rows.size());
  std::iota(rows_.begin(), rows_.end(), 0);
  ForRows(stream, logits, rows_, [&](std::int64_t row, std::span<const float> of_row, std::size_t thread) {
    const auto index = static_cast<std::size_t>(row);
    scores[first + index] = loramux::Score(of_row, rows[index], scratch_[thread]);
  });
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

Status DeviceResults::Finish(DeviceStream& stream) {
  CompleteGreedy(stream);
  Synchronize(stream);
  return std::exchange(status_, Status(Ok{}));
}

}  // namespace loramux
