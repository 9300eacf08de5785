// Rank 0 of a group: hands steps, transfers and adapters to the other ranks, and hears how they ended. Its engine plans
// for its own part alone; pages have the same numbers on all ranks, so the plan is that of each.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "adapter/registry.h"
#include "base/result.h"
#include "collective/collectives.h"
#include "engine/executor.h"
#include "kernels/lora.h"
#include "residency/transfer.h"
#include "tensor/kv_layout.h"

namespace loramux {

// What the other ranks must do as rank 0 does. Travels as it lies in memory.
struct GroupSetup {
  std::int64_t page_tokens = 0, page_bytes = 0, device_pages = 0, host_pages = 0;  // host_pages 0: no host tier
  DType kv_dtype = DType::kBF16;
  Backend backend = Backend::kCpu;
  LoraVariant lora_variant = LoraVariant::kMbgmv;
  std::int64_t max_batch_tokens = 0, max_running = 0, max_positions = 0, max_rank = 0, max_drafted_tokens = 0;
  double bytes_per_second = 0;  // ThreadedTransferOptions
};

// How long the ranks wait for each other at the start, when each reads its part of the model.
inline constexpr TimeNs kGroupStartLimit = 600 * kNsPerSecond;

// What all ranks must have alike, by name: the program's version, the model, settings.
using GroupFacts = std::vector<std::pair<std::string, std::string>>;
// Called by all ranks, once, before anything else. Error (kInvalidArgument), on all of them: says which fact differs on
// which rank, and how.
Status AgreeOnFacts(Collectives& group, const GroupFacts& facts);

// Thread-safe. Ends the others' work when it goes.
class GroupLeader {
 public:
  // Sends the setup and waits until all ranks are ready. Calls `on_report` when a rank has done something, and when one
  // is lost; then `on_lost` too, unless it is empty. Error: a rank's own, with its number, or it is lost.
  static Result<std::unique_ptr<GroupLeader>> Start(std::shared_ptr<Collectives> group, const GroupSetup& setup,
                                                    std::function<void()> on_report,
                                                    std::function<void()> on_lost = {});
  ~GroupLeader();
  GroupLeader(const GroupLeader&) = delete;
  GroupLeader& operator=(const GroupLeader&) = delete;

  // An executor of steps on all ranks, and a transfer on all ranks, whose own parts these carry out. A step or a
  // transfer has ended when it has on each. They must go before the leader.
  std::unique_ptr<Executor> Lead(std::unique_ptr<Executor> own);
  std::unique_ptr<PageTransfer> Lead(std::unique_ptr<PageTransfer> own);
  // Tells the others of an adapter, which they open at once; later uses name it by its generation.
  void Announce(const std::shared_ptr<const AdapterVersion>& version);
  // Why the group has ended; nullopt: it has not.
  std::optional<Error> failure() const;
  // What steps took: computing, exchanges with their waits, and waiting for the others' reports.
  std::string DescribeSteps() const;

 private:
  struct State;
  class GroupExecutor;
  class GroupTransfer;
  explicit GroupLeader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace loramux
