#include "simulate/objective.h"

#include <algorithm>

#include <fmt/format.h>

#include "report/number_format.h"

namespace loramux {

double TokenTimeOf(const RequestRecord& record) {
  return static_cast<double>(record.EndToEnd()) / static_cast<double>(std::max(1, record.output_tokens));
}

std::string ShowObjective(const ServiceObjective& objective) {
  std::string text;
  const auto add = [&](const char* what, TimeNs within) {
    if (within <= 0) return;
    text += fmt::format("{}{} within {}", text.empty() ? "" : ", ", what,
                        FormatMs(static_cast<double>(within) / static_cast<double>(kNsPerMs)));
  };
  add("TTFT", objective.ttft);
  add("TPOT", objective.tpot);
  add("time per token", objective.token);
  return text.empty() ? "none" : text;
}

double TpotOf(const RequestRecord& record) {
  return static_cast<double>(record.last_token - record.first_token) /
         static_cast<double>(std::max(1, record.output_tokens - 1));
}

KeptObjective KeptBy(const RequestRecord& record, const ServiceObjective& objective) {
  return {.ttft = objective.ttft == 0 || record.Ttft() <= objective.ttft,
          .token = objective.token == 0 || TokenTimeOf(record) <= static_cast<double>(objective.token),
          .tpot = objective.tpot == 0 || TpotOf(record) <= static_cast<double>(objective.tpot)};
}

std::int64_t MostMissed(std::int64_t requests, double share) {
  const auto all = static_cast<double>(requests);
  const auto kept = [&](std::int64_t missed) { return (all - static_cast<double>(missed)) / all >= share; };
  auto most = static_cast<std::int64_t>(all * (1 - share));
  // rounding: the comparison is that of the result's share
  while (most < requests && kept(most + 1)) ++most;
  while (most > 0 && !kept(most)) --most;
  return most;
}

std::int64_t MostMissedOfP99(std::int64_t requests) {
  if (requests == 0) return 0;
  // The percentile lies between the values of rank floor(0.99 (n - 1)) and the next; when the lower one misses, it
  // does.
  const auto below = static_cast<std::int64_t>(kSustainedShare * static_cast<double>(requests - 1));
  return requests - below - 1;
}

MissCount::MissCount(const GiveUpRule& rule, const std::vector<RequestRecord>& records)
    : rule_(rule),
      records_(records),
      counted_(active() ? records.size() : 0),
      waits_(rule.most_ttft_sum > 0 ? records.size() : 0) {}

void MissCount::Asked(std::size_t request) {
  if (!waits_.empty()) {
    waits_[request] = true;
    ++waiting_;
    arrivals_ += static_cast<double>(records_[request].arrival);
  }
  if (active() && rule_.objective.ttft > 0) awaited_.push_back(request);
}

void MissCount::Began(std::size_t request) { EndWait(request, records_[request].Ttft()); }

void MissCount::EndWait(std::size_t request, TimeNs ttft) {
  if (waits_.empty() || !waits_[request]) return;
  waits_[request] = false;
  --waiting_;
  arrivals_ -= static_cast<double>(records_[request].arrival);
  ttfts_ += static_cast<double>(ttft);
}

void MissCount::Ended(std::size_t request) {
  EndWait(request, 0);
  if (active() && !KeptBy(records_[request], rule_.objective).All()) Miss(request);
}

void MissCount::Miss(std::size_t request) {
  if (!active() || counted_[request] || records_[request].arrival < rule_.objective.warmup) return;
  counted_[request] = true;
  ++missed_;
}

bool MissCount::Hopeless(TimeNs now) {
  if (!waits_.empty() && ttfts_ + waiting_ * static_cast<double>(now) - arrivals_ > rule_.most_ttft_sum) return true;
  if (!active()) return false;
  while (!awaited_.empty() && now - records_[awaited_.front()].arrival > rule_.objective.ttft) {
    const RequestRecord& record = records_[awaited_.front()];
    if (record.first_token < 0 || record.Ttft() > rule_.objective.ttft) Miss(awaited_.front());
    awaited_.pop_front();
  }
  return missed_ > rule_.most_missed;
}

}  // namespace loramux
