#include "tools/throughput_log.h"

namespace loramux {
namespace {

double Percent(std::int64_t part, std::int64_t whole) {
  return whole <= 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

double Rate(std::int64_t before, std::int64_t now, double seconds) {
  return static_cast<double>(now - before) / seconds;
}

}  // namespace

std::vector<LogField> ThroughputFields(const EngineStats& before, const EngineStats& now, double seconds) {
  const std::int64_t prompt = now.tokens_prefilled - before.tokens_prefilled;
  const std::int64_t generated = now.tokens_generated - before.tokens_generated;
  if (prompt + generated + now.running + now.waiting == 0 || seconds <= 0) return {};
  const std::int64_t kv = now.device.used(PageCategory::kKv) - now.history_pages;
  return {{"prompt_tokens_per_s", static_cast<double>(prompt) / seconds},
          {"generation_tokens_per_s", static_cast<double>(generated) / seconds},
          {"running", now.running},
          {"waiting", now.waiting},
          {"kv_percent", Percent(kv, now.device.capacity_pages)},
          {"cached_prefix_percent", Percent(now.history_pages, now.device.capacity_pages)},
          {"adapter_percent", Percent(now.device.used(PageCategory::kAdapter), now.device.capacity_pages)},
          {"adapters_on_device", now.adapters.device_resident},
          {"adapters_active", now.adapters.active},
          {"adapter_loads_per_s", Rate(before.adapters.device_loads, now.adapters.device_loads, seconds)},
          {"cold_starts_per_s", Rate(before.adapters.cold_starts(), now.adapters.cold_starts(), seconds)}};
}

ThroughputLog::ThroughputLog(std::chrono::milliseconds interval, const Clock* clock, Source stats)
    : interval_(interval), clock_(clock), stats_(std::move(stats)) {
  if (interval_.count() > 0) thread_ = std::thread([this] { Run(); });
}

ThroughputLog::~ThroughputLog() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ThroughputLog::Run() {
  EngineStats before = stats_();
  TimeNs looked_at = clock_->Now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stopped_; })) {
    const EngineStats now = stats_();
    const TimeNs time = clock_->Now();
    const double seconds = static_cast<double>(time - looked_at) / static_cast<double>(kNsPerSecond);
    const std::vector<LogField> fields = ThroughputFields(before, now, seconds);
    if (!fields.empty()) LogWith(spdlog::level::info, "throughput", fields);
    before = now;
    looked_at = time;
  }
}

}  // namespace loramux
