#include "assist/assist_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "kernels/lora_sums.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace loramux {
namespace {

// A look at a few slots takes about 0.1 us: 50 us with the core, longer than the gap between two groups of a device;
// then 2 ms or more beside others.
constexpr std::int64_t kLooksWithCore = 500, kLooksBesideOthers = 5000;
constexpr std::chrono::microseconds kSleep{50};

std::uint32_t LoadWord(std::uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
void StoreWord(std::uint32_t& word, std::uint32_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

std::uint32_t FindRequest(const AssistJob& job) {
  const std::uint32_t ticket = LoadWord(job.slot.words->request);
  return ticket == job.answered ? 0 : ticket;
}

std::int64_t RowsOfRequest(const AssistLayout& layout, std::uint32_t ticket, const AssistJob& job) {
  const std::uint32_t group = ticket - job.first_ticket;
  if (layout.RequestOf(group).layer < layout.layers) return job.rows;
  const std::size_t block = static_cast<std::size_t>(layout.BlockOf(group));
  CHECK_LT(block, job.head_rows.size());
  return job.head_rows[block];
}

void AnswerRequest(const AssistLayout& layout, std::uint32_t ticket, AssistJob& job, AlignedBuffer<float>& scratch) {
  job.answered = ticket;
  gpu::AssistWords& words = *job.slot.words;
  const AssistRequest request = layout.RequestOf(ticket - job.first_ticket);
  if (job.host != nullptr && !job.host->Wait(std::min(request.layer, layout.layers - 1))) {
    return StoreWord(words.answered, ticket | gpu::kAssistNoAnswer);
  }
  const std::int64_t in = layout.Shape(request.first).in;
  const std::int64_t rows = RowsOfRequest(layout, ticket, job);
  LoraSumsOutput outputs[gpu::kMaxAssistSlices];
  std::size_t count = 0;
  std::int64_t column = 0, most_rank = 0;
  const std::int64_t width = request.layer < layout.layers ? layout.Width(AssistGroupOf(request.first))
                                                           : AssistLayout::SliceWidth(request.out);
  for (int i = 0; i < request.targets; ++i) {
    const LoraTarget target = AssistLayout::Plus(request.first, i);
    const LoraWeights& weights = job.modules[layout.ModuleOf(request.layer, target)];
    const std::int64_t out = request.out > 0 ? request.out : layout.Shape(target).out;
    words.scale[i] = weights.rank > 0 ? weights.scale : 0;
    words.gains[i] = weights.gains == nullptr ? nullptr : weights.gains + request.first_out;
    words.shifts[i] = weights.shifts == nullptr ? nullptr : weights.shifts + request.first_out;
    if (weights.rank > 0) outputs[count++] = {weights, request.first_out, out, job.slot.answer + column, width};
    most_rank = std::max<std::int64_t>(most_rank, weights.rank);
    column += AssistLayout::SliceWidth(out);
  }
  scratch.Reserve(LoraSumsFloats(rows, in, most_rank));
  thread_local ThreadPool alone(1);
  LoraSums({Backend::kCpu, &alone}, {.dtype = layout.dtype,
                                     .x = job.slot.x,
                                     .x_stride = in,
                                     .rows = rows,
                                     .in = in,
                                     .outputs = {outputs, count},
                                     .fused = layout.fused,
                                     .workspace = scratch.data()});
  StoreWord(words.answered, ticket);
}

void PauseBetweenLooks(std::int64_t idle) {
  if (idle < kLooksWithCore) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  } else if (idle < kLooksBesideOthers) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

}  // namespace loramux
