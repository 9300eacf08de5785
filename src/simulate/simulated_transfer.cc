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

TimeNs SimulatedLink::Occupy(double bytes, TimeNs now) {
  const TimeNs takes = FromSeconds(bytes / link_.bytes_per_second);
  free_at_ = std::max(free_at_, now) + takes;
  busy_ += takes;
  bytes_ += bytes;
  return free_at_ + FromSeconds(link_.latency);
}

TimeNs SimulatedTransfer::FromDisk(const TransferJob& job, double bytes, TimeNs now) {
  const bool first = seen_.insert(job.adapter->generation.value).second;
  return in_host_memory_ && first ? now : links_->disk.Occupy(bytes, now);
}

void SimulatedTransfer::Submit(TransferJob job) {
  const TimeNs now = clock_->Now();
  const auto bytes = static_cast<double>(PayloadBytes(job));
  TimeNs end = now;
  switch (job.kind()) {
    case TransferKind::kDiskToHost:
      end = FromDisk(job, bytes, now);
      break;
    case TransferKind::kHostToDevice:
      end = links_->to_device.Occupy(bytes, now);
      break;
    case TransferKind::kDeviceToHost:
      end = links_->to_host.Occupy(bytes, now);
      break;
    // Piece by piece through a small buffer, so the slower link decides.
    case TransferKind::kDiskToDevice:
      end = std::max(FromDisk(job, bytes, now), links_->to_device.Occupy(bytes, now));
      break;
  }
  if (job.to.tier == Tier::kDevice && job.adapter != nullptr) last_loads_[job.adapter->generation.value] = {now, end};
  const auto after =
      std::upper_bound(moving_.begin(), moving_.end(), end, [](TimeNs at, const Moving& m) { return at < m.end; });
  moving_.insert(after, {end, job.id});
  events_->Push(end, EventKind::kTransferEnds);
}

TimeNs SimulatedTransfer::LoadedBetween(std::uint32_t generation, TimeNs from, TimeNs to) const {
  const auto found = last_loads_.find(generation);
  if (found == last_loads_.end()) return 0;
  return std::max<TimeNs>(0, std::min(found->second.end, to) - std::max(found->second.begin, from));
}

TimeNs SimulatedTransfer::EndOf(AdapterGeneration generation) const {
  const auto found =
      std::find_if(moving_.begin(), moving_.end(), [&](const Moving& m) { return m.id == generation.value; });
  CHECK(found != moving_.end());
  return found->end;
}

std::optional<TransferCompletion> SimulatedTransfer::Poll() {
  if (moving_.empty() || moving_.front().end > clock_->Now()) return std::nullopt;
  const TransferCompletion done{moving_.front().id, std::nullopt};
  moving_.pop_front();
  return done;
}

}  // namespace loramux
