// Kernels for segments whose LoRA the processor computes, because their adapter is not on the device yet
// (assist/assist_pool.h has the other side). Device and processor exchange activations and answers through slots in
// pinned memory and words that both read; the host waits for nothing within a step.
//
// A layer of a segment is computed wholly by one side. DecideLayer chooses at the layer's begin, and everything else of
// the layer reads its choice, the segment's gate.
#pragma once

#include <cstdint>

#include "gpu/device.h"

namespace loramux::gpu {

// Rows of a piece at most: adjacent rows of one segment, with one slot.
inline constexpr std::int32_t kAssistPieceRows = 16;
// Linear layers that share an input at most.
inline constexpr int kMaxAssistSlices = 3;

// Tickets number the requests of a step: first_ticket + group. They never repeat while a slot is in use, and are never
// 0. A word is 0 or a ticket; an answer has kAssistNoAnswer too if the processor cannot compute it.
inline constexpr std::uint32_t kAssistNoAnswer = 0x8000'0000u;

// The words of a slot, in pinned memory. `request` is the device's, `answered` and what follows it is the processor's;
// each has a cache line. The host clears all before a step that uses the slot.
struct AssistWords {
  alignas(64) std::uint32_t request;   // the ticket of the activations that lie in the slot
  alignas(64) std::uint32_t answered;  // the ticket whose answer lies in the slot
  float scale[kMaxAssistSlices];       // scale of each slice of that answer; 0: there is nothing to add
  // What is multiplied with and added to the slices' outputs (LoraModule), in pinned memory; null both: nothing.
  const float* gains[kMaxAssistSlices];
  const float* shifts[kMaxAssistSlices];
  alignas(64) std::uint32_t failed;  // the first ticket of the step in which an answer failed to come
};

// Gates: which side computes a layer of a segment.
inline constexpr std::uint32_t kAssistOnDevice = 0, kAssistOnHost = 1;

// A segment of the step.
struct AssistSegment {
  const std::uint32_t* arrived;  // layers of the adapter that are on the device (PublishLayers); null: none ever will
  const std::uint8_t* targets;   // [layers + 1]: bit t is set if the adapter changes LoraTarget t; the last is lm_head
};

// A piece and its slot.
struct AssistPiece {
  void* x;        // [kAssistPieceRows][in], contiguous; elements as the activations
  float* answer;  // [kAssistPieceRows][width]: the slices of a group side by side
  AssistWords* words;
  std::int32_t first_row, rows;  // rows of the batch, or of the block of logits
  std::int32_t segment;          // index in AssistWork::segments
  std::int32_t unused;
};

// The assisted part of a step. Everything that pointers name is in device memory.
struct AssistWork {
  const AssistPiece* pieces;
  const AssistSegment* segments;
  std::uint32_t* gates;  // [segments]
  const std::int32_t* piece_count;
  const std::int32_t* segment_count;
  const std::uint32_t* first_ticket;
  std::int64_t timeout_ns;                // time that AddAnswers waits for an answer
  std::int32_t max_pieces, max_segments;  // bound the counts, and size the grids
};

// gate = kAssistOnDevice if at least `needed` layers have arrived, else kAssistOnHost. What the copies before
// PublishLayers wrote is visible to later kernels of the stream.
struct DecideLayerArguments {
  AssistWork work;
  std::uint32_t needed;  // layer + 1; for lm_head: the number of layers
};

// For pieces whose gate says host and whose adapter changes one of the linear layers: copies the rows of x to the slot
// (if x is not null; else the slot has them from an earlier group) and requests the answer. Instance: the type of x.
// A piece that failed in this step is left alone.
struct SendActivationsArguments {
  AssistWork work;
  std::uint32_t group;  // ticket - first ticket
  std::int32_t layer;   // index in AssistSegment::targets
  std::uint32_t mask;   // bits of the targets of the group
  const void* x;        // [rows, in], rows x_stride apart; fastest if 16-byte aligned with x_stride a multiple of 8
  std::int64_t x_stride, in;
};

// For the same pieces: waits for the answer and adds it, y[row, o] += scale * answer[row][o], then y[row, o] = gains[o]
// * y[row, o] + shifts[o] where there are vectors, as LoraExpand would: everything is f32, with one multiply-add each.
// If no answer comes in time, or the processor has none, y stays as it is, and AssistWords::failed is set. Then later
// groups of this piece do not wait.
struct AddAnswersArguments {
  AssistWork work;
  std::uint32_t group;
  std::int32_t layer;
  std::uint32_t mask;
  std::int32_t slices;
  std::int64_t width;                    // floats from one row of answers to the next; a multiple of 4
  std::int64_t first[kMaxAssistSlices];  // column of the answers at which a slice begins; a multiple of 4, ascending
  std::int32_t scale[kMaxAssistSlices];  // index in AssistWords::scale, gains and shifts
  float* y[kMaxAssistSlices];            // [rows, out]
  std::int64_t y_stride[kMaxAssistSlices], out[kMaxAssistSlices];
};

// Says that the first `layers` layers of a load are on the device. On the stream that copies them, behind the copies.
struct PublishLayersArguments {
  std::uint32_t* arrived;  // in device memory; 0 before the load's first layer
  std::uint32_t layers;
};

void DecideLayer(DeviceStream& stream, const DecideLayerArguments& arguments);
void SendActivations(DeviceStream& stream, DType x_dtype, const SendActivationsArguments& arguments);
void AddAnswers(DeviceStream& stream, const AddAnswersArguments& arguments);
void PublishLayers(DeviceStream& stream, const PublishLayersArguments& arguments);

}  // namespace loramux::gpu
