#include "simulate/summary.h"

#include <algorithm>
#include <cmath>

namespace loramux {
namespace {

double Ms(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerMs); }
double Seconds(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerSecond); }
double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

void SummariseRequests(const SimulationResult& result, const ServiceObjective& objective, SimulationSummary& summary) {
  std::vector<double> tpot, token, end_to_end, queue;
  double output_tokens = 0, good = 0;
  for (const RequestRecord& record : result.requests) {
    if (record.refused) {
      ++summary.refused;
      continue;
    }
    if (record.cancelled) continue;
    ++summary.finished;
    output_tokens += record.output_tokens;
    good += record.Ttft() <= objective.ttft;
    const KeptObjective kept = KeptBy(record, objective);
    summary.within_tpot += kept.tpot;
    summary.within_token += kept.token;
    summary.attained += kept.All();
    token.push_back(TokenTimeOf(record) / kNsPerMs);
    queue.push_back(Ms(record.first_scheduled - record.arrival));
    end_to_end.push_back(Ms(record.EndToEnd()));
    if (record.output_tokens > 1)
      tpot.push_back(Ms(record.last_token - record.first_token) / (record.output_tokens - 1));
  }
  summary.ttft = Summarise(TtftsOf(result));
  summary.tpot = Summarise(std::move(tpot));
  summary.token = Summarise(std::move(token));
  summary.end_to_end = Summarise(std::move(end_to_end));
  summary.queue = Summarise(std::move(queue));
  summary.requests_per_second = Share(static_cast<double>(summary.finished), summary.seconds);
  summary.output_tokens_per_second = Share(output_tokens, summary.seconds);
  summary.goodput = Share(good, summary.seconds);
  const auto all = static_cast<double>(result.requests.size());
  summary.within_slo = Share(good, all);
  for (double* share : {&summary.within_tpot, &summary.within_token, &summary.attained}) *share = Share(*share, all);
}

}  // namespace

std::vector<double> TtftsOf(const SimulationResult& result) {
  std::vector<double> ttfts;
  for (const RequestRecord& record : result.requests) {
    if (record.Ended()) ttfts.push_back(Ms(record.Ttft()));
  }
  return ttfts;
}

SimulationSummary Summarise(const SimulationResult& result, const ServiceObjective& objective) {
  SimulationSummary summary;
  TimeNs first = result.end, last = 0;
  for (const RequestRecord& record : result.requests) {
    if (record.arrival < 0) continue;  // a turn that was never asked
    first = std::min(first, record.arrival);
    last = std::max(last, record.arrival);
  }
  const TimeNs span = result.end - first;
  summary.seconds = Seconds(span);
  summary.offered_per_second = Share(static_cast<double>(result.requests.size()), Seconds(last - first));
  SummariseRequests(result, objective, summary);
  const DurationHistogram& gaps = result.between_tokens;
  summary.between_tokens = {.count = gaps.count(),
                            .mean = gaps.mean() / kNsPerMs,
                            .p50 = gaps.Quantile(0.5) / kNsPerMs,
                            .p90 = gaps.Quantile(0.9) / kNsPerMs,
                            .p99 = gaps.Quantile(0.99) / kNsPerMs};
  const EngineStats& stats = result.stats;
  summary.adapter_loads = stats.adapters.device_loads;
  summary.awaited_loads = stats.cold_starts;
  summary.adapter_hit_share =
      Share(static_cast<double>(stats.adapters.asked_on_device), static_cast<double>(stats.adapters.asked));
  summary.prefix_hit_share =
      Share(static_cast<double>(stats.prefix.found_tokens), static_cast<double>(stats.prefix.looked_up_tokens));
  summary.mean_load_ms = Share(Ms(stats.adapters.load_time_total), static_cast<double>(summary.adapter_loads));
  summary.preemptions = stats.preemptions;
  summary.squashes = stats.squashes;
  summary.lanes_least_share = stats.lanes_least_share;
  summary.resumed = stats.resumed;
  summary.resumed_squashes = stats.resumed_squashes;
  summary.history_evictions = stats.history_evictions;
  summary.gigabytes_to_device = result.bytes_to_device / 1e9;
  summary.gigabytes_to_host = result.bytes_to_host / 1e9;
  summary.gigabytes_from_disk = result.bytes_from_disk / 1e9;
  summary.busy_share = Share(static_cast<double>(result.busy), static_cast<double>(span));
  summary.link_busy_share = Share(static_cast<double>(result.host_link_busy), static_cast<double>(span));
  summary.invalid_history_share = result.invalid_history_share;
  return summary;
}

SimulationSummary Summarise(const SimulationResult& result, TimeNs ttft) {
  return Summarise(result, ServiceObjective{.ttft = ttft});
}

std::vector<SizeClassSummary> SummariseBySize(const SimulationResult& result) {
  std::vector<const RequestRecord*> sorted;
  for (const RequestRecord& record : result.requests) {
    if (record.Ended()) sorted.push_back(&record);
  }
  const auto size = [](const RequestRecord& record) { return record.prompt_tokens + 2 * record.output_tokens; };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const RequestRecord* a, const RequestRecord* b) { return size(*a) < size(*b); });
  std::vector<SizeClassSummary> classes(3);
  for (std::size_t nth = 0; nth < classes.size(); ++nth) {
    const std::size_t begin = sorted.size() * nth / classes.size(), end = sorted.size() * (nth + 1) / classes.size();
    std::vector<double> ttft;
    for (std::size_t i = begin; i < end; ++i) {
      const RequestRecord& record = *sorted[i];
      ttft.push_back(Ms(record.Ttft()));
      const double waited = Share(Ms(record.first_scheduled - record.arrival), Ms(record.EndToEnd()));
      classes[nth].queue_share += waited / static_cast<double>(end - begin);
    }
    classes[nth].ttft = Summarise(std::move(ttft));
  }
  return classes;
}

}  // namespace loramux
