// What a worker does for the device: it looks for requests in slots and writes the answers. Plain functions over shared
// memory, for threads (assist_pool.h) and for processes of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "assist/assist_layout.h"
#include "kernels/lora.h"
#include "memory/layer_progress.h"
#include "tensor/aligned_buffer.h"

namespace loramux {

// A slot in a worker's hands for one step.
struct AssistJob {
  AssistSlot slot;
  std::uint32_t first_ticket = 0;             // ticket of the step's first request
  std::int64_t rows = 0;                      // rows of the slot in the layers' groups
  std::vector<std::int32_t> head_rows;        // by block of logits
  std::span<const LoraWeights> modules;       // as LoraView::modules
  std::shared_ptr<const void> owner;          // keeps `modules` alive
  std::shared_ptr<const LayerProgress> host;  // layers of the copy in host memory that arrive; null: it is whole
  std::uint32_t answered = 0;                 // the last ticket; 0: none
};

// The ticket of a request that the job has not answered yet; 0: there is none.
std::uint32_t FindRequest(const AssistJob& job);

// Rows that a request means.
std::int64_t RowsOfRequest(const AssistLayout& layout, std::uint32_t ticket, const AssistJob& job);

// Computes the answer, writes it to the slot and then its ticket. Waits for the layer, if it arrives in host memory.
// `scratch` grows to what the largest request needs.
void AnswerRequest(const AssistLayout& layout, std::uint32_t ticket, AssistJob& job, AlignedBuffer<float>& scratch);

// Waits between two looks at slots; `idle` counts the looks since the last request. At first it keeps the core, then it
// lets other threads run, then it sleeps: a device that waits for nothing of this worker may take long.
void PauseBetweenLooks(std::int64_t idle);

}  // namespace loramux
