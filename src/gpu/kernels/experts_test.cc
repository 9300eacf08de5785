// The kernels of mixtures of experts, against double precision; and how many bytes they read.
#include "gpu/kernels/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "formats/routing_for_test.h"
#include "gpu/device_arrays_for_test.h"
#include "gpu/device_for_test.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/packed_for_test.h"
#include "gpu/kernels/skinny.h"
#include "tensor/half_float.h"

namespace loramux::gpu::experts_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::size_t Size(std::int64_t count) { return static_cast<std::size_t>(count); }

std::vector<float> Random(std::int64_t count, Prng& random) {
  std::vector<float> values(Size(count));
  for (float& value : values) value = static_cast<float>(random.NextDouble() * 2 - 1);
  return values;
}

// The values as a type holds them; rounds `values` likewise.
std::vector<std::byte> Stored(DType dtype, std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * DTypeSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    StoreFromF32(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
    values[i] = LoadAsF32(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return bytes;
}

class RouteRowsTest : public testing::Test {
 protected:
  ChoiceForTest Route(const RouteForm& form, const std::vector<float>& logits, std::int64_t stride,
                      const std::vector<float>& bias) {
    const auto rows = static_cast<std::int32_t>(logits.size() / Size(stride));
    const std::size_t pairs = Size(rows * form.per_token);
    auto* const experts = arrays_.Allocate<std::int32_t>(pairs);
    auto* const weights = arrays_.Allocate<float>(pairs);
    RouteRows(arrays_.stream(), rows + 2,
              {arrays_.Upload(logits), stride, bias.empty() ? nullptr : arrays_.Upload(bias),
               arrays_.Upload(std::vector<std::int32_t>{rows}), form, experts, weights});
    return {arrays_.Download(experts, pairs), arrays_.Download(weights, pairs)};
  }

  DeviceArrays arrays_{DeviceForTest()};
  Prng random_{7};
};

TEST_F(RouteRowsTest, ChoosesAsTheContractSays) {
  using enum RouteForm::Score;
  const RouteForm forms[] = {
      {8, 2, kSoftmax, true},          {128, 8, kSoftmax, false},           {7, 7, kSoftmax, true},
      {1, 1, kSoftmax, false},         {64, 6, kSigmoid, true, 2.5f, 8, 3}, {300, 32, kSoftmax, true, 0.5f},
      {8, 2, kSigmoid, false, 1, 8, 4}};
  for (const RouteForm& form : forms) {
    constexpr std::int64_t kRows = 9;
    const std::int64_t stride = form.experts + 3;
    const std::vector<float> logits = Random(kRows * stride, random_);
    for (const auto& bias : {std::vector<float>(), Random(form.experts, random_)}) {
      const ChoiceForTest found = Route(form, logits, stride, bias);
      for (std::int64_t i = 0; i < kRows; ++i) {
        const ChoiceForTest expected =
            ExpectedChoice(form, logits.data() + i * stride, bias.empty() ? nullptr : bias.data());
        for (std::int64_t c = 0; c < form.per_token; ++c) {
          const float weight = expected.weights[Size(c)];
          ASSERT_EQ(found.experts[Size(i * form.per_token + c)], expected.experts[Size(c)]) << i << " " << c;
          ASSERT_NEAR(found.weights[Size(i * form.per_token + c)], weight, 1e-6f * (1 + weight)) << i << " " << c;
        }
      }
    }
  }
}

TEST_F(RouteRowsTest, EqualScoresChooseTheFirst) {
  const ChoiceForTest found = Route({.experts = 6, .per_token = 4}, {1, 3, 3, 1, 3, 2}, 6, {});
  EXPECT_EQ(found.experts, (std::vector<std::int32_t>{1, 2, 4, 5}));
}

TEST_F(RouteRowsTest, WhatIsNoNumberStaysWithinTheExperts) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, kNan, kNan, kNan}, {-kInf, -kInf, -kInf, -kInf}, {kInf, kInf, 0, kNan}}) {
    ChoiceForTest found = Route({.experts = 4, .per_token = 3}, logits, 4, {});
    std::ranges::sort(found.experts);
    EXPECT_TRUE(std::ranges::adjacent_find(found.experts) == found.experts.end());
    EXPECT_GE(found.experts.front(), 0);
    EXPECT_LT(found.experts.back(), 4);
  }
}

// A layer's routing, and adapters of rows.
struct Routing {
  RouteForm form;
  std::vector<std::int32_t> chosen;  // [rows, per_token]
  std::vector<const ExpertLoraOnDevice*> adapters;
  std::int64_t ranges = 0;
  std::int32_t max_rank = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(chosen.size()) / form.per_token; }
};

// Different experts for each row; some experts are never chosen.
std::vector<std::int32_t> RandomChoices(const RouteForm& form, std::int64_t rows, Prng& random) {
  std::vector<std::int32_t> chosen;
  const std::int32_t used = std::max(form.per_token, form.experts * 3 / 4);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::vector<std::int32_t> all(Size(used));
    std::iota(all.begin(), all.end(), 0);
    for (std::int32_t c = 0; c < form.per_token; ++c) {
      const auto other = c + static_cast<std::int32_t>(random.NextDouble() * (used - c));
      std::swap(all[Size(c)], all[Size(other)]);
      chosen.push_back(all[Size(c)]);
    }
  }
  return chosen;
}

// Lists on the device.
class Lists {
 public:
  Lists(DeviceArrays& arrays, const Routing& routing, std::int32_t modules) : arrays_(arrays), routing_(routing) {
    const auto rows = static_cast<std::int32_t>(routing.rows());
    most = MaxExpertWork(routing.form, rows, routing.ranges, routing.max_rank);
    lists = {.experts = arrays.Upload(routing.chosen),
             .weights = nullptr,
             .begins = arrays.Allocate<std::int32_t>(Size(routing.form.experts + 1)),
             .place_row = arrays.Allocate<std::int32_t>(Size(most.places)),
             .places = arrays.Allocate<std::int32_t>(Size(most.places)),
             .tiles = arrays.Allocate<ExpertTile>(Size(most.tiles)),
             .shrink = arrays.Allocate<LoraItem>(Size(most.shrink)),
             .expand = arrays.Allocate<LoraItem>(Size(most.expand)),
             .counts = arrays.Allocate<std::int32_t>(Size(3 * routing.form.experts)),
             .totals = arrays.Allocate<std::int32_t>(3)};
    ListChosen(arrays.stream(),
               {lists, arrays.Upload(std::vector<std::int32_t>{rows}), routing.form.per_token, routing.form.experts,
                routing.adapters.empty() ? nullptr : arrays.Upload(routing.adapters), modules});
    totals = arrays.Download(lists.totals, 3);
    begins = arrays.Download(lists.begins, Size(routing.form.experts + 1));
    place_row = arrays.Download(lists.place_row, Size(most.places));
    places = arrays.Download(lists.places, Size(most.places));
    tiles = arrays.Download(lists.tiles, Size(totals[0]));
  }
  // The expert of a place.
  std::int32_t ExpertOf(std::int32_t place) const {
    return static_cast<std::int32_t>(std::ranges::upper_bound(begins, place) - begins.begin()) - 1;
  }
  // Checks a list of items: each place with an adapter that changes its expert is in `of_place(adapter, rows)` items.
  template <typename F>
  void ExpectItems(const LoraItem* list, std::int32_t count, std::int32_t modules, const F& of_place) const {
    std::map<std::int32_t, std::int32_t> covered;
    for (const LoraItem& item : arrays_.Download(list, Size(count))) {
      const std::int32_t expert = ExpertOf(item.first_row);
      ASSERT_EQ(ExpertOf(item.first_row + item.rows - 1), expert);
      ASSERT_LE(item.rows, kLoraItemRows);
      for (std::int32_t p = item.first_row; p < item.first_row + item.rows; ++p) {
        const ExpertLoraOnDevice* const on_device = routing_.adapters[Size(place_row[Size(p)])];
        ASSERT_NE(on_device, nullptr);
        const ExpertLoraOnDevice lora = arrays_.Download(on_device, 1)[0];
        ASSERT_LT(expert, lora.experts);
        ASSERT_EQ(item.modules, lora.modules + expert * modules);
        ASSERT_EQ(item.dtype, lora.dtype);
        ASSERT_EQ(item.gate, nullptr);
        ++covered[p];
      }
    }
    for (std::int32_t p = 0; p < most.places; ++p) {
      const ExpertLoraOnDevice* const on_device = routing_.adapters[Size(place_row[Size(p)])];
      const bool changed = on_device != nullptr && ExpertOf(p) < arrays_.Download(on_device, 1)[0].experts;
      ASSERT_EQ(covered.contains(p), changed) << p;
      if (changed) of_place(covered[p], arrays_.Download(on_device, 1)[0]);
    }
  }

  ExpertLists lists;
  ExpertBounds most;
  std::vector<std::int32_t> totals, begins, place_row, places;
  std::vector<ExpertTile> tiles;

 private:
  DeviceArrays& arrays_;
  const Routing& routing_;
};

TEST(ListChosen, SortsPairsAndListsTiles) {
  DeviceArrays arrays(DeviceForTest());
  Prng random(3);
  for (const RouteForm& form : {RouteForm{8, 2}, RouteForm{128, 8}, RouteForm{1, 1}, RouteForm{5, 5}}) {
    for (const std::int64_t rows : {1, 3, 40, 301}) {
      const Routing routing = {form, RandomChoices(form, rows, random), {}, 0, 0};
      const Lists found(arrays, routing, 3);
      std::vector<std::int32_t> order(Size(found.most.places));  // pairs
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, [&](std::int32_t pair) { return routing.chosen[Size(pair)]; });
      std::int32_t covered = 0;
      for (const ExpertTile& tile : found.tiles) {
        ASSERT_EQ(tile.first, covered);
        ASSERT_TRUE(tile.rows >= 1 && tile.rows <= kExpertTileRows);
        for (std::int32_t p = tile.first; p < tile.first + tile.rows; ++p) {
          const std::int32_t pair = order[Size(p)];
          ASSERT_EQ(routing.chosen[Size(pair)], tile.expert);
          ASSERT_EQ(found.place_row[Size(p)], pair / form.per_token);
          ASSERT_EQ(found.places[Size(pair)], p);
          ASSERT_EQ(found.ExpertOf(p), tile.expert);
        }
        covered += tile.rows;
      }
      ASSERT_EQ(covered, found.most.places);
      ASSERT_LE(found.totals[0], found.most.tiles);
      ASSERT_EQ(found.begins.back(), covered);
    }
  }
}

TEST(ListChosen, ListsTheItemsOfAdapters) {
  DeviceArrays arrays(DeviceForTest());
  Prng random(4);
  const auto* const modules = arrays.Allocate<LoraModule>(2 * 16 * 6);
  const auto* const adapters = arrays.Upload(
      std::vector<ExpertLoraOnDevice>{{modules, 16, 40, DType::kBF16}, {modules + 16 * 6, 9, 16, DType::kF32}});
  for (const RouteForm& form : {RouteForm{16, 2}, RouteForm{16, 9}, RouteForm{1, 1}}) {
    for (const std::int64_t rows : {2, 70, 330}) {
      Routing routing = {form, RandomChoices(form, rows, random), {}, 0, 40};
      for (std::int64_t i = 0; i < rows; ++i) {  // long and short ranges, and rows without
        const std::int64_t kind = i < rows / 2 ? 0 : i % 7;
        routing.adapters.push_back(kind == 3 ? nullptr : kind > 3 ? adapters + 1 : adapters);
        if (i == 0 || routing.adapters[Size(i)] != routing.adapters[Size(i - 1)]) ++routing.ranges;
      }
      const Lists found(arrays, routing, 6);
      ASSERT_LE(found.totals[1], found.most.shrink);
      ASSERT_LE(found.totals[2], found.most.expand);
      found.ExpectItems(found.lists.shrink, found.totals[1], 6, [](std::int32_t items, const ExpertLoraOnDevice& lora) {
        ASSERT_EQ(items, (lora.max_rank + kLoraRankTile - 1) / kLoraRankTile);
      });
      found.ExpectItems(found.lists.expand, found.totals[2], 6,
                        [](std::int32_t items, const ExpertLoraOnDevice&) { ASSERT_TRUE(items == 1 || items == 4); });
    }
  }
}

constexpr const PackedKind* kForms[] = {nullptr, &kPackedKinds[2], &kPackedKinds[0], &kPackedKinds[1]};
static_assert(kPackedKinds[2].format == WeightFormat::kMx4);

std::string NameOf(DType dtype, const PackedKind* kind) {
  return std::string(DTypeName(dtype)) + (kind == nullptr ? "" : ", " + kind->Name());
}

// The matrices of a layer's experts, in a type or quantised.
struct Experts {
  std::int64_t count, n, k;
  std::vector<float> w, bias;
  std::vector<std::byte> bytes;
  std::optional<PackedForTest> packed;

  Experts(DType dtype, const PackedKind* kind, std::int64_t experts, std::int64_t outputs, std::int64_t inputs,
          Prng& random)
      : count(experts), n(outputs), k(inputs), bias(Random(experts * outputs, random)) {
    if (kind == nullptr) {
      w = Random(count * n * k, random);
      bytes = Stored(dtype, w);
      return;
    }
    packed.emplace(*kind, count * n, k, random);
    bytes = packed->codes;
    w = packed->Floats();
    for (float& value : w) {
      std::byte rounded[4];
      StoreFromF32(dtype, rounded, 0, value);
      value = LoadAsF32(dtype, rounded, 0);
    }
  }
};

struct Product {
  std::vector<float> y;  // [places, n + 5], NaN where nothing may be written
  std::int64_t stride = 0;
};

Product Multiply(DeviceArrays& arrays, DType dtype, const Experts& experts, const Lists& lists,
                 const std::vector<std::byte>& x, std::int32_t max_rows, int multiprocessors, bool with_bias,
                 const std::function<void(const void* w, const void* scales)>& before = nullptr) {
  Product out;
  out.stride = experts.n + 5;
  ExpertMatMulArguments a = {};
  a.x = arrays.Upload(x);
  a.x_stride = experts.k;
  a.k = experts.k;
  a.w = arrays.Upload(experts.bytes);
  if (experts.packed) a.form = experts.packed->Upload(arrays);
  if (with_bias) a.bias = arrays.Upload(experts.bias);
  a.n = experts.n;
  a.y = arrays.Upload(std::vector<float>(Size(lists.most.places * out.stride), std::nanf("")));
  a.y_stride = out.stride;
  a.tiles = lists.lists.tiles;
  a.tile_count = lists.lists.totals;
  a.max_rows = max_rows;
  if (before) before(a.w, a.form.scales);
  ExpertMatMul(arrays.stream(), dtype, multiprocessors, lists.most.tiles, a);
  arrays.Synchronize();
  out.y = arrays.Download(a.y, Size(lists.most.places * out.stride));
  return out;
}

void ExpectProduct(const Experts& experts, const Lists& lists, const std::vector<float>& x, const Product& found,
                   bool with_bias) {
  int wrong = 0;
  for (std::int64_t p = 0; p < lists.most.places && wrong < 5; ++p) {
    const std::int64_t expert = lists.ExpertOf(static_cast<std::int32_t>(p));
    for (std::int64_t o = 0; o < found.stride && wrong < 5; ++o) {
      const float got = found.y[Size(p * found.stride + o)];
      if (o >= experts.n) {
        if (!std::isnan(got)) ADD_FAILURE() << "place " << p << ": written beyond its end, at " << o << ++wrong;
        continue;
      }
      double sum = with_bias ? static_cast<double>(experts.bias[Size(expert * experts.n + o)]) : 0;
      double magnitude = std::abs(sum);
      for (std::int64_t t = 0; t < experts.k; ++t) {
        const double product = static_cast<double>(x[Size(p * experts.k + t)]) *
                               static_cast<double>(experts.w[Size((expert * experts.n + o) * experts.k + t)]);
        sum += product;
        magnitude += std::abs(product);
      }
      if (std::abs(static_cast<double>(got) - sum) <= 1e-5 * magnitude) continue;
      ADD_FAILURE() << "place " << p << ", output " << o << ": " << got << ", expected " << sum << ++wrong;
    }
  }
}

TEST(ExpertMatMul, EveryTypeSizeAndNumberOfRows) {
  Prng random(5);
  for (const DType dtype : kTypes)
    for (const PackedKind* const kind : kForms)
      for (const auto& [rows, k, odd] : std::vector<std::array<std::int64_t, 3>>{
               {1, 64, 17}, {7, 96, 33}, {20, 160, 16}, {50, 32, 40}, {200, 64, 24}}) {
        SCOPED_TRACE(NameOf(dtype, kind) + ", " + std::to_string(rows) + " rows");
        const std::int64_t n = kind == nullptr ? odd : (odd + 15) / 16 * 16;
        DeviceArrays arrays(DeviceForTest());
        const RouteForm form = {6, 2};
        const Routing routing = {form, RandomChoices(form, rows, random), {}, 0, 0};
        const Lists lists(arrays, routing, 3);
        const Experts experts(dtype, kind, form.experts, n, k, random);
        std::vector<float> x = Random(lists.most.places * k, random);
        const std::vector<std::byte> stored = Stored(dtype, x);
        for (const int multiprocessors : {1, 50}) {
          const bool with_bias = multiprocessors == 1;
          const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(rows, kExpertTileRows));
          ExpectProduct(experts, lists, x,
                        Multiply(arrays, dtype, experts, lists, stored, most, multiprocessors, with_bias), with_bias);
        }
      }
}

TEST(ExpertMatMul, ARowHasTheSameBitsHoweverManyTheLaunchCovers) {
  Prng random(6);
  for (const DType dtype : kTypes) {
    DeviceArrays arrays(DeviceForTest());
    const RouteForm form = {4, 2};
    const Routing routing = {form, RandomChoices(form, 6, random), {}, 0, 0};
    const Lists lists(arrays, routing, 3);
    const Experts experts(dtype, dtype == DType::kBF16 ? kForms[1] : nullptr, form.experts, 48, 128, random);
    std::vector<float> x = Random(lists.most.places * 128, random);
    const std::vector<std::byte> stored = Stored(dtype, x);
    const Product few = Multiply(arrays, dtype, experts, lists, stored, 8, 4, true);
    for (const std::int32_t max_rows : {16, 32, 64}) {
      const Product many = Multiply(arrays, dtype, experts, lists, stored, max_rows, 1, true);
      EXPECT_EQ(std::memcmp(few.y.data(), many.y.data(), few.y.size() * sizeof(float)), 0) << max_rows;
    }
  }
}

std::unique_ptr<EmulatedDevice> SmallDevice() {
  EmulatedDeviceOptions options;
  options.memory = std::int64_t{64} << 20;
  return MakeEmulatedDevice(options);
}

// The table of docs/design/gpu.md.
TEST(ExpertMatMul, ReadsEachByteOfTheChosenExpertsOnce) {
  Prng random(8);
  std::printf("| batch | experts chosen | needed | read |\n");
  for (const PackedKind* const kind : kForms)
    for (const std::int64_t rows : {1, 8, 30}) {
      const std::unique_ptr<EmulatedDevice> device = SmallDevice();
      DeviceArrays arrays(*device);
      const RouteForm form = {16, 2};
      const Routing routing = {form, RandomChoices(form, rows, random), {}, 0, 0};
      const Lists lists(arrays, routing, 3);
      const Experts experts(DType::kBF16, kind, form.experts, 80, 256, random);
      std::vector<float> x = Random(lists.most.places * 256, random);
      const std::size_t of_expert = experts.bytes.size() / Size(form.experts);
      const std::size_t scales = kind == nullptr ? 0 : experts.packed->scales.size() / Size(form.experts);
      const auto before = [&](const void* w, const void* all_scales) {
        for (std::int32_t e = 0; e < form.experts; ++e) {
          device->Watch("W" + std::to_string(e), static_cast<const std::byte*>(w) + Size(e) * of_expert, of_expert);
          if (kind == nullptr) continue;
          device->Watch("S" + std::to_string(e), static_cast<const std::byte*>(all_scales) + Size(e) * scales, scales);
        }
        device->ResetTraffic();
      };
      const auto most = static_cast<std::int32_t>(rows);
      Multiply(arrays, DType::kBF16, experts, lists, Stored(DType::kBF16, x), most, 3, true, before);
      std::int64_t needed = 0, read = 0, active = 0;
      for (std::int32_t e = 0; e < form.experts; ++e) {
        const bool chosen = std::ranges::find(routing.chosen, e) != routing.chosen.end();
        const std::int64_t bytes = chosen ? static_cast<std::int64_t>(of_expert) : 0;
        EXPECT_EQ(device->TrafficOf("W" + std::to_string(e)).load_bytes, bytes) << e;
        active += chosen ? 1 : 0;
        needed += bytes;
        read += device->TrafficOf("W" + std::to_string(e)).load_bytes;
        if (kind == nullptr) continue;
        const std::int64_t scale_bytes = chosen ? static_cast<std::int64_t>(scales) : 0;
        EXPECT_EQ(device->TrafficOf("S" + std::to_string(e)).load_bytes, scale_bytes) << e;
        needed += scale_bytes;
        read += device->TrafficOf("S" + std::to_string(e)).load_bytes;
      }
      std::printf("| %s, %lld rows | %lld of %d | %lld | %lld |\n", NameOf(DType::kBF16, kind).c_str(),
                  static_cast<long long>(rows), static_cast<long long>(active), form.experts,
                  static_cast<long long>(needed), static_cast<long long>(read));
    }
}

// The LoRA products of adapters of rank 1, on inputs x.
std::pair<LoraShrinkArguments, LoraExpandArguments> LoraOfLists(DeviceArrays& arrays, const Lists& lists,
                                                                const std::vector<std::byte>& x, std::int64_t in,
                                                                std::int64_t out) {
  const std::int32_t* const totals = lists.lists.totals;
  const LoraWork work = {lists.lists.shrink,
                         lists.lists.expand,
                         totals + 1,
                         totals + 2,
                         lists.most.shrink,
                         lists.most.expand,
                         1,
                         nullptr,
                         nullptr,
                         0};
  LoraShrinkArguments shrink = {arrays.Upload(x), in, in, work, {0}, 1, nullptr, 0};
  shrink.partial_rows = lists.most.places;
  shrink.partial = arrays.Allocate<float>(Size(LoraPartialFloats(lists.most.places, in, 1, 1)));
  LoraExpandArguments expand = {work, {0}, 1, shrink.partial, shrink.partial_rows, in, {}, {out}, {out}};
  expand.y[0] = arrays.Upload(std::vector<float>(Size(lists.most.places * out)));
  return {shrink, expand};
}

// An adapter with one row of A and of B for each expert: those of pairs that a token takes are read once, no others.
TEST(ExpertLora, ReadsEachByteOfTheChosenPairsOnce) {
  constexpr std::int64_t kIn = 264, kOut = 136, kExperts = 8, kAdapters = 3;
  const std::unique_ptr<EmulatedDevice> device = SmallDevice();
  DeviceArrays arrays(*device);
  Prng random(9);
  Routing routing = {{kExperts, 2}, RandomChoices({kExperts, 2}, 12, random), {}, 4, 1};
  std::vector<float> values = Random(kIn, random);
  const std::vector<std::byte> a_row = Stored(DType::kBF16, values);
  values.resize(kOut);
  const std::vector<std::byte> b_row = Stored(DType::kBF16, values);
  std::vector<const ExpertLoraOnDevice*> adapters;
  std::map<std::pair<std::int64_t, std::int64_t>, const void*> a_rows, b_rows;
  for (std::int64_t adapter = 0; adapter < kAdapters; ++adapter) {
    std::vector<LoraModule> modules(kExperts);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const void* const a = a_rows[{adapter, e}] = arrays.Upload(a_row);
      const void* const b = b_rows[{adapter, e}] = arrays.Upload(b_row);
      modules[Size(e)] = {arrays.Upload(std::vector<const void*>{a}), arrays.Upload(std::vector<const void*>{b}), 1, 1};
    }
    const ExpertLoraOnDevice lora = {arrays.Upload(modules), kExperts, 1, DType::kBF16};
    adapters.push_back(arrays.Upload(std::vector<ExpertLoraOnDevice>{lora}));
  }
  for (std::int64_t i = 0; i < 12; ++i)
    routing.adapters.push_back(i < 3 ? nullptr : adapters[Size((i - 3) / 3 % kAdapters)]);
  const Lists lists(arrays, routing, 1);
  std::vector<float> x = Random(lists.most.places * kIn, random);
  const auto [shrink, expand] = LoraOfLists(arrays, lists, Stored(DType::kBF16, x), kIn, kOut);
  const auto name = [](const char* kind, const auto& pair) {
    return kind + std::to_string(pair.first) + "," + std::to_string(pair.second);
  };
  for (const auto& [pair, row] : a_rows) device->Watch(name("A", pair), row, a_row.size());
  for (const auto& [pair, row] : b_rows) device->Watch(name("B", pair), row, b_row.size());
  device->ResetTraffic();
  LoraShrink(arrays.stream(), DType::kBF16, shrink);
  LoraExpand(arrays.stream(), expand);
  arrays.Synchronize();
  std::int64_t taken = 0;
  for (const auto& [pair, row] : a_rows) {
    bool takes = false;
    for (std::int64_t i = 3; i < 12; ++i)
      for (std::int64_t c = 2 * i; c < 2 * i + 2; ++c)
        takes = takes || ((i - 3) / 3 % kAdapters == pair.first && routing.chosen[Size(c)] == pair.second);
    taken += takes ? 1 : 0;
    EXPECT_EQ(device->TrafficOf(name("A", pair)).load_bytes, takes ? static_cast<std::int64_t>(a_row.size()) : 0);
    EXPECT_EQ(device->TrafficOf(name("B", pair)).load_bytes, takes ? static_cast<std::int64_t>(b_row.size()) : 0);
  }
  EXPECT_GT(taken, 8);
  EXPECT_LT(taken, static_cast<std::int64_t>(a_rows.size()));
}

TEST(CombineChosen, AddsTheChosenToWhatIsKept) {
  DeviceArrays arrays(DeviceForTest());
  Prng random(10);
  constexpr std::int64_t kRows = 9, kGateStride = 3;
  for (const std::int64_t width : {7, 64, 1100}) {
    for (const int kind : {0, 1, 2}) {  // nothing is kept, all is, what the gate leaves
      const std::int32_t per_token = 1 + kind * 2;
      const std::vector<float> x = Random(kRows * per_token * width, random),
                               weights = Random(kRows * per_token, random), y = Random(kRows * (width + 1), random),
                               gates = Random(kRows * kGateStride, random);
      std::vector<std::int32_t> places(Size(kRows * per_token));
      std::iota(places.begin(), places.end(), 0);
      std::ranges::reverse(places);
      float* const on_device = arrays.Upload(y);
      CombineChosen(arrays.stream(), kRows + 1,
                    {.x = arrays.Upload(x),
                     .places = arrays.Upload(places),
                     .weights = arrays.Upload(weights),
                     .rows = arrays.Upload(std::vector<std::int32_t>{static_cast<std::int32_t>(kRows)}),
                     .y = on_device,
                     .width = width,
                     .x_stride = width,
                     .y_stride = width + 1,
                     .form = {.per_token = per_token,
                              .keeps = kind > 0,
                              .gates = kind == 2 ? arrays.Upload(gates) : nullptr,
                              .gate_stride = kGateStride}});
      const std::vector<float> found = arrays.Download(on_device, y.size());
      for (std::int64_t i = 0; i < kRows; ++i) {
        const double gate = 1 / (1 + std::exp(-static_cast<double>(gates[Size(i * kGateStride)])));
        const double factor = kind == 0 ? 0 : kind == 1 ? 1 : gate;
        for (std::int64_t t = 0; t <= width; ++t) {
          const auto at = Size(i * (width + 1) + t);
          double expected = static_cast<double>(y[at]);
          if (t < width) expected *= factor;
          for (std::int64_t c = i * per_token; t < width && c < (i + 1) * per_token; ++c)
            expected +=
                static_cast<double>(weights[Size(c)]) * static_cast<double>(x[Size(places[Size(c)] * width + t)]);
          ASSERT_NEAR(found[at], expected, 1e-5) << kind << " " << i << " " << t;
        }
      }
    }
  }
}

}  // namespace
}  // namespace loramux::gpu::experts_test
