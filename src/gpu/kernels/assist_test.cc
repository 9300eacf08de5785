#include "gpu/kernels/assist.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"

namespace loramux::gpu::assist_test {
namespace {

constexpr std::uint32_t kFirstTicket = 700;
constexpr std::int64_t kMinute = 60'000'000'000;

// Segments with one piece each, whose slots the test fills in the processor's place.
struct SlotWorld {
  SlotWorld(const std::vector<std::int32_t>& rows, std::int64_t x_bytes, std::int64_t width)
      : device(DeviceForTest()), arrays(device) {
    const std::int64_t answer_bytes = kAssistPieceRows * width * 4;
    const std::int64_t slot = (x_bytes + 63) / 64 * 64 + (answer_bytes + 63) / 64 * 64 + 256;
    memory = device.AllocatePinned("slots", slot * static_cast<std::int64_t>(rows.size())).value();
    std::memset(memory->base(), 0, static_cast<std::size_t>(memory->size()));
    std::int32_t row = 0;
    std::byte* at = memory->base();
    for (std::size_t i = 0; i < rows.size(); ++i, at += slot) {
      AssistPiece piece = {};
      piece.words = reinterpret_cast<AssistWords*>(at);
      piece.answer = reinterpret_cast<float*>(at + 256);
      piece.x = at + 256 + (answer_bytes + 63) / 64 * 64;
      piece.first_row = row;
      piece.rows = rows[i];
      piece.segment = static_cast<std::int32_t>(i);
      pieces.push_back(piece);
      row += rows[i];
    }
  }

  // `bits`: the targets of each segment in layer 0. Segments in `on_device` have that gate.
  AssistWork Work(const std::vector<std::uint8_t>& bits, const std::vector<std::uint32_t>& gate_values,
                  std::int64_t timeout_ns = kMinute) {
    std::vector<AssistSegment> segments;
    const std::uint8_t* targets = arrays.Upload(bits);
    for (std::size_t i = 0; i < bits.size(); ++i) segments.push_back({nullptr, targets + i});
    const auto count = static_cast<std::int32_t>(pieces.size());
    return {.pieces = arrays.Upload(pieces),
            .segments = arrays.Upload(segments),
            .gates = arrays.Upload(gate_values),
            .piece_count = arrays.Upload<std::int32_t>({count}),
            .segment_count = arrays.Upload<std::int32_t>({count}),
            .first_ticket = arrays.Upload<std::uint32_t>({kFirstTicket}),
            .timeout_ns = timeout_ns,
            .max_pieces = count + 3,  // grids are larger than the work
            .max_segments = count + 3};
  }
  static std::uint32_t Load(std::uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }
  static void Answer(AssistWords& words, std::uint32_t value) {
    std::atomic_ref(words.answered).store(value, std::memory_order_release);
  }

  Device& device;
  DeviceArrays arrays;
  std::unique_ptr<Arena> memory;
  std::vector<AssistPiece> pieces;
};

TEST(Assist, GatesFollowTheLayersThatArrived) {
  DeviceArrays arrays(DeviceForTest());
  std::vector<AssistSegment> segments;
  std::vector<std::uint32_t> expected;
  std::uint32_t* arrived = arrays.Upload(std::vector<std::uint32_t>(40, 0));
  for (std::uint32_t i = 0; i < 40; ++i) {
    segments.push_back({i % 7 == 6 ? nullptr : arrived + i, nullptr});
    expected.push_back(i % 7 != 6 && i >= 5 ? kAssistOnDevice : kAssistOnHost);
    PublishLayers(arrays.stream(), {arrived + i, i});
  }
  AssistWork work = {};
  work.segments = arrays.Upload(segments);
  work.gates = arrays.Upload(std::vector<std::uint32_t>(41, 9));
  work.segment_count = arrays.Upload<std::int32_t>({40});
  work.max_segments = 70;
  DecideLayer(arrays.stream(), {work, 5});
  expected.push_back(9);
  EXPECT_EQ(arrays.Download(work.gates, 41), expected);
}

template <typename Element>
void SendsRows(DType dtype, std::int64_t in, std::int64_t stride, std::int64_t offset) {
  SlotWorld world({3, 16, 1, 2}, kAssistPieceRows * in * static_cast<std::int64_t>(sizeof(Element)), 4);
  Prng prng(static_cast<std::uint64_t>(in));
  std::vector<Element> x(static_cast<std::size_t>(22 * stride + offset));
  for (Element& value : x) value = static_cast<Element>(prng.Next());
  const AssistWork work = world.Work({1, 2, 3, 2}, {kAssistOnHost, kAssistOnHost, kAssistOnDevice, kAssistOnHost});
  world.pieces[3].words->failed = kFirstTicket;
  SendActivations(world.arrays.stream(), dtype,
                  {.work = work,
                   .group = 5,
                   .layer = 0,
                   .mask = 2,
                   .x = world.arrays.Upload(x) + offset,
                   .x_stride = stride,
                   .in = in});
  world.arrays.Synchronize();
  // Only the second changes the target, is the host's, and has not failed.
  for (std::size_t i = 0; i < 4; ++i) {
    AssistPiece& piece = world.pieces[i];
    EXPECT_EQ(SlotWorld::Load(piece.words->request), i == 1 ? kFirstTicket + 5 : 0) << i;
    if (i != 1) continue;
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      const Element* expected = x.data() + offset + (piece.first_row + row) * stride;
      EXPECT_EQ(std::memcmp(static_cast<Element*>(piece.x) + row * in, expected,
                            static_cast<std::size_t>(in) * sizeof(Element)),
                0)
          << row;
    }
  }
  // Without x: the request alone.
  SendActivations(world.arrays.stream(), dtype, {.work = work, .group = 6, .layer = 0, .mask = 2, .in = in});
  world.arrays.Synchronize();
  EXPECT_EQ(SlotWorld::Load(world.pieces[1].words->request), kFirstTicket + 6);
}

TEST(Assist, ActivationsReachTheSlot) {
  for (const auto& [in, stride, offset] : {std::tuple(64, 72, 0), std::tuple(40, 41, 0), std::tuple(7, 9, 1)}) {
    SendsRows<std::uint32_t>(DType::kF32, in, stride, offset);
    SendsRows<std::uint16_t>(DType::kBF16, in, stride, offset);
    SendsRows<std::uint16_t>(DType::kF16, in, stride, offset);
  }
}

// Three slices, one of them left out by a scale of 0, with more columns than a block has.
TEST(Assist, AnswersAreAddedOnceTheyCome) {
  constexpr std::int64_t kOut[] = {5000, 9, 130}, kFirst[] = {0, 5000, 5012}, kWidth = 5144;
  SlotWorld world({2, 5}, 64, kWidth);
  Prng prng(3);
  std::vector<float> y(7 * 6000);
  for (float& value : y) value = static_cast<float>(prng.NextDouble() - 0.5);
  for (AssistPiece& piece : world.pieces) {
    for (std::int64_t i = 0; i < piece.rows * kWidth; ++i) {
      piece.answer[i] = static_cast<float>(prng.NextDouble() - 0.5);
    }
    piece.words->scale[0] = 0.5f;
    piece.words->scale[2] = -1.25f;
  }
  float* on_device = world.arrays.Upload(y);
  AddAnswersArguments add = {.work = world.Work({7, 7}, {kAssistOnHost, kAssistOnHost}),
                             .group = 2,
                             .layer = 0,
                             .mask = 7,
                             .slices = 3,
                             .width = kWidth};
  for (int slice = 0; slice < 3; ++slice) {
    add.first[slice] = kFirst[slice];
    add.scale[slice] = slice;
    add.y[slice] = on_device + kFirst[slice] + slice;  // no longer aligned
    add.y_stride[slice] = 6000;
    add.out[slice] = kOut[slice];
  }
  AddAnswers(world.arrays.stream(), add);
  SlotWorld::Answer(*world.pieces[1].words, kFirstTicket + 2);
  std::this_thread::yield();
  SlotWorld::Answer(*world.pieces[0].words, kFirstTicket + 1);  // the answer to an earlier group: it must be ignored
  SlotWorld::Answer(*world.pieces[0].words, kFirstTicket + 2);
  const std::vector<float> found = world.arrays.Download(on_device, y.size());
  const bool fused = world.device.properties().major > 0;
  for (const AssistPiece& piece : world.pieces) {
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      for (const int slice : {0, 2}) {
        for (std::int64_t o = 0; o < kOut[slice]; ++o) {
          float& value = y[static_cast<std::size_t>((piece.first_row + row) * 6000 + kFirst[slice] + slice + o)];
          const float sum = piece.answer[row * kWidth + kFirst[slice] + o], scale = piece.words->scale[slice];
          value = fused ? std::fma(scale, sum, value) : value + scale * sum;
        }
      }
    }
  }
  EXPECT_EQ(found, y);
  EXPECT_EQ(world.pieces[0].words->failed, 0u);
}

// An answer that does not come, and one that cannot be given: y stays, and the next group does not wait.
TEST(Assist, MissingAnswersFailTheirPieceAlone) {
  SlotWorld world({1, 1, 1}, 64, 4);
  for (AssistPiece& piece : world.pieces) {
    std::fill_n(piece.answer, 4, 2.0f);
    piece.words->scale[0] = 1;
  }
  float* y = world.arrays.Upload(std::vector<float>(12, 1));
  const std::vector<std::uint32_t> all_host(3, kAssistOnHost);
  AddAnswersArguments add = {
      .work = world.Work({1, 1, 1}, all_host, 20'000'000), .group = 4, .layer = 0, .mask = 1, .slices = 1, .width = 4};
  add.y[0] = y;
  add.y_stride[0] = add.out[0] = 4;
  SlotWorld::Answer(*world.pieces[0].words, kFirstTicket + 3);  // late
  SlotWorld::Answer(*world.pieces[1].words, kFirstTicket + 4);
  SlotWorld::Answer(*world.pieces[2].words, (kFirstTicket + 4) | kAssistNoAnswer);
  AddAnswers(world.arrays.stream(), add);
  EXPECT_EQ(world.arrays.Download(y, 12), (std::vector<float>{1, 1, 1, 1, 3, 3, 3, 3, 1, 1, 1, 1}));
  EXPECT_EQ(world.pieces[0].words->failed, kFirstTicket);
  EXPECT_EQ(world.pieces[1].words->failed, 0u);
  EXPECT_EQ(world.pieces[2].words->failed, kFirstTicket);
  add.work.timeout_ns = 10 * kMinute;
  add.group = 5;
  for (AssistPiece& piece : world.pieces) SlotWorld::Answer(*piece.words, kFirstTicket + 5);  // the first: too late
  AddAnswers(world.arrays.stream(), add);
  EXPECT_EQ(world.arrays.Download(y, 12), (std::vector<float>{1, 1, 1, 1, 5, 5, 5, 5, 1, 1, 1, 1}));
}

// Flags order streams as events do: what was written before one is there after it.
TEST(Assist, FlagsOrderStreams) {
  Device& device = DeviceForTest();
  SlotWorld world({1}, 256 * 4, 4);
  const auto other = device.CreateStream().value();
  std::vector<float> x(256, 3);
  const AssistWork work = world.Work({1}, {kAssistOnHost});
  const float* on_device = world.arrays.Upload(x);
  float* y = world.arrays.Upload(std::vector<float>(4, 1));
  AddAnswersArguments add = {.work = work, .group = 1, .layer = 0, .mask = 1, .slices = 1, .width = 4};
  add.y[0] = y;
  add.y_stride[0] = add.out[0] = 4;
  AddAnswers(*other, add);  // waits
  SendActivations(world.arrays.stream(), DType::kF32,
                  {.work = work, .group = 1, .layer = 0, .mask = 1, .x = on_device, .x_stride = 256, .in = 256});
  std::uint32_t& request = world.pieces[0].words->request;
  while (SlotWorld::Load(request) != kFirstTicket + 1) std::this_thread::yield();
  float sum = 0;
  for (int i = 0; i < 256; ++i) sum += static_cast<float*>(world.pieces[0].x)[i];
  std::fill_n(world.pieces[0].answer, 4, sum);
  world.pieces[0].words->scale[0] = 1;
  SlotWorld::Answer(*world.pieces[0].words, kFirstTicket + 1);
  ASSERT_TRUE(other->Synchronize().ok());
  EXPECT_EQ(world.arrays.Download(y, 4), std::vector<float>(4, 769));
}

}  // namespace
}  // namespace loramux::gpu::assist_test
