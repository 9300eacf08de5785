#include "cluster/scorers.h"

#include <algorithm>

#include "cluster/rendezvous.h"
#include "cluster/request_cost.h"
#include "cluster/server_load.h"

namespace loramux {
namespace {

// Seconds of a step; 0 if there is nothing to compute.
double StepSeconds(const PerformanceModel& model, const StepLoad& step) {
  return step.prefill_tokens + step.decode_sequences > 0 ? model.SecondsOf(step) : 0;
}

}  // namespace

double NoCost(const RouteContext&, const ServerView&) { return 0; }

double RequestCount(const RouteContext&, const ServerView& view) {
  return static_cast<double>(view.load->requests() + 1);
}

double QueueLength(const RouteContext&, const ServerView& view) { return static_cast<double>(view.load->waiting + 1); }

double Emptiness(const RouteContext& context, const ServerView& view) {
  const double requests = RequestCount(context, view);
  return HasRoom(context, view) ? -requests : requests;
}

double RendezvousOrder(const RouteContext& context, const ServerView& view) {
  const std::uint64_t weight = RendezvousWeight(RendezvousKey(context), view.name);
  return 1 - static_cast<double>(weight) * 0x1p-64;
}

double RankAwareCost(const RouteContext& context, const ServerView& view) {
  const PerformanceModel& model = *context.model;
  const AdapterState state = StateOf(view, context.request.adapter);
  const double decode = StepSeconds(model, ExistsWith(view, context.request, state));
  const double more_prefill =
      StepSeconds(model, QueueWith(view, context.request, state)) - StepSeconds(model, view.load->queue);
  const double more_decode = decode - StepSeconds(model, view.load->exists);
  const std::int64_t expected = context.average_answer > 0 ? context.average_answer : context.request.output_tokens;
  const auto answer = static_cast<double>(std::max<std::int64_t>(1, expected));
  double cost = more_prefill / answer + more_decode;
  if (context.tpot_objective > 0 && decode > static_cast<double>(context.tpot_objective) / kNsPerSecond)
    cost += kObjectivePenalty;
  return cost * static_cast<double>(view.load->requests());
}

double SecondsOfAll(const RouteContext& context, const ServerView& view) { return CostOf(context, view).Sum(); }

bool HasRoom(const RouteContext& context, const ServerView& view) {
  const ServerLoad& load = *view.load;
  const AdapterState state = StateOf(view, context.request.adapter);
  if (context.tpot_objective > 0) {
    const double step = context.model->SecondsOf(ExistsWith(view, context.request, state));
    if (step > static_cast<double>(context.tpot_objective) / kNsPerSecond) return false;
  }
  if (view.snapshot == nullptr) return true;
  const ServerSnapshot& snapshot = *view.snapshot;
  if (snapshot.max_running > 0 && load.requests() + 1 > snapshot.max_running) return false;
  return snapshot.device_pages == 0 || MissingPages(view, context.request, state) <= EvictablePages(snapshot);
}

double LoraAffinity(const RouteContext& context, const ServerView& view) {
  const RouteRequest& request = context.request;
  if (request.adapter.empty() || view.snapshot == nullptr) return 0;
  const AdapterState state = StateOf(view, request.adapter);
  if (state.requests - state.queued > 0) return 1;
  const bool fits = view.snapshot->free_pages >= AdapterPages(view, request, state);
  if (fits) return 0.8;
  return state.queued > 0 ? 0.6 : 0;
}

}  // namespace loramux
