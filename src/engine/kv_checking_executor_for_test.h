// An executor that writes a hash of all tokens before a position as its keys and values, and checks what others wrote.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "engine/engine.h"
#include "engine/modeled_executor.h"
#include "residency/transfer.h"

namespace loramux {

// Vocabulary size of the test model.
inline constexpr std::int64_t kTestVocab = 1000;
inline constexpr std::int64_t kTestPageTokens = 4;
inline constexpr std::int32_t kTestLayers = 4;
inline constexpr std::size_t kTestLayerBytes = kTestPageTokens * sizeof(std::uint32_t);  // bytes of a layer in a page

// Checks that each sequence's page table leads to keys and values computed for exactly its tokens under its adapter's
// content. A layer is checked when it is read: at once, or as soon as it has arrived. "Keys and values" are a hash of
// all tokens so far, written where a real executor would write them. As with a real executor, a batch is not done until
// every layer has arrived or failed, and a sequence with a failed arrival yields garbage.
class KvCheckingExecutor final : public Executor {
 public:
  KvCheckingExecutor(const Clock* clock, ModeledExecutor* executor, PagePool* device)
      : clock_(clock), executor_(executor), device_(device) {}

  void Submit(StepBatch batch) override {
    batch_ = batch;
    computed_ = false;
    next_layer_.assign(batch.sequences.size(), 0);
    for (const AdapterPlacement& placement : batch.placements) Place(placement);
    for (const PageCopy& copy : batch.copies) Copy(copy);
    for (const StepSequence& sequence : batch.sequences) Learn(sequence);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) ReadLayers(i);
    executor_->Submit(std::move(batch));
  }
  // Tells of a request's prompt, of which the cache may hold a part. Otherwise the prompt is learned from the batches.
  // The base model computes its first `base_tokens`, whatever the adapter.
  void Expect(RequestId id, std::vector<TokenId> prompt, std::int64_t base_tokens = 0) {
    tokens_[id] = std::move(prompt);
    base_tokens_[id] = base_tokens;
  }
  // A real executor may copy a page at any time until now, so each source page must be unchanged.
  bool Poll(StepResult& result) override {
    if (!batch_.has_value()) return false;
    bool all_ended = true;
    for (std::size_t i = 0; i < batch_->sequences.size(); ++i) {
      ReadLayers(i);
      all_ended &= next_layer_[i] == kTestLayers || Failed(batch_->sequences[i]);
    }
    if (!computed_ && executor_->Poll(result)) {
      computed_ = true;
      computed_at_ = clock_->Now();
    }
    if (!computed_ || !all_ended) return false;
    result.waited = clock_->Now() - computed_at_ + held_up_;
    for (const StepSequence& sequence : batch_->sequences) {
      if (Failed(sequence)) WriteGarbage(sequence);
    }
    for (const auto& [page, bytes] : sources_) EXPECT_EQ(std::memcmp(PageAt(page), bytes.data(), bytes.size()), 0);
    sources_.clear();
    result.error = fault_;
    result.failures.clear();
    for (std::size_t i = 0; i < batch_->sequences.size(); ++i) {
      const StepSequence& sequence = batch_->sequences[i];
      if (sequence.id != failing_) continue;
      WriteGarbage(sequence);
      result.failures.push_back({static_cast<std::int32_t>(i), Internal("no answer in time")});
    }
    batch_.reset();
    return true;
  }
  // The first pages of each sequence hold its states: a hash of all tokens before the next one.
  void set_state_pages(std::int64_t pages) { state_pages_ = pages; }
  // The next steps fail with this error.
  void set_fault(std::optional<Error> fault) { fault_ = std::move(fault); }
  // This sequence's part of each step fails alone.
  void set_failing(RequestId id) { failing_ = id; }
  // Adds the time for which the engine's thread is held up between its look at the clock and each Poll.
  void set_held_up(TimeNs duration) { held_up_ = duration; }
  // Positions read that another request had computed.
  std::int64_t checked() const { return checked_; }
  // Layers that were read before the last one of the same sequence had arrived.
  std::int64_t layers_read_early() const { return layers_read_early_; }
  std::int64_t discarded() const { return discarded_; }  // sequences with a failed arrival

 private:
  std::byte* PageAt(std::uint32_t page) const { return device_->View().Page(page); }
  void Copy(const PageCopy& copy) {
    const auto bytes = static_cast<std::size_t>(device_->page_bytes());
    ASSERT_NE(copy.source, copy.destination);
    std::memcpy(PageAt(copy.destination), PageAt(copy.source), bytes);
    sources_.emplace_back(copy.source, std::vector<std::byte>(PageAt(copy.source), PageAt(copy.source) + bytes));
  }
  void Place(const AdapterPlacement& placement) {
    const AdapterVersion& version = *placement.version;
    EXPECT_EQ(static_cast<std::int64_t>(placement.pages.pages.size()), version.layout.pages);
    contents_[placement.adapter.slot] = {placement.adapter.load, version.file.digest.empty()
                                                                     ? version.generation.value
                                                                     : std::hash<std::string>()(version.file.digest)};
  }
  // The content of the adapter that the sequence runs with; 0: the base model.
  std::uint64_t Content(const StepSequence& sequence) const {
    const AdapterSegment* const segment = batch_->SegmentOf(sequence);
    if (segment == nullptr) return 0;
    const auto& [load, content] = contents_.at(segment->adapter.slot);
    EXPECT_EQ(load, segment->adapter.load) << "a load of the adapter was not registered";
    return content;
  }
  void Learn(const StepSequence& sequence) {
    std::vector<TokenId>& known = tokens_[sequence.id];
    const auto position = static_cast<std::size_t>(sequence.position);
    ASSERT_LE(position, known.size());
    const auto tokens = batch_->TokensOf(sequence);
    known.resize(std::max(known.size(), position + tokens.size()));
    std::copy(tokens.begin(), tokens.end(), known.begin() + sequence.position);
  }
  bool Failed(const StepSequence& sequence) const {
    const auto failed = [this](std::int32_t arrival) { return arrival >= 0 && batch_->Arrival(arrival)->failed(); };
    return failed(sequence.adapter_arrival) || failed(sequence.kv_arrival);
  }
  // The number of layers available of everything that the sequence reads.
  std::int32_t Layers(const StepSequence& sequence) const {
    std::int32_t layers = kTestLayers;
    for (const std::int32_t index : {sequence.adapter_arrival, sequence.kv_arrival}) {
      const LayerProgress* const arrival = batch_->Arrival(index);
      if (arrival != nullptr && arrival->arrived() < arrival->layers()) layers = std::min(layers, arrival->arrived());
    }
    return layers;
  }
  std::byte* At(const StepSequence& sequence, std::int64_t position, std::int32_t layer) const {
    return PageAt(batch_->PagesOf(sequence)[static_cast<std::size_t>(state_pages_ + position / kTestPageTokens)]) +
           layer * static_cast<std::int64_t>(kTestLayerBytes) +
           position % kTestPageTokens * static_cast<std::int64_t>(sizeof(std::uint32_t));
  }
  // The words of the sequence's states after the tokens of `hash`, one in each page.
  void CheckStates(const StepSequence& sequence, std::uint64_t hash) const {
    for (std::int64_t i = 0; i < state_pages_; ++i) {
      std::uint64_t found = 0;
      std::memcpy(&found, PageAt(batch_->PagesOf(sequence)[static_cast<std::size_t>(i)]), sizeof(found));
      ASSERT_EQ(found, SplitMix64(hash + 77 + static_cast<std::uint64_t>(i)))
          << "request " << sequence.id << " goes on from a wrong state at position " << sequence.position;
    }
  }
  void WriteStates(const StepSequence& sequence, std::uint64_t hash) const {
    for (std::int64_t i = 0; i < state_pages_; ++i) {
      const std::uint64_t word = SplitMix64(hash + 77 + static_cast<std::uint64_t>(i));
      std::memcpy(PageAt(batch_->PagesOf(sequence)[static_cast<std::size_t>(i)]), &word, sizeof(word));
    }
  }
  void ReadLayers(std::size_t i) {
    const StepSequence& sequence = batch_->sequences[i];
    if (Failed(sequence)) return;
    const std::int32_t end = Layers(sequence);
    for (std::int32_t& layer = next_layer_[i]; layer < end; ++layer) {
      CheckAndWrite(sequence, layer);
      layers_read_early_ += end < kTestLayers;
    }
  }
  void CheckAndWrite(const StepSequence& sequence, std::int32_t layer) {
    const std::vector<TokenId>& tokens = tokens_.at(sequence.id);
    const std::int64_t base_tokens = base_tokens_[sequence.id], end = sequence.position + sequence.tokens.size;
    ASSERT_TRUE(sequence.position >= base_tokens || (end <= base_tokens && batch_->SegmentOf(sequence) == nullptr))
        << "request " << sequence.id << " uses its adapter before position " << base_tokens;
    std::uint64_t hash = SplitMix64(base_tokens > 0 ? 0 : Content(sequence));
    for (std::int64_t p = 0; p < end; ++p) {
      if (p > 0 && p == sequence.position && layer == 0) CheckStates(sequence, hash);
      if (p == base_tokens && p > 0) hash = SplitMix64(hash ^ SplitMix64(Content(sequence)));
      hash = SplitMix64(hash ^ static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(p)]));
      const auto expected = static_cast<std::uint32_t>(SplitMix64(hash + static_cast<std::uint64_t>(layer)));
      if (p >= sequence.position) {
        std::memcpy(At(sequence, p, layer), &expected, sizeof(expected));
        continue;
      }
      std::uint32_t found = 0;
      std::memcpy(&found, At(sequence, p, layer), sizeof(found));
      ASSERT_EQ(found, expected) << "request " << sequence.id << " reads wrong keys and values at position " << p
                                 << ", layer " << layer;
      checked_ += layer == 0;
    }
    if (layer + 1 == kTestLayers) WriteStates(sequence, hash);
  }
  void WriteGarbage(const StepSequence& sequence) {
    ++discarded_;
    WriteStates(sequence, 0xeeee);
    for (std::int64_t p = sequence.position; p < sequence.position + sequence.tokens.size; ++p) {
      for (std::int32_t layer = 0; layer < kTestLayers; ++layer)
        std::memset(At(sequence, p, layer), 0xee, sizeof(std::uint32_t));
    }
  }

  const Clock* clock_;
  ModeledExecutor* executor_;
  PagePool* device_;
  std::int64_t state_pages_ = 0;
  std::optional<StepBatch> batch_;  // in flight
  std::map<RequestId, std::vector<TokenId>> tokens_;
  std::map<RequestId, std::int64_t> base_tokens_;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> contents_;  // by slot: load, content
  TimeNs computed_at_ = 0;
  TimeNs held_up_ = 0;
  std::optional<Error> fault_;
  RequestId failing_;
  bool computed_ = false;
  std::vector<std::int32_t> next_layer_;  // by sequence: the next layer to read
  std::int64_t checked_ = 0, layers_read_early_ = 0, discarded_ = 0;
  // pages copied by the step in flight, and their content
  std::vector<std::pair<std::uint32_t, std::vector<std::byte>>> sources_;
};

}  // namespace loramux
