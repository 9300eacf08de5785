#include "model/model.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "model/step_for_test.h"
#include "tensor/aligned_buffer.h"

namespace {

// Counts the program's allocations, to verify "no allocation in the steady state".
std::atomic<std::int64_t> allocations{0};

void* CountedAllocation(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) std::abort();
  return memory;
}

}  // namespace

// Called by AlignedBuffer.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) { return CountedAllocation(size, alignment); }
void* operator new(std::size_t size) { return CountedAllocation(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return CountedAllocation(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return CountedAllocation(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return CountedAllocation(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace loramux::model_test {
namespace {

using Tokens = std::vector<TokenId>;
using Floats = std::vector<float>;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.hidden_size = 24;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.intermediate_size = 40;
  config.vocab_size = 50;
  config.max_position = 128;
  config.sliding_window = {0, 6};
  config.qk_norm = QkNorm::kHeads;
  return config;
}

// One LoRA pair in memory.
struct Pair {
  std::int64_t rank, in, out;
  float scale;
  AlignedBuffer<float> a, b;  // rows aligned to 16 floats: [rank][in], [rank][out]
  std::vector<const std::byte*> a_rows, b_rows;

  Pair(std::int64_t rank, LinearShape shape, float scale, Prng& prng)
      : rank(rank), in(shape.in), out(shape.out), scale(scale), a(rank * Stride(in)), b(rank * Stride(out)) {
    for (std::int64_t j = 0; j < rank; ++j) {
      a_rows.push_back(Fill(a, j, in, prng));
      b_rows.push_back(Fill(b, j, out, prng));
    }
  }

  LoraWeights weights() const {
    return {static_cast<std::int32_t>(rank), scale, DType::kF32, a_rows.data(), b_rows.data()};
  }
  float A(std::int64_t j, std::int64_t i) const { return a[j * Stride(in) + i]; }
  float B(std::int64_t j, std::int64_t o) const { return b[j * Stride(out) + o]; }

 private:
  static std::int64_t Stride(std::int64_t n) { return (n + 15) / 16 * 16; }
  static const std::byte* Fill(AlignedBuffer<float>& rows, std::int64_t j, std::int64_t n, Prng& prng) {
    float* row = &rows[j * Stride(n)];
    for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(prng.NextDouble() - 0.5) * 0.3f;
    return reinterpret_cast<const std::byte*>(row);
  }
};

LoraView EmptyView(const ModelConfig& config) {
  LoraView view;
  view.modules.resize(LoraView::Index(0, LoraTarget::kLmHead, config.num_layers) + 1);
  return view;
}

// Adds scale * B A to the output rows from first_row on.
void Merge(const Pair& pair, std::int64_t first_row, PackedMatrix& matrix) {
  PackedMatrix merged(matrix.n(), matrix.k(), DType::kF32);
  Floats row(static_cast<std::size_t>(matrix.k()));
  for (std::int64_t n = 0; n < matrix.n(); ++n) {
    matrix.UnpackRow(n, row.data());
    const std::int64_t o = n - first_row;
    for (std::int64_t j = 0; j < pair.rank && o >= 0 && o < pair.out; ++j) {
      for (std::int64_t i = 0; i < pair.in; ++i) row[i] += pair.scale * pair.B(j, o) * pair.A(j, i);
    }
    merged.PackRows(n, 1, reinterpret_cast<const std::byte*>(row.data()));
  }
  matrix = std::move(merged);
}

void MergeInto(const ModelConfig& c, LoraTarget target, std::int64_t layer, const Pair& pair, ModelWeights& weights) {
  LayerWeights& w = weights.layers[static_cast<std::size_t>(layer)];
  switch (target) {
    case LoraTarget::kQ:
      return Merge(pair, 0, w.qkv);
    case LoraTarget::kK:
      return Merge(pair, c.QDim(), w.qkv);
    case LoraTarget::kV:
      return Merge(pair, c.QDim() + c.KvDim(), w.qkv);
    case LoraTarget::kO:
      return Merge(pair, 0, w.o);
    case LoraTarget::kGate:
      return Merge(pair, 0, w.gate_up);
    case LoraTarget::kUp:
      return Merge(pair, c.intermediate_size, w.gate_up);
    case LoraTarget::kDown:
      return Merge(pair, 0, w.down);
    case LoraTarget::kLmHead:
      return Merge(pair, 0, weights.lm_head);
  }
}

class ModelTest : public ::testing::TestWithParam<Backend> {
 protected:
  ModelTest() : model_(config_, RandomModelWeights(config_, DType::kF32, 1)) {
    for (std::uint32_t i = 0; i < kPages; ++i) pages_.push_back(i);
    std::memset(arena_.data(), 0xff, static_cast<std::size_t>(arena_.capacity()));
  }

  // A sequence's part of a step. Pages [first, ...) of the arena.
  struct Chunk {
    const Tokens& tokens;
    std::int64_t position = 0, logit_rows = 0;
    const LoraView* adapter = nullptr;
    std::size_t first_page = 0;
  };
  void AddTo(StepForTest<LoraView>& step, const Chunk& chunk) const {
    step.Add(chunk.tokens, chunk.position, std::span(pages_).subspan(chunk.first_page), chunk.adapter,
             chunk.logit_rows);
  }
  StepForTest<LoraView> StepOf(std::initializer_list<Chunk> chunks) const {
    StepForTest<LoraView> step;
    for (const Chunk& chunk : chunks) AddTo(step, chunk);
    return step;
  }
  CpuPlace Place(ThreadPool& threads) {
    return {{GetParam(), &threads}, layout_, {arena_.data(), layout_.PageBytes()}};
  }

  Floats Forward(Model& model, std::initializer_list<Chunk> chunks) {
    const StepForTest<LoraView> step = StepOf(chunks);
    StepResult result;
    model.Forward(Place(threads_), step.batch, step.adapters, result);
    return {model.logits().begin(), model.logits().end()};
  }
  Floats Forward(std::initializer_list<Chunk> chunks) { return Forward(model_, chunks); }

  static constexpr std::uint32_t kPages = 64;
  ModelConfig config_ = SmallConfig();
  KvLayout layout_{2, 1, 8, 4, DType::kF32};
  AlignedBuffer<std::byte> arena_{static_cast<std::int64_t>(layout_.PageBytes()) * kPages};
  std::vector<std::uint32_t> pages_;
  ThreadPool threads_{2};
  Model model_;
};

Floats Rows(const Floats& logits, std::size_t first, std::size_t count, std::size_t vocab = 50) {
  return {logits.begin() + static_cast<std::ptrdiff_t>(first * vocab),
          logits.begin() + static_cast<std::ptrdiff_t>((first + count) * vocab)};
}

// y = W x + s B (A x) must equal (W + s B A) x, for each target alone and in its own layer.
TEST_P(ModelTest, LoraIsWhatMergedWeightsCompute) {
  Prng prng(5);
  const Tokens tokens = {1, 7, 3, 49, 0, 22, 22, 9, 15};
  const Floats base = Forward({{tokens, 0, 9}});
  for (int t = 0; t < kNumLoraTargets; ++t) {
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const auto target = static_cast<LoraTarget>(t);
      SCOPED_TRACE(LoraTargetName(target) + std::to_string(layer));
      const Pair pair(3 + t, TargetShape(config_, target), 1.5f, prng);
      LoraView view = EmptyView(config_);
      view.modules[LoraView::Index(layer, target, 2)] = pair.weights();
      ModelWeights weights = RandomModelWeights(config_, DType::kF32, 1);
      MergeInto(config_, target, layer, pair, weights);
      Model merged(config_, std::move(weights));

      const Floats found = Forward({{tokens, 0, 9, &view}});
      const Floats expected = Forward(merged, {{tokens, 0, 9}});
      float change = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 2e-5f);
        change = std::max(change, std::abs(found[i] - base[i]));
      }
      EXPECT_GT(change, 1e-3f);
    }
  }
}

TEST_P(ModelTest, LogitsAreOfTheLastRowsOfEachChunkInOrder) {
  const Tokens a = {1, 2, 3, 4, 5}, b = {9, 8, 7};
  const Floats all_a = Forward({{a, 0, 5}});
  const Floats all_b = Forward({{b, 0, 3}});
  const Floats both = Forward({{a, 0, 2}, {b, 0, 1, nullptr, 10}});
  EXPECT_EQ(Rows(both, 0, 2), Rows(all_a, 3, 2));
  EXPECT_EQ(Rows(both, 2, 1), Rows(all_b, 2, 1));
  EXPECT_TRUE(Forward({{a, 0, 0}}).empty());
  EXPECT_EQ(Forward({{a, 0, 0}, {b, 0, 3, nullptr, 10}}), all_b);
}

TEST_P(ModelTest, ChunksDoNotChangeLogits) {
  Prng prng(6);
  Tokens tokens(40);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(50));
  const Floats whole = Forward({{tokens, 0, 40}});
  for (std::size_t size : {1, 3, 16}) {
    for (std::size_t begin = 0; begin < tokens.size(); begin += size) {
      const std::size_t count = std::min(size, tokens.size() - begin);
      const Tokens part(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                        tokens.begin() + static_cast<std::ptrdiff_t>(begin + count));
      const Floats logits =
          Forward({{part, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count), nullptr, 20}});
      EXPECT_EQ(logits, Rows(whole, begin, count));
    }
  }
}

TEST_P(ModelTest, AdaptersMayBeMixedAndNeedNotBeAdjacent) {
  Prng prng(7);
  LoraView x = EmptyView(config_), y = EmptyView(config_);
  const Pair xq(4, TargetShape(config_, LoraTarget::kQ), 2, prng);
  const Pair yq(9, TargetShape(config_, LoraTarget::kQ), 1, prng);
  const Pair head(2, TargetShape(config_, LoraTarget::kLmHead), 1, prng);
  x.modules[LoraView::Index(1, LoraTarget::kQ, 2)] = xq.weights();
  y.modules[LoraView::Index(1, LoraTarget::kQ, 2)] = yq.weights();
  y.modules[LoraView::Index(0, LoraTarget::kLmHead, 2)] = head.weights();
  const Tokens a = {4, 5, 6, 7}, b = {8, 9};
  const Floats ax = Forward({{a, 0, 1, &x}}), bx = Forward({{b, 0, 2, &x}});
  const Floats by = Forward({{b, 0, 2, &y}}), a0 = Forward({{a, 0, 1}});
  const Floats mixed = Forward({{a, 0, 1, &x, 0}, {b, 0, 2, &y, 10}, {a, 0, 1, nullptr, 20}, {b, 0, 2, &x, 30}});
  EXPECT_EQ(Rows(mixed, 0, 1), ax);
  EXPECT_EQ(Rows(mixed, 1, 2), by);
  EXPECT_EQ(Rows(mixed, 3, 1), a0);
  EXPECT_EQ(Rows(mixed, 4, 2), bx);
  EXPECT_NE(ax, a0);
  EXPECT_NE(by, bx);
}

// LoRA that is enabled and unused costs no extra work (Peers, point 12); its time is measured by
// lab/bench/serving_bench, "loaded and idle". A layer's adapter weights and cached keys and values arrive when the pass
// waits for them, and are NaN before. Any premature read would show in the logits.
TEST_P(ModelTest, NothingOfALayerIsReadBeforeItArrives) {
  Prng prng(11);
  const auto pair = [&](LoraTarget target) { return Pair(4, TargetShape(config_, target), 2.0f, prng); };
  std::vector<Pair> pairs;  // q, down of both layers; lm_head comes with the last layer
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    pairs.push_back(pair(LoraTarget::kQ));
    pairs.push_back(pair(LoraTarget::kDown));
  }
  pairs.push_back(pair(LoraTarget::kLmHead));
  LoraView view = EmptyView(config_);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const auto at = static_cast<std::size_t>(layer) * 2;
    view.modules[LoraView::Index(layer, LoraTarget::kQ, 2)] = pairs[at].weights();
    view.modules[LoraView::Index(layer, LoraTarget::kDown, 2)] = pairs[at + 1].weights();
  }
  view.modules[LoraView::Index(0, LoraTarget::kLmHead, 2)] = pairs[4].weights();
  const Tokens prefix = {1, 2, 3, 4, 5, 6, 7, 8}, rest = {9, 10, 11};
  const Tokens other = {12, 13};
  Forward({{prefix, 0, 0, &view}});
  // the two pages of `prefix`
  const std::vector<std::byte> cached(arena_.data(), arena_.data() + 2 * layout_.PageBytes());
  const auto ask = [&](const std::shared_ptr<const LayerProgress>& arrival) {
    StepForTest<LoraView> step = StepOf({{other, 0, 2, nullptr, 10}, {rest, 8, 3, &view}});
    step.batch.Await(arrival);
    StepResult result;
    model_.Forward(Place(threads_), step.batch, step.adapters, result);
    EXPECT_EQ(result.waited > 0, arrival != nullptr && !arrival->failed());
    return Floats(model_.logits().begin(), model_.logits().end());
  };
  const Floats expected = ask(nullptr);

  // the view points into `pairs`, which is empty until its layer arrives
  std::vector<std::array<Floats, 2>> arriving;
  for (const Pair& p : pairs) {
    arriving.push_back(
        {Floats(p.a.data(), p.a.data() + p.a.capacity()), Floats(p.b.data(), p.b.data() + p.b.capacity())});
  }
  const auto clear = [&] {
    std::memset(arena_.data(), 0xff, 2 * layout_.PageBytes());
    for (Pair& p : pairs) {
      std::fill_n(p.a.data(), p.a.capacity(), NAN);
      std::fill_n(p.b.data(), p.b.capacity(), NAN);
    }
  };
  const auto arrive = [&](std::int64_t layer) {
    for (std::size_t page = 0; page < 2; ++page) {
      const std::size_t offset = page * layout_.PageBytes() + layout_.KeyOffset(layer, 0);
      std::memcpy(arena_.data() + offset, cached.data() + offset, layout_.KeyOffset(1, 0));
    }
    for (std::size_t i = static_cast<std::size_t>(layer) * 2; i < (layer == 0 ? 2 : pairs.size()); ++i) {
      std::copy(arriving[i][0].begin(), arriving[i][0].end(), pairs[i].a.data());
      std::copy(arriving[i][1].begin(), arriving[i][1].end(), pairs[i].b.data());
    }
  };
  clear();
  const auto progress = std::make_shared<LayerProgress>(2);
  std::thread transfer([&] {
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      while (progress->awaited() < layer) std::this_thread::yield();
      arrive(layer);
      progress->Publish(layer + 1);
    }
  });
  EXPECT_EQ(ask(progress), expected);
  transfer.join();

  // Data that never arrives spoils only the rows that depend on it.
  clear();
  const auto broken = std::make_shared<LayerProgress>(2);
  broken->Fail();
  const Floats spoilt = ask(broken);
  EXPECT_EQ(Rows(spoilt, 0, 2), Rows(expected, 0, 2));
  EXPECT_TRUE(std::isnan(spoilt.back()));
}

TEST_P(ModelTest, Point12_AdaptersAddNoParallelLoops) {
  if (GetParam() == Backend::kReference) GTEST_SKIP() << "the oracle runs few parallel loops";
  Prng prng(9);
  const Tokens tokens = {1, 2, 3, 4, 5};
  const auto loops_of = [&](const LoraView* adapter) {
    const std::int64_t before = threads_.loops();
    Forward({{tokens, 0, 1, adapter}});
    return threads_.loops() - before;
  };
  const std::int64_t never_used = loops_of(nullptr);
  const LoraView nothing = EmptyView(config_);
  const Pair pair(4, TargetShape(config_, LoraTarget::kQ), 2, prng);
  LoraView one = EmptyView(config_);
  one.modules[LoraView::Index(1, LoraTarget::kQ, 2)] = pair.weights();
  EXPECT_EQ(loops_of(&one), never_used);      // LoRA has no region of its own
  EXPECT_EQ(loops_of(&nothing), never_used);  // an adapter that does not change these layers
  EXPECT_EQ(loops_of(nullptr), never_used);
}

TEST_P(ModelTest, SteadyStateDoesNotAllocate) {
  if (GetParam() == Backend::kReference) GTEST_SKIP() << "the oracle may allocate";
  Prng prng(8);
  LoraView view = EmptyView(config_);
  const Pair q(8, TargetShape(config_, LoraTarget::kQ), 1, prng);
  const Pair head(8, TargetShape(config_, LoraTarget::kLmHead), 1, prng);
  view.modules[LoraView::Index(0, LoraTarget::kQ, 2)] = q.weights();
  view.modules[LoraView::Index(0, LoraTarget::kLmHead, 2)] = head.weights();
  model_.Reserve(/*max_tokens=*/16, /*max_logit_rows=*/4, /*max_positions=*/100, /*max_rank=*/8, threads_.size());
  const Tokens prompt(14, 3), token = {5};
  StepForTest<LoraView> batch;
  StepResult result;
  // Kernels keep scratch memory per thread, allocated by the largest product at its first use: with one thread, in the
  // first step.
  ThreadPool one(1);
  std::int64_t before = 0;
  for (std::int64_t step = 0; step + 14 < 100; ++step) {
    if (step == 1) before = allocations;
    batch.Clear();
    AddTo(batch, step == 0 ? Chunk{prompt, 0, 1, &view} : Chunk{token, 13 + step, 1, &view});
    AddTo(batch, {token, step, 1, nullptr, 32});
    model_.Forward(Place(one), batch.batch, batch.adapters, result);
  }
  const std::int64_t steady = allocations - before;
  { AlignedBuffer<float> seen(100); }
  EXPECT_EQ(allocations - before, steady + 1) << "the counter misses AlignedBuffer's allocations";
  EXPECT_EQ(steady, 0);
}

TEST_P(ModelTest, MoreThanReservedStillWorks) {
  const Tokens tokens(60, 2);
  const Floats expected = Forward({{tokens, 0, 60}});
  Model other(config_, RandomModelWeights(config_, DType::kF32, 1));
  other.Reserve(1, 1, 1, 0, 1);
  EXPECT_EQ(Forward(other, {{tokens, 0, 60}}), expected);
}

INSTANTIATE_TEST_SUITE_P(Backends, ModelTest, ::testing::Values(Backend::kReference, Backend::kCpu),
                         [](const auto& info) { return info.param == Backend::kCpu ? "cpu" : "reference"; });

TEST(ModelLoad, MissingDirectoryIsAnError) { EXPECT_FALSE(Model::Load("/nonexistent/model", {}, nullptr).ok()); }

}  // namespace
}  // namespace loramux::model_test
