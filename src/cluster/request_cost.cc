#include "cluster/request_cost.h"

#include <algorithm>
#include <cmath>

#include "cluster/cached_prefix.h"
#include "costs/service_times.h"

namespace loramux {
namespace {

// The chance that an evicted page is asked for again before it would have gone anyway.
constexpr double kReuse = 0.5;

// A request that misses its objective costs as much as its answer takes at so many times the objective.
constexpr double kMissed = 3;
// Requests at a server differ: where tokens take 0.9 of the objective on average, half of them miss it. The slope was
// chosen in simulations; half or twice of it changes little.
constexpr double kHalfMiss = 0.9, kMissSlope = 0.15;

double Double(std::int64_t count) { return static_cast<double>(count); }

// Seconds until the adapter is in the host tier, and until it is on the device, without a queue.
struct ArrivalTimes {
  double host = 0, device = 0;
};

double LinkSeconds(const PerformanceModel::Link& link, double bytes) {
  return link.bytes_per_second > 0 ? link.latency + bytes / link.bytes_per_second : 0;
}

ArrivalTimes ArrivalOf(const RouteContext& context, const ServerView& view, const AdapterState& state) {
  const PerformanceModel& model = *context.model;
  const bool listed = state.listed != nullptr;
  if (context.request.adapter.empty() || (listed && state.listed->place == AdapterPlace::kDevice)) return {};
  const bool coming = state.queued > 0 || (listed && state.listed->place == AdapterPlace::kArriving);
  const double bytes = Double(listed ? state.listed->bytes : context.request.adapter_bytes);
  // Others that arrive share the link. Those that are on their way have passed half of it.
  const double ahead = std::max(0.0, Double(view.load->arriving_bytes) - (coming ? bytes : 0));
  const bool in_host = listed && state.listed->place != AdapterPlace::kDisk;
  ArrivalTimes times;
  if (!in_host) times.host = LinkSeconds(model.disk, bytes);
  times.device = times.host + LinkSeconds(model.host_to_device, bytes + ahead);
  if (coming) {
    const TimeNs since = state.sent_at >= 0 ? state.sent_at : view.snapshot_at;
    const double elapsed = static_cast<double>(std::max<TimeNs>(0, context.now - since)) / kNsPerSecond;
    times.host = std::max(0.0, times.host - elapsed);
    times.device = std::max(0.0, times.device - elapsed);
  }
  return times;
}

// Seconds until the queue has been computed, and there is a seat and memory.
double QueueSeconds(const RouteContext& context, const ServerView& view, const AdapterState& state, double step) {
  const ServerLoad& load = *view.load;
  const std::int64_t backlog = load.queue.prefill_tokens + load.running_prompt_tokens;
  double seconds = 0;
  if (backlog > 0) {
    StepLoad prompts = load.queue;
    prompts.prefill_tokens = backlog;
    seconds += context.model->SecondsOf(prompts);
  }
  if (view.snapshot == nullptr) return seconds;
  const ServerSnapshot& snapshot = *view.snapshot;
  if (backlog > 0 && snapshot.max_batch_tokens > 0) seconds += step * Double(backlog / snapshot.max_batch_tokens);
  // Requests end, and leave seats and pages, evenly over the time that one takes.
  const double service = step * Double(context.request.output_tokens);
  const std::int64_t seats = snapshot.max_running, without = load.requests() + 1 - seats;
  double ended = 0;  // the share of the running requests that must end before
  if (seats > 0 && without > 0) ended = Double(without) / Double(seats);
  const std::int64_t evictable = EvictablePages(snapshot);
  const std::int64_t held = snapshot.device_pages - snapshot.free_pages - evictable;
  const std::int64_t beyond = MissingPages(view, context.request, state) - evictable;
  if (snapshot.device_pages > 0 && beyond > 0)
    ended = std::max(ended, Double(beyond) / Double(std::max<std::int64_t>(1, held)));
  return seconds + service * ended;
}

// A step that computes `tokens` of the request's prompt behind `cached` ones, beside all that decode.
StepLoad PrefillStep(const RouteContext& context, const ServerView& view, const AdapterState& state,
                     std::int64_t cached) {
  const RouteRequest& request = context.request;
  const std::int64_t tokens = std::max<std::int64_t>(1, request.prompt_tokens - cached);
  StepLoad step = view.load->exists;
  step.prefill_tokens = tokens;
  step.prefill_sequences = 1;
  step.prefill_attention = tokens * cached + tokens * (tokens + 1) / 2;
  step.prefill_context = cached + tokens;
  if (request.adapter.empty()) return step;
  step.adapter_tokens += tokens;
  step.token_ranks += tokens * request.rank;
  step.max_rank = std::max<std::int64_t>(step.max_rank, request.rank);
  if (state.requests > 0) return step;
  step.rank_sum += request.rank;
  step.distinct_adapters += 1;
  return step;
}

// Seconds by which a prompt of mean length makes a step of this server longer.
double MeanStall(const RouteContext& context, const ServerView& view, double step) {
  const StepLoad& exists = view.load->exists;
  if (exists.decode_sequences == 0) return 0;
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // tokens of one prompt
  const std::int64_t mean =
      std::min(kMost, exists.decode_context / exists.decode_sequences) - context.request.output_tokens / 2;
  StepLoad with = exists;
  with.prefill_tokens = with.prefill_context = std::max<std::int64_t>(1, mean);
  with.prefill_attention = with.prefill_tokens * (with.prefill_tokens + 1) / 2;
  with.prefill_sequences = 1;
  return std::max(0.0, context.model->SecondsOf(with) - step);
}

// The chance that a request misses the objective where tokens take `token` seconds on average.
double ChanceOfMiss(double token, double objective) {
  return 1 / (1 + std::exp((kHalfMiss - token / objective) / kMissSlope));
}

double EvictedSeconds(const RouteContext& context, const ServerView& view, const AdapterState& state) {
  if (view.snapshot == nullptr || view.snapshot->device_pages == 0) return 0;
  const ServerSnapshot& snapshot = *view.snapshot;
  const std::int64_t evictable = EvictablePages(snapshot);
  const std::int64_t pages = std::min(MissingPages(view, context.request, state), evictable);
  if (pages <= 0) return 0;
  constexpr std::int64_t kTokens = 256;  // tokens of the prefill from which the time to compute a page again is derived
  const double of_history = PrefillSeconds(*context.model, kTokens, 0) / kTokens * Double(snapshot.page_tokens);
  const double of_adapter = LinkSeconds(
      {.latency = 0, .bytes_per_second = context.model->host_to_device.bytes_per_second}, Double(snapshot.page_bytes));
  const double mean = (Double(snapshot.history_pages) * of_history + Double(snapshot.idle_adapter_pages) * of_adapter) /
                      Double(evictable);
  return kReuse * Double(pages) * mean;
}

}  // namespace

std::int64_t AdapterPages(const ServerView& view, const RouteRequest& request, const AdapterState& state) {
  const ServerSnapshot& snapshot = *view.snapshot;
  const bool there = state.listed != nullptr &&
                     (state.listed->place == AdapterPlace::kDevice || state.listed->place == AdapterPlace::kArriving);
  if (request.adapter.empty() || there || snapshot.page_bytes <= 0) return 0;
  const std::int64_t bytes = state.listed != nullptr ? state.listed->bytes : request.adapter_bytes;
  return (bytes + snapshot.page_bytes - 1) / snapshot.page_bytes;
}

std::int64_t MissingPages(const ServerView& view, const RouteRequest& request, const AdapterState& state) {
  const std::int64_t adapter = state.queued > 0 ? 0 : AdapterPages(view, request, state);
  return view.load->claimed_pages + PagesOf(request, view.snapshot) + adapter - view.snapshot->free_pages;
}

std::int64_t EvictablePages(const ServerSnapshot& snapshot) {
  return snapshot.history_pages + snapshot.idle_adapter_pages;
}

RequestCost CostOf(const RouteContext& context, const ServerView& view) {
  const PerformanceModel& model = *context.model;
  const RouteRequest& request = context.request;
  const AdapterState state = StateOf(view, request.adapter);
  const StepLoad& exists = view.load->exists;
  const double others = Double(exists.decode_sequences),
               answer = Double(std::max<std::int64_t>(1, request.output_tokens));
  const double step = others > 0 ? model.SecondsOf(exists) : 0;
  const double step_with = model.SecondsOf(ExistsWith(view, request, state));
  const StepLoad prefill = PrefillStep(context, view, state, CachedTokens(view, request));

  RequestCost cost;
  cost.prefill = model.SecondsOf(prefill);
  const double stall = std::max(0.0, cost.prefill - step);
  // While a request decodes, the others end, and each one's successor stalls it once by the prompt of a mean request.
  const double stalls = others * MeanStall(context, view, step) / answer;
  const double token = step + stalls, token_with = step_with + stalls;
  cost.decode = answer * token_with;
  cost.others = others * (stall + answer * std::max(0.0, token_with - token));
  cost.evicted = EvictedSeconds(context, view, state);
  if (context.tpot_objective > 0) {
    const double objective = static_cast<double>(context.tpot_objective) / kNsPerSecond;
    const double missed = ChanceOfMiss(token_with, objective), more = missed - ChanceOfMiss(token, objective);
    cost.missed = kMissed * answer * objective * (missed + others * std::max(0.0, more));
  }

  const double queue = QueueSeconds(context, view, state, step);
  const ArrivalTimes arrival = ArrivalOf(context, view, state);
  cost.start = std::max(queue, arrival.device);
  if (arrival.device > queue && model.assist.measured()) {
    // The host computes with its copy until the device has one.
    const AssistedRows rows{.tokens = prefill.prefill_tokens, .rank = request.rank};
    cost.start = std::min(cost.start, std::max(queue, arrival.host) + AssistSeconds(model, prefill, {&rows, 1}));
  }
  return cost;
}

}  // namespace loramux
