// Checks every plan of an engine against the scheduler's promises (docs/design/scheduling.md) and against the
// capacities. It uses only the scheduler's public interface and does its own accounting.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_observer.h"

namespace loramux {

// Pass as the engine's observer; afterwards, `violations` must be empty.
class PlanChecker final : public EngineObserver {
 public:
  // `options`: those the engine's scheduler was created with. `device_pages`: capacity of its device pool.
  PlanChecker(SystemSpec options, std::int64_t device_pages)
      : options_(std::move(options)), device_pages_(device_pages) {}
  void Planned(const PlannedStep& step) override;
  void Moving(const MovePlan& plan) override;

  const std::vector<std::string>& violations() const { return violations_; }  // the first few
  std::uint64_t digest() const { return digest_; }                            // digest of all plans, in order
  std::int64_t plans() const { return plans_; }

  // What all plans together move: adapters that leave the device and the host tier, pages of history that leave the
  // device, and that are copied to the host tier.
  struct Moved {
    std::int64_t device_evictions = 0, host_evictions = 0, history_evictions = 0, backed_up = 0;
  };
  const Moved& moved() const { return moved_; }

 private:
  // A plan and the state it was made in.
  struct View {
    const StepPlan& plan;
    const Scheduler& scheduler;
    const ResidencyManager& residency;
    TimeNs now;
  };
  void CheckBatch(const View& view);
  void CheckMemory(const View& view);
  void CheckHostMemory(const View& view);
  void CheckCopies(const Moves& moves, const ResidencyManager& residency);
  void CheckAdapters(const View& view);
  void CheckStepTime(const View& view);
  void CheckQuotas(const View& view);
  void CheckPreemptions(const View& view);
  void CheckOrder(const View& view);
  void CheckAgeBound(const View& view);
  const Request* OverdueTurn(const View& view);
  void NoteOvertakings(const StepPlan& plan);
  void CheckTurns(const View& view);
  void CheckNext(const View& view, const Request& next, const char* why);
  bool Arrives(const View& view, const Request& request) const;
  void Digest(const View& view);
  void Count(const Moves& moves);
  void Expect(bool holds, const View& view, const std::string& what);

  const SystemSpec options_;
  const std::int64_t device_pages_;
  std::vector<std::string> violations_;
  std::uint64_t digest_ = 0;
  std::int64_t plans_ = 0;
  const ResidencyManager* residency_ = nullptr;  // the engine's, which outlives all plans; null: there was none yet
  Moved moved_;
  ServiceOrder order_;
  std::map<RequestId, RequestId> overtook_;  // running requests, and whom they overtook
  std::set<RequestId> squashed_;             // requests that were preempted after they had overtaken another
};

}  // namespace loramux
