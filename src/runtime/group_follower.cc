#include "runtime/group_follower.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "engine/wakeup.h"
#include "memory/page_geometry.h"
#include "runtime/group_leader.h"
#include "runtime/group_messages.h"

namespace loramux {
namespace {

// The pools, the executor and the transfers of a rank.
struct FollowerParts {
  std::unique_ptr<PagePool> device, host;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<PageTransfer> transfer;  // ends before the pools
};

Result<FollowerParts> MakeParts(Collectives& group, PlacedModel& model, const GroupSetup& setup, int threads,
                                Wakeup& wakeup) {
  FollowerParts parts;
  const KvLayout layout = KvLayoutOf(model.own_config(), setup.page_tokens, setup.kv_dtype);
  if (static_cast<std::int64_t>(layout.PageBytes()) > setup.page_bytes) {
    return Internal("a page of rank " + std::to_string(group.rank()) + " takes " + std::to_string(layout.PageBytes()) +
                    " bytes, and rank 0's " + std::to_string(setup.page_bytes));
  }
  ASSIGN_OR_RETURN(parts.device, model.MakeDevicePool(setup.device_pages * setup.page_bytes, setup.page_bytes));
  TierMemory memory{{}, parts.device->View()};
  if (setup.host_pages > 0) {
    ASSIGN_OR_RETURN(parts.host, model.MakeHostPool(setup.host_pages * setup.page_bytes, setup.page_bytes));
    memory.host = parts.host->View();
  }
  const auto wake = [&wakeup] { wakeup.Signal(); };
  const ExecutorOptions options{.threads = threads,
                                .backend = setup.backend,
                                .lora_variant = setup.lora_variant,
                                .max_batch_tokens = setup.max_batch_tokens,
                                .max_running = setup.max_running,
                                .max_positions = setup.max_positions,
                                .max_rank = setup.max_rank,
                                .max_drafted_tokens = setup.max_drafted_tokens,
                                .group = &group};
  ASSIGN_OR_RETURN(parts.executor, model.MakeExecutor(options, layout, *parts.device, memory.host, wake));
  const TransferOptions transfers{.on_threads = {.bytes_per_second = setup.bytes_per_second}};
  ASSIGN_OR_RETURN(parts.transfer, model.MakeTransfer(memory, transfers, wake));
  return parts;
}

// Reports to rank 0, on a thread of its own, what has ended, and that this rank lives.
class Reporter {
 public:
  Reporter(Collectives& group, FollowerParts& parts, Wakeup& wakeup)
      : group_(group), parts_(parts), wakeup_(wakeup), thread_([this] { Run(); }) {}
  ~Reporter() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wakeup_.Signal();
    thread_.join();
  }

  // The numbers of steps, in the order in which they are submitted; before each.
  void Expect(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    steps_.push_back(step);
  }
  // A transfer that cannot begin.
  void Refuse(std::uint64_t transfer, Error error) {
    {
      const std::lock_guard lock(mutex_);
      refused_.emplace_back(transfer, std::move(error));
    }
    wakeup_.Signal();
  }

 private:
  void Run() {
    const std::chrono::nanoseconds pause(group_.wait_limit() / 4);
    TimeNs told = clock_.Now();
    while (true) {
      wakeup_.WaitFor(pause);
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      bool told_more = ReportEnded();
      if (!told_more && clock_.Now() - told < pause.count() / 2) continue;
      if (!told_more) {
        MessageWriter alive;
        alive.Put(GroupReport::kAlive);
        if (!group_.Send(GroupChannel::kReports, 0, alive.bytes()).ok()) return;
      }
      told = clock_.Now();
    }
  }

  // Returns whether there was anything.
  bool ReportEnded() {
    bool any = false;
    while (parts_.executor->Poll(result_)) {
      std::unique_lock lock(mutex_);
      const std::uint64_t step = steps_.front();
      steps_.pop_front();
      lock.unlock();
      Report(GroupReport::kStep, step, result_.error);
      any = true;
    }
    while (const auto completion = parts_.transfer->Poll()) {
      Report(GroupReport::kTransfer, completion->id, completion->error);
      any = true;
    }
    std::vector<std::pair<std::uint64_t, Error>> refused;
    {
      const std::lock_guard lock(mutex_);
      refused.swap(refused_);
    }
    for (auto& [transfer, error] : refused) Report(GroupReport::kTransfer, transfer, error);
    return any || !refused.empty();
  }

  // A failure ends the group, which the orders' side hears.
  void Report(GroupReport kind, std::uint64_t number, const std::optional<Error>& error) {
    MessageWriter report;
    report.Put(kind);
    report.Put(number);
    report.PutError(error);
    static_cast<void>(group_.Send(GroupChannel::kReports, 0, report.bytes()).ok());
  }

  Collectives& group_;
  FollowerParts& parts_;
  Wakeup& wakeup_;
  OsClock clock_;
  StepResult result_;
  std::mutex mutex_;
  std::deque<std::uint64_t> steps_;
  std::vector<std::pair<std::uint64_t, Error>> refused_;
  bool stopping_ = false;
  std::thread thread_;  // last, because it uses the others
};

// Carries out orders.
class Follower {
 public:
  Follower(const PlacedModel& model, const ModelPart& part, std::size_t page_bytes, FollowerParts& parts,
           Reporter& reporter)
      : model_(model), part_(part), page_bytes_(page_bytes), parts_(parts), reporter_(reporter) {}

  // Returns whether more orders follow. Error: the order cannot be carried out at all.
  Result<bool> Obey(MessageReader& order) {
    const auto kind = order.Take<GroupOrder>();
    if (kind == GroupOrder::kAlive) return true;
    if (kind == GroupOrder::kEnd) return false;
    if (kind == GroupOrder::kAdapter) return Take(order);
    if (kind == GroupOrder::kForgetAdapter) {
      const auto generation = order.Take<AdapterGeneration>();
      adapters_.erase(generation);
      broken_.erase(generation);
      return true;
    }
    const auto number = order.Take<std::uint64_t>();
    if (kind == GroupOrder::kTransfer) return Move(order, number);
    if (kind == GroupOrder::kStep) {
      ASSIGN_OR_RETURN(StepBatch batch, TakeStep(order, progress_, adapters_));
      reporter_.Expect(number);
      parts_.executor->Submit(std::move(batch));
      return true;
    }
    const auto progress = progress_.find(number);
    if (progress == progress_.end()) return true;  // a transfer without
    if (kind == GroupOrder::kCancel) progress->second->Cancel();
    if (kind == GroupOrder::kForget) progress_.erase(progress);
    return true;
  }

 private:
  // A file that cannot be opened fails the loads of this adapter, and nothing else.
  Result<bool> Take(MessageReader& order) {
    AdapterGeneration generation;
    auto version = TakeAdapter(order, model_.config(), part_, page_bytes_, generation);
    if (version.ok()) {
      adapters_[generation] = *std::move(version);
    } else {
      spdlog::warn("{}", version.error().message);
      broken_.insert_or_assign(generation, version.error());
    }
    return true;
  }

  Result<bool> Move(MessageReader& order, std::uint64_t number) {
    ASSIGN_OR_RETURN(ReceivedTransfer received, TakeTransfer(order, number, adapters_));
    if (received.job.progress != nullptr) progress_[number] = received.job.progress;
    if (received.generation == kBaseModel || received.job.adapter != nullptr) {
      parts_.transfer->Submit(std::move(received.job));
      return true;
    }
    const auto broken = broken_.find(received.generation);
    if (broken == broken_.end()) return Internal("a transfer names an adapter that no message announced");
    if (received.job.progress != nullptr) received.job.progress->Fail();
    reporter_.Refuse(number, broken->second);
    return true;
  }

  const PlacedModel& model_;
  const ModelPart part_;
  const std::size_t page_bytes_;
  FollowerParts& parts_;
  Reporter& reporter_;
  ProgressByNumber progress_;
  AdapterByGeneration adapters_;
  std::map<AdapterGeneration, Error> broken_;
};

Status Follow(Collectives& group, Follower& follower) {
  while (true) {
    ASSIGN_OR_RETURN(const auto message, group.Receive(GroupChannel::kOrders, 0, group.wait_limit()));
    if (!message) {
      return Unavailable("rank 0 of " + std::to_string(group.ranks()) + " is lost: it has said nothing for " +
                         std::to_string(group.wait_limit() / kNsPerMs) + " ms");
    }
    MessageReader order(*message);
    ASSIGN_OR_RETURN(const bool more, follower.Obey(order));
    if (!more) return Ok{};
  }
}

}  // namespace

Status FollowGroup(Collectives& group, PlacedModel& model, int threads) {
  ASSIGN_OR_RETURN(const auto first, group.Receive(GroupChannel::kOrders, 0, kGroupStartLimit));
  if (!first) return Unavailable("rank 0 of " + std::to_string(group.ranks()) + " did not start");
  MessageReader order(*first);
  const auto setup = order.Take<GroupSetup>();
  Wakeup wakeup;
  auto parts = order.AtEnd() ? MakeParts(group, model, setup, threads, wakeup)
                             : Result<FollowerParts>(Internal("the setup of the group is damaged"));
  MessageWriter ready;
  ready.Put(GroupReport::kReady);
  ready.PutError(parts.ok() ? std::nullopt : std::optional<Error>(parts.error()));
  RETURN_IF_ERROR(group.Send(GroupChannel::kReports, 0, ready.bytes()));
  if (!parts.ok()) return std::move(parts).error();
  Status status = Ok{};
  {
    Reporter reporter(group, *parts, wakeup);
    Follower follower(model, {group.rank(), group.ranks()}, static_cast<std::size_t>(setup.page_bytes), *parts,
                      reporter);
    status = Follow(group, follower);
    // Nothing waits any longer: neither the step that is computed nor a report.
    if (!status.ok()) group.Fail(status.error());
    group.End();
  }
  parts->executor.reset();
  parts->transfer.reset();
  return status;
}

}  // namespace loramux
