#include "schedule/queue/queue_order.h"

#include <algorithm>
#include <array>

#include "schedule/queue/objective_order.h"

namespace loramux {
namespace {

constexpr std::int32_t kPriorities = 10;  // steps of priority; each shifts the due time by a tenth of the age bound

class Fifo final : public QueueOrder {
 public:
  std::string_view name() const override { return "fifo"; }
};

class ShortestFirst final : public QueueOrder {
 public:
  explicit ShortestFirst(TimeNs age_bound) : age_bound_(age_bound) {}
  std::string_view name() const override { return "sjf"; }
  TimeNs Delay(const Request& request) const override {
    const double share = static_cast<double>(request.predicted_output) / std::max(1, longest_);
    return static_cast<TimeNs>(std::min(1.0, share) * static_cast<double>(age_bound_));
  }
  void SawArrival(const Request& request, TimeNs) override { longest_ = std::max(longest_, request.predicted_output); }

 private:
  const TimeNs age_bound_;
  std::int32_t longest_ = 0;  // predicted output, in tokens
};

class ResidentsFirst final : public QueueOrder {
 public:
  std::string_view name() const override { return "residency"; }
  bool residents_first() const override { return true; }
};

class SizeClasses final : public QueueOrder {
 public:
  SizeClasses(std::string_view name, const SystemSpec& spec) : name_(name), lanes_(spec) {}
  std::string_view name() const override { return name_; }
  std::int32_t lanes() const override { return lanes_.lanes(); }
  std::int32_t LaneOf(const Request& request) const override { return lanes_.LaneOf(ExtentOf(request)); }
  bool has_quotas() const override { return true; }
  double Quota(std::int32_t lane) const override { return lanes_.Quota(lane); }
  double LeastShare() const override { return lanes_.LeastShare(); }
  std::int64_t QuotaTokens(const Request& request) const override { return lanes_.QuotaTokens(ExtentOf(request)); }
  void SawArrival(const Request& request, TimeNs now) override { lanes_.SawArrival(ExtentOf(request), now); }
  void SawEnd(const Request& request, TimeNs duration) override { lanes_.SawEnd(ExtentOf(request), duration); }
  bool Refit(TimeNs now) override { return lanes_.Refit(now); }

 private:
  const std::string_view name_;
  SizeLanes lanes_;
};

using Made = std::unique_ptr<QueueOrder>;

struct Entry {
  std::string_view name;
  Made (*make)(const SystemSpec&);
};

constexpr std::array<Entry, 6> kOrders = {{
    {"fifo", [](const SystemSpec&) { return Made(std::make_unique<Fifo>()); }},
    {"sjf", [](const SystemSpec& spec) { return Made(std::make_unique<ShortestFirst>(spec.age_bound)); }},
    {"residency", [](const SystemSpec&) { return Made(std::make_unique<ResidentsFirst>()); }},
    {"objective",
     [](const SystemSpec& spec) { return Made(std::make_unique<ObjectiveOrder>(spec.objective, spec.age_bound)); }},
    {"mlq", [](const SystemSpec& spec) { return Made(std::make_unique<SizeClasses>("mlq", spec)); }},
    {"mlq-static", [](const SystemSpec& spec) { return Made(std::make_unique<SizeClasses>("mlq-static", spec)); }},
}};

}  // namespace

std::vector<std::string> QueueOrderNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kOrders) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<QueueOrder>> MakeQueueOrder(const SystemSpec& spec) {
  std::string valid;
  for (const Entry& entry : kOrders) {
    if (entry.name == spec.queue) return entry.make(spec);
    valid += (valid.empty() ? "" : ", ") + std::string(entry.name);
  }
  return InvalidArgument("queue order: expected one of " + valid + ", found '" + spec.queue + "'", "--schedule");
}

void PlaceInQueue(const QueueOrder& order, TimeNs age_bound, Request& request) {
  TimeNs delay =
      order.Delay(request) + std::clamp(request.priority, -kPriorities, kPriorities) * (age_bound / kPriorities);
  // A request without a deadline is assumed to want its first token within the objective, or else within the age
  // bound. The due time is at most the deadline less that time. Requests that were given up have missed their
  // deadline.
  const TimeNs wish = order.objective() > 0 ? order.objective() : age_bound;
  if (request.deadline > 0 && !request.late) delay = std::min(delay, request.deadline - request.arrival - wish);
  request.lane = order.LaneOf(request);
  request.due = request.arrival + std::clamp(delay, -age_bound, age_bound);
}

}  // namespace loramux
