#include "simulate/simulated_transfer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace loramux {
namespace {

TimeNs FromSeconds(double seconds) {
  return static_cast<TimeNs>(std::ceil(seconds * static_cast<double>(kNsPerSecond)));
}

}  // namespace

SimulatedLink::Arrival SimulatedLink::Occupy(double bytes, double seconds, TimeNs now) {
  const TimeNs takes = FromSeconds(link_.OccupiedSeconds(bytes) + seconds), begins = std::max(free_at_, now);
  free_at_ = begins + takes;
  busy_ += takes;
  bytes_ += bytes;
  const TimeNs latency = FromSeconds(link_.latency);
  return {begins + latency, free_at_ + latency};
}

SimulatedLink::Arrival SimulatedTransfer::FromDisk(const TransferJob& job, double bytes, TimeNs now) {
  const bool first = seen_.insert(job.adapter->generation.value).second;
  return in_host_memory_ && first ? SimulatedLink::Arrival{now, now} : links_.disk.Occupy(bytes, now);
}

SimulatedLink::Arrival SimulatedTransfer::ToDevice(const TransferJob& job, double bytes, TimeNs now) {
  if (job.adapter == nullptr) return links_.to_device.Occupy(bytes, now);
  return links_.to_device.Occupy(bytes * static_cast<double>(program_.link_passes), program_.load_seconds, now);
}

void SimulatedTransfer::Submit(TransferJob job) {
  const TimeNs now = clock_->Now();
  const auto bytes = static_cast<double>(PayloadBytes(job));
  SimulatedLink::Arrival arrival{now, now};
  switch (job.kind()) {
    case TransferKind::kDiskToHost:
      arrival = FromDisk(job, bytes, now);
      break;
    case TransferKind::kHostToDevice:
      arrival = ToDevice(job, bytes, now);
      break;
    case TransferKind::kDeviceToHost:
      arrival = links_.to_host.Occupy(bytes, now);
      break;
    // Piece by piece through a small buffer, so the slower link decides.
    case TransferKind::kDiskToDevice: {
      const SimulatedLink::Arrival read = FromDisk(job, bytes, now), copied = ToDevice(job, bytes, now);
      arrival = {std::max(read.begins, copied.begins), std::max(read.ends, copied.ends)};
      break;
    }
  }
  const TimeNs end = arrival.ends;
  if (job.to.tier == Tier::kDevice && job.adapter != nullptr) last_loads_[job.adapter->generation.value] = {now, end};
  const auto after =
      std::upper_bound(moving_.begin(), moving_.end(), end, [](TimeNs at, const Moving& m) { return at < m.end; });
  moving_.insert(after, {arrival.begins, end, job.id});
  events_->Push(end, EventKind::kTransferEnds, 0, server_);
}

TimeNs SimulatedTransfer::LoadedBetween(std::uint32_t generation, TimeNs from, TimeNs to) const {
  const auto found = last_loads_.find(generation);
  if (found == last_loads_.end()) return 0;
  return std::max<TimeNs>(0, std::min(found->second.end, to) - std::max(found->second.begin, from));
}

SimulatedLink::Arrival SimulatedTransfer::ArrivalOf(AdapterGeneration generation) const {
  const auto found =
      std::find_if(moving_.begin(), moving_.end(), [&](const Moving& m) { return m.id == generation.value; });
  CHECK(found != moving_.end());
  return {found->begin, found->end};
}

std::optional<TransferCompletion> SimulatedTransfer::Poll() {
  if (moving_.empty() || moving_.front().end > clock_->Now()) return std::nullopt;
  const TransferCompletion done{moving_.front().id, std::nullopt};
  moving_.pop_front();
  return done;
}

}  // namespace loramux
