#include "cluster/server_load.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr std::int64_t kMostPrompt = std::int64_t{1} << 24;   // tokens of one prompt
constexpr std::int64_t kMostProduct = std::int64_t{1} << 44;  // sums over all adapters stay in range

// The product, bounded: what servers say of themselves is not trusted.
std::int64_t Times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMostProduct : std::min(product, kMostProduct);
}

// Adds the adapter's part of `tokens` tokens of such requests to a step; a negative number takes them away.
void AddTokens(const RouteRequest& request, std::int64_t tokens, bool first_of_adapter, StepLoad& step) {
  if (request.adapter.empty()) return;
  const std::int64_t sign = tokens < 0 ? -1 : 1;
  step.adapter_tokens += tokens;
  step.token_ranks += tokens * request.rank;
  step.max_rank = std::max<std::int64_t>(step.max_rank, request.rank);
  if (!first_of_adapter) return;
  step.rank_sum += sign * request.rank;
  step.distinct_adapters += sign;
}

// Adds the prompt of the request, so many times; a negative number takes prompts away.
void AddPrompt(const RouteRequest& request, bool first_of_adapter, std::int64_t times, StepLoad& step) {
  const std::int64_t tokens = std::max<std::int64_t>(1, request.prompt_tokens);
  step.prefill_tokens += times * tokens;
  step.prefill_sequences += times;
  step.prefill_attention += times * (tokens * (tokens + 1) / 2);
  step.prefill_context += times * tokens;
  AddTokens(request, times * tokens, first_of_adapter, step);
}

// Adds (or takes away) so many decoding sequences, which have their prompts and half of their answers.
void AddDecoding(const RouteRequest& request, bool first_of_adapter, std::int64_t times, StepLoad& step) {
  step.decode_sequences += times;
  step.decode_context += times * (request.prompt_tokens + request.output_tokens / 2);
  AddTokens(request, times, first_of_adapter, step);
}

// Adds `tokens` tokens that requests for this adapter compute.
void AddAdapter(const SnapshotAdapter& adapter, std::int64_t tokens, StepLoad& step) {
  if (tokens == 0) return;
  step.adapter_tokens += tokens;
  step.token_ranks += Times(tokens, adapter.rank);
  step.rank_sum += adapter.rank;
  step.max_rank = std::max<std::int64_t>(step.max_rank, adapter.rank);
  step.distinct_adapters += 1;
}

const SnapshotAdapter* ListedIn(const ServerSnapshot* snapshot, std::string_view adapter) {
  return snapshot == nullptr || adapter.empty() ? nullptr : snapshot->Find(adapter);
}

// Requests of the adapter as snapshot and changes have them.
AdapterState CountsOf(const SnapshotAdapter* listed, const ServerLoad::Change* change) {
  AdapterState state{.listed = listed};
  if (listed != nullptr) {
    state.queued = listed->waiting;
    state.requests = listed->running + listed->waiting;
  }
  if (change != nullptr) {
    state.queued += change->queued;
    state.requests = std::max<std::int64_t>(0, state.requests - change->ended) + change->sent;
    if (change->sent > 0) state.sent_at = change->first_sent;
  }
  return state;
}

}  // namespace

const ServerLoad::Change* ServerLoad::Find(std::string_view adapter) const {
  for (const Change& change : changes) {
    if (change.adapter == adapter) return &change;
  }
  return nullptr;
}

ServerLoad ServerLoad::Of(const ServerSnapshot& snapshot) {
  ServerLoad load;
  load.running = snapshot.running;
  load.waiting = snapshot.waiting;
  load.running_prompt_tokens = snapshot.running_prompt_tokens;
  const std::int64_t prompt =
      snapshot.waiting > 0 ? std::min(kMostPrompt, snapshot.waiting_prompt_tokens / snapshot.waiting) : 0;
  load.queue.prefill_tokens = load.queue.prefill_context = snapshot.waiting_prompt_tokens;
  load.queue.prefill_sequences = snapshot.waiting;
  load.queue.prefill_attention = Times(snapshot.waiting, prompt * (prompt + 1) / 2);
  load.exists.decode_sequences = snapshot.running + snapshot.waiting;
  load.exists.decode_context = snapshot.running_context + snapshot.waiting_prompt_tokens;
  for (const SnapshotAdapter& adapter : snapshot.adapters) {
    AddAdapter(adapter, Times(adapter.waiting, prompt), load.queue);
    AddAdapter(adapter, adapter.running + adapter.waiting, load.exists);
    const bool comes =
        adapter.place == AdapterPlace::kArriving || (adapter.place != AdapterPlace::kDevice && adapter.waiting > 0);
    if (comes) load.arriving_bytes += adapter.bytes;
  }
  if (snapshot.page_tokens > 0) {
    load.claimed_pages = (snapshot.waiting_prompt_tokens + snapshot.running_prompt_tokens + snapshot.page_tokens - 1) /
                         snapshot.page_tokens;
  }
  return load;
}

ServerLoad::Change& ServerLoad::ChangeOf(const RouteRequest& request) {
  for (Change& change : changes) {
    if (change.adapter == request.adapter) return change;
  }
  return changes.emplace_back(Change{.adapter = request.adapter, .rank = request.rank, .bytes = request.adapter_bytes});
}

// The first request for an adapter that is not on its way makes the server fetch it.
bool ServerLoad::Fetches(const RouteRequest& request, const SnapshotAdapter* listed, const Change& change) {
  return !request.adapter.empty() && change.queued == 0 &&
         (listed == nullptr ||
          (listed->place != AdapterPlace::kDevice && listed->place != AdapterPlace::kArriving && listed->waiting == 0));
}

void ServerLoad::AddSent(const OwnDispatch& dispatch, const ServerSnapshot* snapshot, std::int64_t times) {
  const RouteRequest& request = dispatch.request;
  const SnapshotAdapter* listed = ListedIn(snapshot, request.adapter);
  Change& change = ChangeOf(request);
  const AdapterState before = CountsOf(listed, &change);
  AddDecoding(request, before.requests == 0, times, exists);
  claimed_pages += times * PagesOf(request, snapshot);
  if (change.sent == 0) change.first_sent = dispatch.at;
  change.sent += 1;
  if (dispatch.answered) {
    running += times;
    return;
  }
  waiting += times;
  AddPrompt(request, before.queued == 0, times, queue);
  if (Fetches(request, listed, change)) arriving_bytes += request.adapter_bytes;
  change.queued += 1;
}

void ServerLoad::RemoveSent(const OwnDispatch& dispatch, const ServerSnapshot* snapshot, std::int64_t times) {
  const RouteRequest& request = dispatch.request;
  const SnapshotAdapter* listed = ListedIn(snapshot, request.adapter);
  Change& change = ChangeOf(request);
  change.sent -= 1;
  claimed_pages -= times * PagesOf(request, snapshot);
  if (dispatch.answered) {
    running -= times;
  } else {
    waiting -= times;
    change.queued -= 1;
    if (Fetches(request, listed, change)) arriving_bytes -= request.adapter_bytes;
  }
  const AdapterState after = CountsOf(listed, &change);
  if (!dispatch.answered) AddPrompt(request, after.queued == 0, -times, queue);
  AddDecoding(request, after.requests == 0, -times, exists);
  if (change.sent > 0 || change.ended > 0) return;
  changes.erase(changes.begin() + (&change - changes.data()));
}

void ServerLoad::AddEnded(const RouteRequest& request, const ServerSnapshot* snapshot) {
  const SnapshotAdapter* listed = ListedIn(snapshot, request.adapter);
  Change& change = ChangeOf(request);
  const std::int64_t before = CountsOf(listed, &change).requests;
  change.ended += 1;
  running = std::max<std::int64_t>(0, running - 1);
  exists.decode_sequences = std::max<std::int64_t>(0, exists.decode_sequences - 1);
  exists.decode_context =
      std::max<std::int64_t>(0, exists.decode_context - request.prompt_tokens - request.output_tokens / 2);
  if (request.adapter.empty() || before == 0) return;
  exists.adapter_tokens = std::max<std::int64_t>(0, exists.adapter_tokens - 1);
  exists.token_ranks = std::max<std::int64_t>(0, exists.token_ranks - request.rank);
  if (before > 1) return;
  // The largest rank stays: to know the second largest takes a search, until the next snapshot.
  exists.rank_sum = std::max<std::int64_t>(0, exists.rank_sum - request.rank);
  exists.distinct_adapters = std::max<std::int64_t>(0, exists.distinct_adapters - 1);
}

AdapterState StateOf(const ServerView& view, std::string_view adapter) {
  return CountsOf(ListedIn(view.snapshot, adapter), view.load->Find(adapter));
}

StepLoad QueueWith(const ServerView& view, const RouteRequest& request, const AdapterState& state) {
  StepLoad step = view.load->queue;
  AddPrompt(request, state.queued == 0, 1, step);
  return step;
}

StepLoad ExistsWith(const ServerView& view, const RouteRequest& request, const AdapterState& state) {
  StepLoad step = view.load->exists;
  AddDecoding(request, state.requests == 0, 1, step);
  return step;
}

std::int64_t PagesOf(const RouteRequest& request, const ServerSnapshot* snapshot) {
  if (snapshot == nullptr || snapshot->page_tokens <= 0) return 0;
  return (request.prompt_tokens + request.output_tokens + snapshot->page_tokens - 1) / snapshot->page_tokens;
}

}  // namespace loramux
