// One step's work as flat arrays: what an executor needs, and no pointer into the engine. A device copies the arrays to
// its memory; the engine may change its requests as soon as the batch is submitted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memory/layer_progress.h"
#include "memory/tier.h"
#include "step/pool_batch.h"
#include "step/sample_batch.h"

namespace loramux {

struct AdapterVersion;

// Copies a whole page of the device pool; both are page indices. The source page is full and unchanged until the step's
// result has been polled. The destination belongs to one sequence alone. Positions after the ones that the sequence
// takes over are overwritten before they are read.
struct PageCopy {
  std::uint32_t source = 0, destination = 0;
};

// One load of an adapter to the device. Slots are small numbers that are used again; `load` tells the loads apart.
struct AdapterRef {
  std::uint32_t slot = 0;
  std::uint64_t load = 0;
  friend bool operator==(AdapterRef, AdapterRef) = default;
};

// Registers a load with the executor: where its rows lie. It stands in the first batch that uses the load, and holds
// until the slot is registered again; no step in flight then uses the earlier load. (Pages are here and not in each
// AdapterRef because they stay the same as long as the load does: a device writes its tables of row addresses once.)
struct AdapterPlacement {
  AdapterRef adapter;
  std::shared_ptr<const AdapterVersion> version;  // its layout says which row is where
  PageSet pages;                                  // pages on the device
  PageSet host_pages;                             // pages of the copy in the host tier; empty: there is none
};

// Adjacent rows of the batch that use one adapter; also adjacent sequences.
struct AdapterSegment {
  AdapterRef adapter;
  AdapterGeneration generation;
  std::int32_t rank = 0;  // the largest of its modules
  std::int32_t first_token = 0, num_tokens = 0;
  // The copy in the host tier (AdapterPlacement::host_pages) is to be used where the device's is not there yet; it
  // stays until the step has ended. Then its sequences' adapter_arrival means layers of that copy, and is -1 if it is
  // whole.
  bool in_host = false;
  // With `in_host`: the layers that arrive on the device meanwhile. Null: none are under way yet.
  std::shared_ptr<const LayerProgress> to_device;
};

// One sequence's part of the step. An index of -1 means that there is none.
struct StepSequence {
  RequestId id;
  std::int64_t position = 0;  // position of its first token in this step; earlier positions are in its pages
  // The length of the sequence's whole prompt. Used only by dynamic rope scaling: the token at position p is rotated as
  // in a sequence of max(prompt_tokens, p + 1) tokens. That equals transformers' result for a prompt in one pass
  // followed by single tokens. It depends neither on chunking nor on a recomputation after preemption. As a
  // consequence, beyond max_position the keys of equal prefixes differ between prompts of different lengths
  // (ModelConfig::TurnsAlike).
  std::int64_t prompt_tokens = 0;
  FlatRange tokens;           // range of StepBatch::tokens; at least one. The last may be a draft (AddDraft)
  FlatRange pages;            // range of StepBatch::pages: its page table, up to the last of its tokens
  std::int32_t segment = -1;  // index in StepBatch::segments; -1: the base model
  // Index in StepBatch::arrivals, set while layers of the adapter, or of the keys and values before `position`, are
  // still arriving. A layer may be read only after it has arrived. If a transfer fails, the sequence's keys, values and
  // token are garbage that the engine discards.
  std::int32_t adapter_arrival = -1, kv_arrival = -1;
  std::int32_t logit_rows = 0;  // how many of its last tokens need logits
  // Index in StepBatch::samples of the first token that is sampled: it follows the last known one. One more follows
  // each token of a draft.
  std::int32_t sample = -1;
  // Range of StepBatch::scores: prompt tokens whose log-probabilities are wanted. The first is the one that follows
  // token `first_scored` of this step.
  FlatRange scores;
  std::int32_t first_scored = 0;
};

// The work of one step. Vectors keep their memory when a batch is used again (StepBatchBuilder).
struct StepBatch {
  std::vector<PageCopy> copies;              // done before any computation; a destination is never a source
  std::vector<AdapterPlacement> placements;  // loads that this step is the first to use
  std::vector<TokenId> tokens;               // to compute: one row each, sequence after sequence
  std::vector<std::uint32_t> pages;          // page tables, one after another: indices into the device pool
  std::vector<StepSequence> sequences;       // those of one adapter are adjacent, base model first
  std::vector<AdapterSegment> segments;      // in the order of their rows
  std::vector<std::shared_ptr<const LayerProgress>> arrivals;  // arrivals that the step waits for, each once
  SampleBatch samples;                                         // in the order of the sequences
  std::vector<ScoreRow> scores;                                // in the order of the sequences
  PoolBatch pools;                                             // sequences that are pooled in this step, in their order

  std::span<const TokenId> TokensOf(const StepSequence& sequence) const {
    return std::span(tokens).subspan(sequence.tokens.first, sequence.tokens.size);
  }
  std::span<const std::uint32_t> PagesOf(const StepSequence& sequence) const {
    return std::span(pages).subspan(sequence.pages.first, sequence.pages.size);
  }
  // Null: the base model.
  const AdapterSegment* SegmentOf(const StepSequence& sequence) const {
    return sequence.segment < 0 ? nullptr : &segments[static_cast<std::size_t>(sequence.segment)];
  }
  // Null: nothing that the index stands for is arriving.
  const LayerProgress* Arrival(std::int32_t index) const {
    return index < 0 ? nullptr : arrivals[static_cast<std::size_t>(index)].get();
  }

  // Adds a sequence that computes `tokens`, from `position` on. `pages`: its page table up to the last of them. The
  // functions below say what else the step does with it. Valid until the next one is added.
  StepSequence& Add(RequestId id, std::span<const TokenId> tokens, std::int64_t position,
                    std::span<const std::uint32_t> pages);
  // The same without contents, for executors that read none (Executor::reads_contents).
  StepSequence& AddBare(RequestId id, std::size_t tokens, std::int64_t position);
  // The sequence, which is the last, also computes tokens that may follow its own, to find out whether they do. Its
  // page table covers them. `contents`: as without AddBare.
  void AddDraft(StepSequence& sequence, std::span<const TokenId> draft, bool contents = true);
  // The sequence uses an adapter: it joins the last segment, or begins one, which has no generation yet. Called once
  // for each sequence, when it is the last.
  AdapterSegment& UseAdapter(StepSequence& sequence, AdapterRef adapter);
  // The index of an arrival; -1 if `progress` is null.
  std::int32_t Await(const std::shared_ptr<const LayerProgress>& progress);
  // The sequence samples a token, and one behind each token of its draft (AddDraft) that turns out right. `constraint`:
  // null if any token may be sampled.
  void Sample(StepSequence& sequence, const SamplingParams& params, const SamplerContext& context,
              const std::shared_ptr<TokenConstraint>& constraint = nullptr, std::span<const TokenId> draft = {});
  // Scores prompt tokens, the first of which follows token `first_scored` of the step, with `top_logprobs`
  // alternatives.
  void Score(StepSequence& sequence, std::span<const TokenId> scored, std::int64_t first_scored,
             std::int32_t top_logprobs);
  // Empties the arrays and keeps their memory.
  void Clear();
};

}  // namespace loramux
