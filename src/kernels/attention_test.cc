#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_test_support.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"

namespace loramux::attention_test {
namespace {

class AttentionTest : public KernelTest {};
LORAMUX_INSTANTIATE_KERNEL_TEST(AttentionTest);

// Sequences of given lengths with random keys and values in scattered pages; the rest of the pages is NaN.
struct Fixture {
  KvLayout layout;
  std::int64_t num_heads;
  std::int64_t layer = 1;
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<std::uint32_t>> pages;
  AlignedBuffer<std::byte> memory;
  PageArena arena;
  std::vector<float> q, k, v;  // [all tokens, heads * head_dim]

  std::int64_t Width() const { return num_heads * layout.head_dim; }
  std::int64_t KvWidth() const { return layout.num_kv_heads * layout.head_dim; }
  std::int64_t FirstRow(std::size_t sequence) const {
    std::int64_t row = 0;
    for (std::size_t i = 0; i < sequence; ++i) row += lengths[i];
    return row;
  }
  std::int64_t Rows() const { return FirstRow(lengths.size()); }
  AttentionSequence Whole(std::size_t i) const { return {FirstRow(i), lengths[i], 0, pages[i].data()}; }
  std::vector<AttentionSequence> All() const {
    std::vector<AttentionSequence> all;
    for (std::size_t i = 0; i < lengths.size(); ++i) all.push_back(Whole(i));
    return all;
  }
};

void FillWithNan(Fixture& f, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) f.memory[i] = std::byte{0xff};  // NaN in the float types, and as a scale
}

Fixture MakeFixture(const KvLayout& layout, std::int64_t num_heads, std::vector<std::int64_t> lengths,
                    std::uint64_t seed) {
  Prng prng(seed);
  Fixture f{.layout = layout, .num_heads = num_heads, .lengths = std::move(lengths)};
  std::int64_t total_pages = 3;
  for (std::int64_t length : f.lengths) total_pages += layout.PagesFor(length);
  std::vector<std::uint32_t> order;
  for (std::int64_t i = 0; i < total_pages; ++i) order.push_back(static_cast<std::uint32_t>(i));
  for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[prng.NextBelow(i + 1)]);
  std::size_t next = 0;
  for (std::int64_t length : f.lengths) {
    f.pages.emplace_back();
    for (std::int64_t i = 0; i < layout.PagesFor(length); ++i) f.pages.back().push_back(order[next++]);
  }
  f.arena.page_stride = (layout.PageBytes() + 63) / 64 * 64 + 64;
  const std::int64_t bytes = total_pages * static_cast<std::int64_t>(f.arena.page_stride);
  f.memory.Reserve(bytes);
  f.arena.base = f.memory.data();
  FillWithNan(f, bytes);
  f.q = RandomFloats(f.Rows() * f.Width(), prng);
  f.k = RandomFloats(f.Rows() * f.KvWidth(), prng);
  f.v = RandomFloats(f.Rows() * f.KvWidth(), prng);
  for (float& x : f.q) x *= 3;  // so that the softmax is not flat
  return f;
}

// `form`: but for the scale.
std::vector<float> Attend(const KernelContext& context, const Fixture& f,
                          const std::vector<AttentionSequence>& sequences, ScoreForm form = {}) {
  form.scale = 1.0f / std::sqrt(static_cast<float>(f.layout.head_dim));
  std::vector<float> out(static_cast<std::size_t>(f.Rows() * f.Width()), -5.0f);
  const std::int64_t longest = *std::max_element(f.lengths.begin(), f.lengths.end());
  AlignedBuffer<float> workspace(AttentionWorkspaceFloats(f.layout, f.num_heads, longest, context.pool->size()));
  Attention(context, {.pages = {f.layout, f.arena, f.layer},
                      .sequences = sequences,
                      .num_heads = f.num_heads,
                      .form = form,
                      .q = {f.q.data(), f.Width()},
                      .out = {out.data(), f.Width()},
                      .workspace = workspace.data()});
  return out;
}

void Store(const KernelContext& context, const Fixture& f, const std::vector<AttentionSequence>& sequences) {
  StoreKv(context, {{f.layout, f.arena, f.layer}, sequences, {f.k.data(), f.KvWidth()}, {f.v.data(), f.KvWidth()}});
}

struct Geometry {
  std::int64_t num_heads, num_kv_heads, head_dim, page_tokens;
};
constexpr DType kPageTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8};
constexpr Geometry kGeometries[] = {{2, 2, 64, 16}, {8, 2, 32, 8}, {3, 1, 24, 4}, {16, 1, 40, 32}, {4, 4, 18, 64}};

template <typename F>
void ForEachLayout(const F& fn) {
  for (DType dtype : kPageTypes) {
    for (const Geometry& g : kGeometries) {
      fn(KvLayout{.num_layers = 2,
                  .num_kv_heads = g.num_kv_heads,
                  .head_dim = g.head_dim,
                  .page_tokens = g.page_tokens,
                  .dtype = dtype},
         g.num_heads);
    }
  }
}

TEST_P(AttentionTest, StoreKvRoundsLikeTheReference) {
  ForEachLayout([&](const KvLayout& layout, std::int64_t num_heads) {
    Fixture actual = MakeFixture(layout, num_heads, {1, 37, 5}, 7);
    Fixture expected = MakeFixture(layout, num_heads, {1, 37, 5}, 7);
    // Values that round up, down, to even, to infinity and to a subnormal.
    const float special[] = {1.00390625f, 1.01171875f, 65519.0f, 65520.0f, 3e-6f, -0.0f, 1e-8f, -3.3895314e38f};
    std::copy(std::begin(special), std::end(special), actual.k.begin());
    std::copy(std::begin(special), std::end(special), expected.k.begin());
    std::copy(std::begin(special), std::end(special), actual.v.begin() + 3);
    std::copy(std::begin(special), std::end(special), expected.v.begin() + 3);
    Store(context(), actual, actual.All());
    Store(reference(), expected, expected.All());
    ASSERT_EQ(
        std::memcmp(actual.memory.data(), expected.memory.data(), static_cast<std::size_t>(actual.memory.capacity())),
        0)
        << DTypeName(layout.dtype) << " head_dim " << layout.head_dim << " page_tokens " << layout.page_tokens;
  });
}

TEST_P(AttentionTest, AgreesWithTheReference) {
  ForEachLayout([&](const KvLayout& layout, std::int64_t num_heads) {
    const Fixture f = MakeFixture(layout, num_heads, {1, 70, 17, 3}, 8);
    Store(reference(), f, f.All());
    for (std::int32_t window : {0, 1, 2, 20, 64}) {
      const ScoreForm form = {.soft_cap = window % 4 == 0 ? 0.0f : 5.0f, .window = window};
      const auto expected = Attend(reference(), f, f.All(), form);
      const auto actual = Attend(context(), f, f.All(), form);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // Averages of values in [-1, 1]. Scores up to about 3 * 64 have an error of 64 * 2^-24 of that, and the
        // exponential passes it on. The worst case is 200 * 64 / 2^24 = 8e-4; a random walk makes it 1e-5.
        ASSERT_NEAR(actual[i], expected[i], 2e-5f)
            << DTypeName(layout.dtype) << " head_dim " << layout.head_dim << " page_tokens " << layout.page_tokens
            << " window " << window << " at " << i;
      }
    }
  });
}

// ALiBi, with positions beyond 256 that bfloat16 does not have, and the bits of each row alone.
TEST_P(AttentionTest, LinearBiases) {
  for (const Geometry& g : kGeometries) {
    const KvLayout layout = {.num_layers = 2,
                             .num_kv_heads = g.num_kv_heads,
                             .head_dim = g.head_dim,
                             .page_tokens = g.page_tokens,
                             .dtype = DType::kF32};
    const Fixture f = MakeFixture(layout, g.num_heads, {300, 9}, 13);
    Store(context(), f, f.All());
    std::vector<float> slopes;
    for (std::int64_t head = 0; head < g.num_heads; ++head) {
      slopes.push_back(BF16ToF32(F32ToBF16(0.3f / static_cast<float>(head + 1))));
    }
    std::vector<std::vector<float>> results = {Attend(context(), f, f.All())};
    for (const bool rounds : {false, true}) {
      for (std::int32_t window : {0, 20}) {
        const ScoreForm form = {
            .soft_cap = window == 0 ? 0.0f : 5.0f, .window = window, .slopes = slopes.data(), .rounds_bias = rounds};
        const auto expected = Attend(reference(), f, f.All(), form);
        const auto actual = Attend(context(), f, f.All(), form);
        for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 3e-5f) << i;
        if (window == 0) results.push_back(actual);
        for (std::int64_t position : {0, 3, 200, 299}) {
          AttentionSequence row = f.Whole(0);
          row.position = row.first_row = position;
          row.num_tokens = 1;
          const auto alone = Attend(context(), f, {row}, form);
          const auto at = static_cast<std::size_t>(position * f.Width());
          ASSERT_TRUE(BitwiseEqual(alone.data() + at, actual.data() + at, f.Width())) << position;
        }
      }
    }
    const auto differ = [&](std::size_t a, std::size_t b) {
      float most = 0;
      for (std::size_t i = 0; i < results[a].size(); ++i) {
        most = std::max(most, std::abs(results[a][i] - results[b][i]));
      }
      return most;
    };
    EXPECT_GT(differ(0, 1), 0.1f);   // the biases matter,
    EXPECT_GT(differ(1, 2), 0.01f);  // and so does their rounding
  }
}

// A prompt in one piece, in chunks, or token by token, alone and beside others, gives the same bits.
TEST_P(AttentionTest, RowsHaveTheSameBitsHoweverTheyAreBatched) {
  ForEachLayout([&](const KvLayout& layout, std::int64_t num_heads) {
    const Fixture f = MakeFixture(layout, num_heads, {45, 70, 9}, 9);
    for (std::int32_t window : {0, 7, 33}) {
      Store(context(), f, f.All());
      const auto whole = Attend(context(), f, f.All(), {.window = window});
      for (std::int64_t chunk : {1, 2, 3, 7, 13, 32}) {
        for (std::size_t s = 0; s < f.lengths.size(); ++s) {
          for (std::int64_t begin = 0; begin < f.lengths[s]; begin += chunk) {
            AttentionSequence part = f.Whole(s);
            part.first_row += begin;
            part.position = begin;
            part.num_tokens = std::min(chunk, f.lengths[s] - begin);
            const auto out = Attend(context(), f, {part}, {.window = window});
            const std::size_t at = static_cast<std::size_t>(part.first_row * f.Width());
            ASSERT_TRUE(BitwiseEqual(out.data() + at, whole.data() + at, part.num_tokens * f.Width()))
                << DTypeName(layout.dtype) << " head_dim " << layout.head_dim << " page_tokens " << layout.page_tokens
                << " window " << window << " chunk " << chunk << " from " << begin;
          }
        }
      }
    }
  });
}

// A row must not read positions after its own: whether pages hold later tokens or NaN there changes no bit.
TEST_P(AttentionTest, IgnoresWhatLiesBeyondTheOwnPosition) {
  ForEachLayout([&](const KvLayout& layout, std::int64_t num_heads) {
    const Fixture full = MakeFixture(layout, num_heads, {50}, 10);
    Store(context(), full, full.All());
    const auto expected = Attend(context(), full, full.All());
    const Fixture partial = MakeFixture(layout, num_heads, {50}, 10);
    for (std::int64_t length = 1; length <= 50; ++length) {
      const AttentionSequence token = {length - 1, 1, length - 1, partial.pages[0].data()};
      Store(context(), partial, {token});
      const auto out = Attend(context(), partial, {token});
      const std::size_t at = static_cast<std::size_t>((length - 1) * full.Width());
      ASSERT_TRUE(BitwiseEqual(out.data() + at, expected.data() + at, full.Width())) << length;
    }
  });
}

TEST_P(AttentionTest, WritesOnlyItsOwnRows) {
  const KvLayout layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 16, .page_tokens = 16};
  const Fixture f = MakeFixture(layout, 4, {5, 6}, 11);
  Store(context(), f, f.All());
  const auto out = Attend(context(), f, {f.Whole(1)});
  for (std::int64_t i = 0; i < 5 * f.Width(); ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], -5.0f);
}

// Very large and very small scores: the maximum is subtracted first.
TEST_P(AttentionTest, SoftmaxDoesNotOverflow) {
  const KvLayout layout = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 8, .page_tokens = 16, .dtype = DType::kF32};
  Fixture f = MakeFixture(layout, 1, {20}, 12);
  for (float& x : f.q) x *= 1e4f;
  Store(context(), f, f.All());
  const auto expected = Attend(reference(), f, f.All());
  const auto actual = Attend(context(), f, f.All());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-2f);
}

}  // namespace
}  // namespace loramux::attention_test
