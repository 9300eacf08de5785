#include "simulate/fleet_summary.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace loramux {
namespace {

double FleetMs(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerMs); }
double FleetSeconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }
double PartOf(double part, double whole) { return whole > 0 ? part / whole : 0; }

double TokenMs(const RequestRecord& record) { return TokenTimeOf(record) / kNsPerMs; }

// Whether a request counts for the objective, and what it got.
struct Judged {
  bool counts = false, finished = false;
  KeptObjective kept;
};

Judged Judge(const RequestRecord& record, const FleetRequest& request, const FleetObjective& objective) {
  Judged judged;
  if (record.arrival < objective.warmup || request.end == FleetEnd::kCancelled) return judged;
  judged.counts = true;
  judged.finished = request.end == FleetEnd::kFinished;
  if (!judged.finished) return judged;
  judged.kept = KeptBy(record, objective);
  return judged;
}

// The figures of one adapter, while they are counted.
struct AdapterCount {
  AdapterSummary summary;
  std::vector<double> ttfts;
  double tokens = 0;
};

std::vector<AdapterSummary> SortAdapters(std::map<std::int32_t, AdapterCount> counts) {
  std::vector<AdapterSummary> adapters;
  for (auto& [adapter, count] : counts) {
    AdapterSummary& summary = count.summary;
    const auto requests = static_cast<double>(summary.requests), finished = static_cast<double>(count.ttfts.size());
    summary.attained = PartOf(summary.attained, requests);
    summary.cold = PartOf(summary.cold, requests);
    summary.mean_token = PartOf(count.tokens, finished);
    const Summary ttft = Summarise(std::move(count.ttfts));
    summary.p50_ttft = ttft.p50;
    summary.p99_ttft = ttft.p99;
    adapters.push_back(summary);
  }
  std::stable_sort(adapters.begin(), adapters.end(), [](const AdapterSummary& a, const AdapterSummary& b) {
    return std::pair(a.attained, -a.requests) < std::pair(b.attained, -b.requests);
  });
  return adapters;
}

void CountEnds(const FleetResult& result, FleetSummary& summary) {
  for (const FleetRequest& request : result.requests) {
    summary.refused += request.end == FleetEnd::kRefused;
    summary.cancelled += request.end == FleetEnd::kCancelled;
    summary.broken += request.end == FleetEnd::kBroken;
    summary.not_served += request.end == FleetEnd::kNotServed;
  }
  summary.retries = result.retries;
}

void SummariseServers(const FleetResult& result, FleetSummary& summary) {
  std::vector<double> sent, busy;
  double output = 0;
  for (const FleetServerTotals& server : result.servers) {
    sent.push_back(static_cast<double>(server.sent));
    busy.push_back(PartOf(FleetSeconds(server.busy), summary.seconds));
    output += static_cast<double>(server.output_tokens);
    summary.device_loads += server.device_loads;
    summary.disk_loads += server.disk_loads;
    summary.preemptions += server.preemptions;
  }
  summary.sent = Summarise(std::move(sent));
  summary.busy = Summarise(std::move(busy));
  summary.output_tokens_per_second = PartOf(output, summary.seconds);
}

}  // namespace

FleetSummary Summarise(const FleetResult& result, const Workload& workload, const FleetObjective& objective) {
  FleetSummary summary;
  CountEnds(result, summary);
  std::map<std::int32_t, AdapterCount> counts;
  std::vector<double> ttft, tpot, token;
  double prompt = 0, cached = 0;
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    const RequestRecord& record = result.run.requests[i];
    const FleetRequest& request = result.requests[i];
    const Judged judged = Judge(record, request, objective);
    if (!judged.counts || request.end == FleetEnd::kNeverAsked) continue;
    ++summary.requests;
    const bool within = judged.finished && judged.kept.All();
    summary.ttft_attained += judged.kept.ttft;
    summary.token_attained += judged.kept.token;
    summary.tpot_attained += judged.kept.tpot;
    summary.attained += within;
    summary.cold += request.cold;
    AdapterCount& count = counts[record.adapter];
    if (count.summary.requests == 0) count.summary.name = workload.NameOf(record.adapter);
    count.summary.adapter = record.adapter;
    if (record.adapter >= 0) count.summary.rank = workload.adapter_ranks[static_cast<std::size_t>(record.adapter)];
    ++count.summary.requests;
    count.summary.attained += within;
    count.summary.cold += request.cold;
    if (!judged.finished) continue;
    ++summary.finished;
    prompt += record.prompt_tokens;
    cached += record.cached_tokens;
    ttft.push_back(FleetMs(record.Ttft()));
    count.ttfts.push_back(ttft.back());
    token.push_back(TokenMs(record));
    count.tokens += token.back();
    if (record.output_tokens > 1)
      tpot.push_back(FleetMs(record.last_token - record.first_token) / (record.output_tokens - 1));
  }
  const auto requests = static_cast<double>(summary.requests);
  for (double* share :
       {&summary.attained, &summary.ttft_attained, &summary.token_attained, &summary.tpot_attained, &summary.cold})
    *share = PartOf(*share, requests);
  summary.prefix_hits = PartOf(cached, prompt);
  summary.ttft = Summarise(std::move(ttft));
  summary.tpot = Summarise(std::move(tpot));
  summary.token = Summarise(std::move(token));
  summary.seconds = FleetSeconds(result.run.end);
  summary.requests_per_second = PartOf(static_cast<double>(summary.finished), summary.seconds);
  SummariseServers(result, summary);
  summary.adapters = SortAdapters(std::move(counts));
  return summary;
}

std::vector<double> TokenTimesOf(const FleetResult& result, const FleetObjective& objective) {
  std::vector<double> times;
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    if (Judge(result.run.requests[i], result.requests[i], objective).finished)
      times.push_back(TokenMs(result.run.requests[i]));
  }
  return times;
}

Result<FleetSize> FindFleetSize(FleetOptions options, const Workload& workload, const FleetObjective& objective,
                                double share, std::int64_t most,
                                const std::function<Result<std::vector<FleetEvent>>(std::int64_t servers)>& faults,
                                const std::function<void(const std::string&)>& note) {
  FleetSize found;
  std::int64_t low = 0, high = 0;  // low: too few; high: enough, 0: not found yet
  std::int64_t servers = std::clamp<std::int64_t>(options.servers, 1, most);
  const auto requests = static_cast<std::int64_t>(workload.requests.size());
  options.server.give_up = {objective, MostMissed(requests, share)};
  while (high == 0 || high - low > 1) {
    options.servers = servers;
    ASSIGN_OR_RETURN(options.events, faults(servers));
    if (note) note(fmt::format("trying {} servers", servers));
    ASSIGN_OR_RETURN(FleetResult result, SimulateFleet(options, workload));
    const FleetSummary summary = Summarise(result, workload, objective);
    const std::int64_t kept = requests - options.server.give_up.most_missed - 1;
    const double attained =
        result.run.given_up ? PartOf(static_cast<double>(kept), static_cast<double>(requests)) : summary.attained;
    found.probes.push_back({servers, attained, summary.ttft.p99});
    (attained >= share ? high : low) = servers;
    if (high == servers) found.result = std::move(result);
    if (high == 0 && low >= most) break;
    if (high > 0 && low == 0 && high > 1)
      servers = high / 2;
    else
      servers = high == 0 ? std::min(most, 2 * low) : (low + high) / 2;
  }
  found.servers = high;
  std::sort(found.probes.begin(), found.probes.end(),
            [](const FleetSize::Probe& a, const FleetSize::Probe& b) { return a.servers < b.servers; });
  return found;
}

}  // namespace loramux
