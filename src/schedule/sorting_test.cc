// Heap, MergeRuns and SortByAdapter against the standard library.
#include <algorithm>
#include <deque>
#include <functional>

#include "base/prng.h"
#include "schedule/heap.h"
#include "schedule/plan/merge_runs.h"
#include "schedule/plan/step_plan.h"

namespace loramux::sorting_test {
namespace {

TEST(Heap, FuzzAgainstASortedVector) {
  Prng prng(1);
  for (int round = 0; round < 200; ++round) {
    Heap<std::uint64_t, std::less<>> heap;
    std::vector<std::uint64_t> model;  // descending: the first element is at the back
    for (std::uint64_t n = prng.NextBelow(40); n > 0; --n) {
      model.push_back(prng.NextBelow(50));
      heap.Append(model.back());
    }
    heap.MakeHeap();
    for (int step = 0; step < 100; ++step) {
      std::sort(model.begin(), model.end(), std::greater<>());
      ASSERT_EQ(heap.empty(), model.empty());
      if (!model.empty()) {
        ASSERT_EQ(heap.first(), model.back());
      }
      const std::uint64_t value = prng.NextBelow(50), choice = prng.NextBelow(3);
      if (choice == 0 || model.empty()) {
        heap.Push(value);
        model.push_back(value);
      } else if (choice == 1) {
        heap.ReplaceFirst(value);
        model.back() = value;
      } else {
        heap.PopFirst();
        model.pop_back();
      }
    }
  }
}

TEST(MergeRuns, SortsStablyWhateverTheRuns) {
  Prng prng(2);
  using Pair = std::pair<std::uint64_t, int>;
  std::vector<Pair> buffer;
  const auto before = [](const Pair& a, const Pair& b) { return a.first < b.first; };
  for (int round = 0; round < 500; ++round) {
    std::vector<Pair> values;
    const std::uint64_t run = 1 + prng.NextBelow(30);
    std::uint64_t at = 0;
    for (std::uint64_t n = prng.NextBelow(100); n > 0; --n) {
      at = prng.NextBelow(run) == 0 ? prng.NextBelow(20) : at + prng.NextBelow(3);
      values.emplace_back(at, static_cast<int>(n));
    }
    std::vector<Pair> expected = values;
    std::stable_sort(expected.begin(), expected.end(), before);
    MergeRuns(values, buffer, before);
    ASSERT_EQ(values, expected) << "round " << round;
  }
}

TEST(SortByAdapter, SortsStablyByGenerationsOfAnySize) {
  Prng prng(3);
  std::vector<PlannedChunk> buffer;
  const std::uint64_t one = 1;
  for (const std::uint64_t generations : {one, 3 * one, 300 * one, one << 20, one << 32}) {
    std::deque<Request> requests;
    std::vector<PlannedChunk> chunks;
    for (int i = 0; i < 200; ++i) {
      Request& request = requests.emplace_back();
      request.adapter = AdapterGeneration{static_cast<std::uint32_t>(prng.NextBelow(generations))};
      chunks.emplace_back().request = &request;
      chunks.back().num_tokens = i;
    }
    std::vector<PlannedChunk> expected = chunks;
    std::stable_sort(expected.begin(), expected.end(), [](const PlannedChunk& a, const PlannedChunk& b) {
      return a.request->adapter < b.request->adapter;
    });
    SortByAdapter(chunks, buffer);
    ASSERT_EQ(chunks.size(), expected.size());
    for (std::size_t i = 0; i < chunks.size(); ++i)
      ASSERT_EQ(chunks[i].num_tokens, expected[i].num_tokens) << generations;
  }
  std::vector<PlannedChunk> none;
  SortByAdapter(none, buffer);
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace loramux::sorting_test
