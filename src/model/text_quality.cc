#include "model/text_quality.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "base/check.h"
#include "memory/page_geometry.h"
#include "tensor/aligned_buffer.h"

namespace loramux {
namespace {

// Tokens of one forward pass: their logits lie in the workspace at once.
constexpr std::int64_t kStep = 128;

// A window's keys and values.
class WindowPages {
 public:
  WindowPages(const ModelConfig& config, std::int64_t window)
      : layout_(KvLayoutOf(config, 16, DType::kF32)),
        memory_(layout_.PagesFor(window) * static_cast<std::int64_t>(layout_.PageBytes())),
        pages_(static_cast<std::size_t>(layout_.PagesFor(window))) {
    std::iota(pages_.begin(), pages_.end(), 0u);
  }

  const KvLayout& layout() const { return layout_; }
  PageArena arena() { return {memory_.data(), layout_.PageBytes()}; }
  std::span<const std::uint32_t> pages() const { return pages_; }

 private:
  KvLayout layout_;
  AlignedBuffer<std::byte> memory_;
  std::vector<std::uint32_t> pages_;
};

// log(sum(exp(logits))).
double LogSum(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return static_cast<double>(largest) + std::log(sum);
}

std::span<const float> RowOf(const TextLogits& text, std::size_t row) {
  const auto vocab = static_cast<std::size_t>(text.vocab);
  return std::span(text.logits).subspan(row * vocab, vocab);
}

double Divergence(std::span<const float> before, std::span<const float> after) {
  const double sum_before = LogSum(before), sum_after = LogSum(after);
  double divergence = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double log_p = static_cast<double>(before[i]) - sum_before, log_q = static_cast<double>(after[i]) - sum_after;
    divergence += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(0.0, divergence);
}

double Perplexity(const TextLogits& text) {
  double sum = 0;
  for (std::size_t row = 0; row < text.targets.size(); ++row) {
    const std::span<const float> logits = RowOf(text, row);
    sum += LogSum(logits) - static_cast<double>(logits[static_cast<std::size_t>(text.targets[row])]);
  }
  return std::exp(sum / static_cast<double>(text.targets.size()));
}

std::size_t Top(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

TextLogits ComputeTextLogits(Model& model, std::span<const TokenId> tokens, std::int64_t window, int threads,
                             const Progress& progress) {
  CHECK_GE(window, 2);
  ThreadPool pool(threads);
  const KernelContext context = {Backend::kCpu, &pool};
  WindowPages pages(model.config(), window);
  StepBatch step;
  StepResult result;
  TextLogits out{.vocab = model.config().vocab_size};
  const auto total = static_cast<std::int64_t>(tokens.size());
  for (std::int64_t begin = 0; begin < total; begin += window) {
    const std::int64_t end = std::min(total, begin + window);
    for (std::int64_t at = begin; at < end - 1; at += kStep) {
      const std::int64_t count = std::min(kStep, end - 1 - at);
      step.Clear();
      step.Add({}, tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), at - begin,
               pages.pages())
          .logit_rows = static_cast<std::int32_t>(count);
      model.Forward({context, pages.layout(), pages.arena()}, step, {}, result);
      out.logits.insert(out.logits.end(), model.logits().begin(), model.logits().end());
      out.targets.insert(out.targets.end(), tokens.begin() + at + 1, tokens.begin() + at + 1 + count);
      if (progress) progress(at + count, total);
    }
  }
  return out;
}

TextQuality CompareTexts(const TextLogits& before, const TextLogits& after) {
  CHECK(before.targets == after.targets);
  CHECK_EQ(before.vocab, after.vocab);
  TextQuality out;
  if (before.targets.empty()) return out;
  out.perplexity_before = Perplexity(before);
  out.perplexity_after = Perplexity(after);
  std::vector<double> divergences(before.targets.size());
  std::size_t same = 0;
  for (std::size_t row = 0; row < divergences.size(); ++row) {
    divergences[row] = Divergence(RowOf(before, row), RowOf(after, row));
    same += Top(RowOf(before, row)) == Top(RowOf(after, row)) ? 1 : 0;
  }
  const auto count = static_cast<double>(divergences.size());
  out.mean_divergence = std::accumulate(divergences.begin(), divergences.end(), 0.0) / count;
  std::sort(divergences.begin(), divergences.end());
  out.high_divergence = divergences[(divergences.size() - 1) * 99 / 100];
  out.same_top = static_cast<double>(same) / count;
  return out;
}

}  // namespace loramux
