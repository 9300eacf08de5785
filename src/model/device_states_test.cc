// The kernels of recurrent layers on a device against the processor's reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/states.h"
#include "kernels/kernel_test_support.h"
#include "kernels/state_steps_for_test.h"

namespace loramux::device_states_test {
namespace {

constexpr std::int64_t kFirst = 17;  // where states begin in their pages
constexpr std::int64_t kTokens = kAllStateTestTokens;

// A step on the device, whose rows are those of its sequences, one after the other.
struct DeviceStep {
  gpu::DeviceArrays& arrays;
  gpu::StatesOnDevice states = {};
  std::vector<std::int64_t> rows_of = {};  // by row: which of all tokens it is
  const std::int32_t *row_sequence = nullptr, *rows = nullptr, *num_sequences = nullptr;

  std::int64_t max_rows() const { return static_cast<std::int64_t>(rows_of.size()) + 3; }  // more than there are
  // The step's rows of a matrix [kTokens, width].
  const float* Rows(const std::vector<float>& all, std::int64_t width) const {
    std::vector<float> of_step;
    for (const std::int64_t row : rows_of) {
      of_step.insert(of_step.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    }
    return arrays.Upload(of_step);
  }
};

// The step of `sequences`. Beyond the pages of states, each has one of positions in the tables.
DeviceStep StepOf(gpu::DeviceArrays& arrays, const StatePagesForTest& pages, std::byte* memory,
                  std::span<const StateSequence> sequences) {
  DeviceStep step = {.arrays = arrays};
  std::vector<gpu::SequenceOnDevice> on_device;
  std::vector<std::uint32_t> tables = {1'000'000};  // a page of the sequence before, which is never read
  std::vector<std::int32_t> row_sequence;
  for (const StateSequence& sequence : sequences) {
    tables.insert(tables.end(), sequence.pages, sequence.pages + pages.pages());
    const auto first = static_cast<std::int32_t>(step.rows_of.size()),
               rows = static_cast<std::int32_t>(sequence.num_tokens);
    on_device.push_back({first, rows, sequence.begins ? 0 : 5, static_cast<std::int32_t>(tables.size())});
    tables.push_back(1'000'000);
    for (std::int32_t row = 0; row < rows; ++row) {
      step.rows_of.push_back(sequence.first_row + row);
      row_sequence.push_back(static_cast<std::int32_t>(on_device.size()) - 1);
    }
  }
  step.states = {.base = memory,
                 .page_stride = StatePagesForTest::kFloats * static_cast<std::int64_t>(sizeof(float)),
                 .page_floats = StatePagesForTest::kFloats,
                 .first = static_cast<std::int32_t>(pages.first()),
                 .state_pages = static_cast<std::int32_t>(pages.pages()),
                 .sequences = arrays.Upload(on_device),
                 .page_tables = arrays.Upload(tables)};
  step.row_sequence = arrays.Upload(row_sequence);
  step.rows = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(step.rows_of.size())});
  step.num_sequences = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(on_device.size())});
  return step;
}

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << i;  // never written
    } else {
      ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
    }
  }
}

// Runs `expected(context, place, sequences, y)` over all rows at once by the reference, and `launch(step, y)` in steps
// of many sizes on the device: results and states are close to the reference's, and the same bits in whatever steps.
template <typename Expected, typename Launch>
void CheckSteps(std::int64_t state_floats, std::int64_t width, const Expected& expected, const Launch& launch) {
  ThreadPool pool(1);
  const std::vector<float> none(static_cast<std::size_t>(kTokens * width));
  std::vector<float> y_of_reference = none, whole, whole_states;
  StatePagesForTest pages(kFirst, state_floats, kStateTestSequences);
  const std::vector<float> untouched = pages.memory();
  InStepsForTest(pages, kTokens, [&](const auto& sequences) {
    expected(KernelContext{Backend::kReference, &pool}, pages.place(), sequences, y_of_reference.data());
  });
  for (const std::int64_t chunk : {kTokens, std::int64_t{1}, std::int64_t{2}, std::int64_t{5}, std::int64_t{9}}) {
    SCOPED_TRACE(chunk);
    gpu::DeviceArrays arrays(gpu::DeviceForTest());
    float* const memory = arrays.Upload(untouched);
    std::vector<float> actual = none;
    InStepsForTest(pages, chunk, [&](const auto& sequences) {
      const DeviceStep step = StepOf(arrays, pages, reinterpret_cast<std::byte*>(memory), sequences);
      const std::size_t count = step.rows_of.size() * static_cast<std::size_t>(width);
      float* const y = arrays.Allocate<float>(count);
      launch(step, y);
      const std::vector<float> rows = arrays.Download(y, count);
      for (std::size_t i = 0; i < step.rows_of.size(); ++i) {
        std::copy_n(rows.begin() + static_cast<std::int64_t>(i) * width, width,
                    actual.begin() + step.rows_of[i] * width);
      }
    });
    const std::vector<float> states = arrays.Download(memory, untouched.size());
    ASSERT_NO_FATAL_FAILURE(ExpectClose(actual, y_of_reference, 2e-6f));
    ASSERT_NO_FATAL_FAILURE(ExpectClose(states, pages.memory(), 2e-6f));
    if (whole.empty()) whole = actual, whole_states = states;
    ASSERT_TRUE(BitwiseEqual(actual.data(), whole.data(), kTokens * width));
    ASSERT_TRUE(BitwiseEqual(states.data(), whole_states.data(), static_cast<std::int64_t>(states.size())));
  }
}

TEST(DeviceStates, CausalConv) {
  Prng prng(1);
  for (const std::int64_t channels : {1, 20, 300}) {
    for (const std::int64_t width : {2, 4, 8}) {
      const auto x = RandomFloats(kTokens * channels, prng), weights = RandomFloats(width * channels, prng);
      const auto bias = RandomFloats(channels, prng);
      for (const float* const added : {static_cast<const float*>(nullptr), bias.data()}) {
        const auto expected = [&](const KernelContext& c, const StatePlace& place,
                                  std::span<const StateSequence> sequences, float* y) {
          const ConstRows rows = {x.data(), channels};
          CausalConv(c, {channels, width, weights.data(), place, sequences, rows, {y, channels}, added});
        };
        const auto launch = [&](const DeviceStep& step, float* y) {
          gpu::CausalConv(step.arrays.stream(), step.max_rows(),
                          {.weights = step.arrays.Upload(weights),
                           .bias = added == nullptr ? nullptr : step.arrays.Upload(bias),
                           .x = step.Rows(x, channels),
                           .y = y,
                           .row_sequence = step.row_sequence,
                           .rows = step.rows,
                           .channels = channels,
                           .x_stride = channels,
                           .y_stride = channels,
                           .width = static_cast<std::int32_t>(width),
                           .states = step.states});
        };
        CheckSteps((width - 1) * channels, channels, expected, launch);
      }
    }
  }
}

// What both rules take.
struct HeadsWorld {
  HeadsWorld(const DeltaShape& shape, std::int64_t gates_width, float x_scale, Prng& prng)
      : shape(shape),
        gates_width(gates_width),
        x(RandomFloats(kTokens * shape.Channels(), prng)),
        gates(RandomFloats(kTokens * gates_width, prng)),
        rate(RandomFloats(shape.value_heads, prng)),
        bias(RandomFloats(shape.value_heads, prng)),
        skip(RandomFloats(shape.value_heads, prng)),
        workspace(static_cast<std::size_t>(DeltaWorkspaceFloats(shape))) {
    for (float& value : x) value *= x_scale;
  }

  gpu::StateHeadsOnDevice OnDevice(const DeviceStep& step, float* y) const {
    return {.x = step.Rows(x, shape.Channels()),
            .gates = step.Rows(gates, gates_width),
            .rate = step.arrays.Upload(rate),
            .bias = step.arrays.Upload(bias),
            .skip = step.arrays.Upload(skip),
            .out = y,
            .num_sequences = step.num_sequences,
            .x_stride = shape.Channels(),
            .gates_stride = gates_width,
            .out_stride = shape.Values(),
            .key_heads = static_cast<std::int32_t>(shape.key_heads),
            .value_heads = static_cast<std::int32_t>(shape.value_heads),
            .key_dim = static_cast<std::int32_t>(shape.key_dim),
            .value_dim = static_cast<std::int32_t>(shape.value_dim),
            .least_step = 0,
            .most_step = 0,
            .states = step.states};
  }

  const DeltaShape shape;
  const std::int64_t gates_width;
  std::vector<float> x, gates, rate, bias, skip, workspace;
};

constexpr DeltaShape kShapes[] = {{1, 1, 8, 4}, {2, 4, 8, 12}, {1, 3, 33, 70}, {2, 2, 128, 64}, {1, 2, 192, 33}};

TEST(DeviceStates, DeltaRule) {
  Prng prng(2);
  for (const DeltaShape& shape : kShapes) {
    HeadsWorld w(shape, 2 * shape.value_heads, 1, prng);
    for (float& value : w.rate) value = -0.3f - 0.2f * value;
    w.gates[static_cast<std::size_t>(shape.value_heads)] = 30;  // beyond which softplus is its argument
    const auto expected = [&](const KernelContext& c, const StatePlace& place, std::span<const StateSequence> sequences,
                              float* y) {
      DeltaRule(c, {.shape = shape,
                    .rate = w.rate.data(),
                    .bias = w.bias.data(),
                    .place = place,
                    .sequences = sequences,
                    .x = {w.x.data(), shape.Channels()},
                    .gates = {w.gates.data(), w.gates_width},
                    .out = {y, shape.Values()},
                    .workspace = w.workspace.data()});
    };
    const auto launch = [&](const DeviceStep& step, float* y) {
      gpu::DeltaRule(step.arrays.stream(), kStateTestSequences + 1, w.OnDevice(step, y));
    };
    CheckSteps(shape.value_heads * shape.HeadFloats(), shape.Values(), expected, launch);
  }
}

TEST(DeviceStates, SelectiveScan) {
  Prng prng(5);
  for (const DeltaShape& shape : kShapes) {
    HeadsWorld w(shape, shape.value_heads, shape.key_dim > 128 ? 0.4f : 0.6f, prng);
    for (float& value : w.rate) value = -0.6f - 0.4f * value;
    w.gates[0] = 30;                                            // beyond which softplus is its argument
    w.gates[static_cast<std::size_t>(shape.value_heads)] = -9;  // which the lower limit raises
    const auto expected = [&](const KernelContext& c, const StatePlace& place, std::span<const StateSequence> sequences,
                              float* y) {
      SelectiveScan(c, {.shape = shape,
                        .rate = w.rate.data(),
                        .bias = w.bias.data(),
                        .skip = w.skip.data(),
                        .least_step = 0.01f,
                        .most_step = 0.9f,
                        .place = place,
                        .sequences = sequences,
                        .x = {w.x.data(), shape.Channels()},
                        .steps = {w.gates.data(), w.gates_width},
                        .out = {y, shape.Values()},
                        .workspace = w.workspace.data()});
    };
    const auto launch = [&](const DeviceStep& step, float* y) {
      gpu::StateHeadsOnDevice on_device = w.OnDevice(step, y);
      on_device.least_step = 0.01f;
      on_device.most_step = 0.9f;
      gpu::SelectiveScan(step.arrays.stream(), kStateTestSequences + 1, on_device);
    };
    CheckSteps(shape.value_heads * shape.HeadFloats(), shape.Values(), expected, launch);
  }
}

// However many rows a sequence has in a step, its state is read once, unless it begins, and written once.
TEST(DeviceStates, EachStateIsReadAndWrittenOnceAStep) {
  Prng prng(6);
  const DeltaShape shape = {2, 2, 96, 64};
  constexpr std::int64_t kWidth = 4;
  const std::int64_t channels = shape.Channels();
  const HeadsWorld w(shape, 2 * shape.value_heads, 1, prng);
  const auto weights = RandomFloats(kWidth * channels, prng);
  for (const bool of_heads : {false, true}) {
    const std::int64_t floats = of_heads ? shape.value_heads * shape.HeadFloats() : (kWidth - 1) * channels;
    const std::unique_ptr<gpu::EmulatedDevice> device = gpu::MakeEmulatedDevice({});
    gpu::DeviceArrays arrays(*device);
    const StatePagesForTest pages(kFirst, floats, kStateTestSequences);
    float* const memory = arrays.Upload(pages.memory());
    device->Watch("states", memory, pages.memory().size() * sizeof(float));
    InStepsForTest(pages, 12, [&](const auto& sequences) {
      const DeviceStep step = StepOf(arrays, pages, reinterpret_cast<std::byte*>(memory), sequences);
      float* const y = arrays.Allocate<float>(step.rows_of.size() * static_cast<std::size_t>(channels));
      const gpu::StateHeadsOnDevice heads = w.OnDevice(step, y);
      device->ResetTraffic();
      if (of_heads) {
        gpu::DeltaRule(arrays.stream(), kStateTestSequences, heads);
      } else {
        gpu::CausalConv(arrays.stream(), step.max_rows(),
                        {.weights = arrays.Upload(weights),
                         .bias = nullptr,
                         .x = heads.x,
                         .y = y,
                         .row_sequence = step.row_sequence,
                         .rows = step.rows,
                         .channels = channels,
                         .x_stride = channels,
                         .y_stride = channels,
                         .width = kWidth,
                         .states = step.states});
      }
      arrays.Synchronize();
      const auto continued = std::ranges::count_if(sequences, [](const StateSequence& s) { return !s.begins; });
      const auto bytes = static_cast<std::int64_t>(floats * sizeof(float));
      EXPECT_EQ(device->TrafficOf("states").load_bytes, continued * bytes);
      EXPECT_EQ(device->TrafficOf("states").store_bytes, static_cast<std::int64_t>(sequences.size()) * bytes);
    });
  }
}

// Rows of a device's matrix of any type, widened.
std::vector<float> Widened(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / DTypeSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadAsF32(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return values;
}
// What rounding to the type changes at most, relatively; beside what the order of sums does.
float UnitOf(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 0x1p-8f : 0x1p-10f; }

void ExpectRounded(DType dtype, const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 4e-6f + UnitOf(dtype) * std::abs(expected[i])) << DTypeName(dtype) << " " << i;
  }
}

TEST(DeviceStates, GatedNorm) {
  Prng prng(3);
  ThreadPool pool(1);
  constexpr std::int64_t kHeads = 3, kRows = 5;
  for (const std::int64_t dim : {1, 12, 128, 1500}) {
    for (const bool gate_first : {false, true}) {
      const std::int64_t width = kHeads * dim;
      const auto x = RandomFloats(kRows * width, prng), z = RandomFloats(kRows * width, prng);
      const auto weight = RandomFloats(gate_first ? width : dim, prng);
      std::vector<float> expected = x;
      GatedRmsNorm({Backend::kReference, &pool}, {kRows,
                                                  kHeads,
                                                  dim,
                                                  weight.data(),
                                                  0.01f,
                                                  {z.data(), width},
                                                  {expected.data(), width},
                                                  gate_first,
                                                  gate_first ? dim : 0});
      for (const DType dtype : kStoredTypes) {
        gpu::DeviceArrays arrays(gpu::DeviceForTest());
        const std::size_t bytes = expected.size() * DTypeSize(dtype);
        std::byte* const y = arrays.Allocate<std::byte>(bytes);
        gpu::GatedNorm(arrays.stream(), dtype, kRows + 2,
                       {.x = arrays.Upload(x),
                        .z = arrays.Upload(z),
                        .weight = arrays.Upload(weight),
                        .y = y,
                        .rows = arrays.Upload(std::vector<std::int32_t>{kRows}),
                        .x_stride = width,
                        .z_stride = width,
                        .y_stride = width,
                        .weight_stride = gate_first ? dim : 0,
                        .heads = kHeads,
                        .head_dim = static_cast<std::int32_t>(dim),
                        .eps = 0.01f,
                        .gate_first = gate_first});
        ExpectRounded(dtype, Widened(dtype, arrays.Download(y, bytes)), expected);
      }
    }
  }
}

// The gates lie where a q_proj with gates leaves them: behind the query of each head.
TEST(DeviceStates, MulSigmoid) {
  Prng prng(4);
  constexpr std::int64_t kRows = 5;
  for (const auto& [heads, dim] : {std::pair{1, 3}, {5, 12}, {4, 64}, {3, 512}}) {
    const std::int64_t width = heads * dim, stride = 2 * width + 4;
    const auto x = RandomFloats(kRows * width, prng), pairs = RandomFloats(kRows * stride, prng);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < kRows * width; ++i) {
      const std::int64_t head = i % width / dim;
      const float gate = pairs[static_cast<std::size_t>(i / width * stride + (2 * head + 1) * dim + i % dim)];
      expected.push_back(x[static_cast<std::size_t>(i)] / (1 + std::exp(-gate)));
    }
    for (const DType dtype : kStoredTypes) {
      gpu::DeviceArrays arrays(gpu::DeviceForTest());
      const std::size_t bytes = expected.size() * DTypeSize(dtype);
      std::byte* const y = arrays.Allocate<std::byte>(bytes);
      gpu::MulSigmoid(arrays.stream(), dtype, kRows + 2,
                      {.x = arrays.Upload(x),
                       .gate = arrays.Upload(pairs) + dim,
                       .y = y,
                       .rows = arrays.Upload(std::vector<std::int32_t>{kRows}),
                       .width = width,
                       .x_stride = width,
                       .gate_stride = stride,
                       .y_stride = width,
                       .head_dim = dim,
                       .gate_head_stride = 2 * dim});
      ExpectRounded(dtype, Widened(dtype, arrays.Download(y, bytes)), expected);
    }
  }
}

}  // namespace
}  // namespace loramux::device_states_test
