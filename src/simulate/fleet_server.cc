#include "simulate/fleet_server.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

FleetServer::FleetServer(const SimulationOptions& options, const Clock& clock, EventQueue& events, std::int32_t index)
    : options_(options), clock_(clock), events_(events), index_(index), name_("server-" + std::to_string(index)) {}

Status FleetServer::Start(std::shared_ptr<SimulatedAdapters> adapters) {
  CHECK(!up());
  ++totals_.starts;
  frozen = draining = refusing = move_pending = false;
  ASSIGN_OR_RETURN(server_, SimulatedServer::Create(options_,
                                                    {.clock = &clock_,
                                                     .events = &events_,
                                                     .server = index_,
                                                     .instance = name_ + "." + std::to_string(totals_.starts)},
                                                    std::move(adapters)));
  Changed();
  return Ok{};
}

void FleetServer::Stop() {
  CHECK(up());
  CountLife();
  server_ = nullptr;
  requests_.clear();
  held.clear();
  frozen = draining = refusing = false;
  Changed();
}

void FleetServer::CountLife() {
  if (!up()) return;
  const EngineStats stats = server_->engine().Stats();
  totals_.device_loads += stats.adapters.device_loads;
  totals_.disk_loads += stats.adapters.disk_loads;
  totals_.preemptions += stats.preemptions;
  totals_.output_tokens += stats.tokens_generated;
  totals_.busy += server_->executor().busy();
  totals_.bytes_to_device += server_->links().to_device.bytes();
  totals_.bytes_from_disk += server_->links().disk.bytes();
}

const std::string& FleetServer::DigestOf(std::int32_t adapter) const {
  static const std::string kNone;
  return adapter < 0 ? kNone : server_->adapters().Of(static_cast<std::size_t>(adapter)).file.digest;
}

FleetServer::Offer FleetServer::Take(std::size_t index, std::int32_t adapter, GenerationRequest& request,
                                     const std::string& digest, std::string& message) {
  if (!up()) return Offer::kNoConnection;
  if (frozen) {
    held.push_back({index, adapter, std::move(request), digest});
    return Offer::kHeld;
  }
  if (refusing || (!digest.empty() && DigestOf(adapter) != digest)) return Offer::kNotStarted;
  touched = true;
  const AdapterGeneration generation = server_->adapters().GenerationOf(adapter);
  totals_.cold += server_->HasOnDevice(generation) ? 0 : 1;
  request.adapter = generation;
  const Result<RequestId> id = server_->engine().Submit(std::move(request));
  if (!id.ok()) {
    message = id.error().message;
    return Offer::kRefused;
  }
  requests_[index] = *id;
  return Offer::kAccepted;
}

void FleetServer::Cancel(std::size_t index) {
  const auto found = requests_.find(index);
  if (found == requests_.end()) return;
  server_->engine().Cancel(found->second);
  touched = true;
}

std::vector<std::size_t> FleetServer::Requests() const {
  std::vector<std::size_t> indices;
  for (const auto& [index, id] : requests_) indices.push_back(index);
  return indices;
}

std::shared_ptr<const ServerSnapshot> FleetServer::Snapshot() {
  if (snapshot_ == nullptr) snapshot_ = std::make_shared<const ServerSnapshot>(server_->Snapshot(draining));
  return snapshot_;
}

}  // namespace loramux
