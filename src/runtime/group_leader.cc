#include "runtime/group_leader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/bytes.h"
#include "base/check.h"
#include "runtime/group_messages.h"

namespace loramux {
namespace {

std::string NameOfRank(const Collectives& group, std::int64_t rank) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(group.ranks());
}

// Compares what a rank has with rank 0's; nullopt: it is the same.
std::optional<std::string> Difference(const GroupFacts& own, MessageReader& of_rank) {
  for (const auto& [name, value] : own) {
    const std::string found = of_rank.TakeText();
    if (found != value) return name + ": rank 0 has " + value + ", found " + found;
  }
  return of_rank.AtEnd() ? std::nullopt : std::optional<std::string>("it compares other things");
}

Result<std::vector<std::byte>> Await(Collectives& group, GroupChannel channel, std::int64_t from) {
  ASSIGN_OR_RETURN(auto message, group.Receive(channel, from, kGroupStartLimit));
  if (message) return *std::move(message);
  return Unavailable(NameOfRank(group, from) + " did not start within " +
                     std::to_string(kGroupStartLimit / kNsPerSecond) + " s");
}

}  // namespace

Status AgreeOnFacts(Collectives& group, const GroupFacts& facts) {
  if (group.rank() > 0) {
    MessageWriter own;
    for (const auto& [name, value] : facts) own.PutText(value);
    RETURN_IF_ERROR(group.Send(GroupChannel::kReports, 0, own.bytes()));
    ASSIGN_OR_RETURN(const auto verdict, Await(group, GroupChannel::kOrders, 0));
    MessageReader from(verdict);
    const std::string difference = from.TakeText();
    if (difference.empty()) return Ok{};
    return InvalidArgument(difference);
  }
  std::string difference;
  for (std::int64_t rank = 1; rank < group.ranks(); ++rank) {
    ASSIGN_OR_RETURN(const auto message, Await(group, GroupChannel::kReports, rank));
    MessageReader from(message);
    const auto found = Difference(facts, from);
    if (!found || !difference.empty()) continue;
    difference =
        NameOfRank(group, rank) + " differs in " + *found + "; all ranks run the same program with the same flags";
  }
  MessageWriter verdict;
  verdict.PutText(difference);
  for (std::int64_t rank = 1; rank < group.ranks(); ++rank) {
    RETURN_IF_ERROR(group.Send(GroupChannel::kOrders, rank, verdict.bytes()));
  }
  if (difference.empty()) return Ok{};
  return InvalidArgument(difference);
}

struct GroupLeader::State {
  // A step or a transfer that the other ranks carry out.
  struct Outstanding {
    std::int64_t reports = 0;  // how many are missing
    std::optional<Error> error;
  };

  State(std::shared_ptr<Collectives> g, std::function<void()> report, std::function<void()> lost)
      : group(std::move(g)), on_report(std::move(report)), on_lost(std::move(lost)) {}

  const std::shared_ptr<Collectives> group;
  const std::function<void()> on_report, on_lost;
  mutable std::mutex mutex;
  std::mutex announcing;  // held while an adapter is announced; taken before `sending`
  std::mutex sending;     // held while an order is sent; taken before `mutex`
  std::map<std::uint64_t, Outstanding> outstanding;
  std::map<const LayerProgress*, std::uint64_t> numbers;  // numbers of transfers in flight
  std::map<AdapterGeneration, std::weak_ptr<const AdapterVersion>> announced;
  std::uint64_t last_number = 0;
  bool stopping = false, lost = false;
  std::condition_variable stop;
  std::vector<std::thread> threads;
  OsClock clock;
  std::int64_t steps = 0;                      // steps that have ended
  TimeNs computing_time = 0, report_time = 0;  // time until this rank's part was computed, and from then on

  std::int64_t others() const { return group->ranks() - 1; }

  void SendToAll(const MessageWriter& order) {
    const std::lock_guard lock(sending);
    for (std::int64_t rank = 1; rank < group->ranks(); ++rank) {
      if (!group->Send(GroupChannel::kOrders, rank, order.bytes()).ok()) return;  // the group keeps the error
    }
  }

  void SendToAll(GroupOrder kind, std::uint64_t number) {
    MessageWriter order;
    order.Put(kind);
    order.Put(number);
    SendToAll(order);
  }

  std::uint64_t Begin() {
    const std::lock_guard lock(mutex);
    outstanding[++last_number].reports = others();
    return last_number;
  }

  // The outcome on the other ranks once all have reported, or the group has ended; then it is forgotten.
  std::optional<Outstanding> End(std::uint64_t number) {
    const std::lock_guard lock(mutex);
    const auto found = outstanding.find(number);
    CHECK(found != outstanding.end());
    if (found->second.reports > 0) {
      const std::optional<Error> lost = group->failure();
      if (!lost) return std::nullopt;
      found->second.error = lost;
    }
    Outstanding ended = std::move(found->second);
    outstanding.erase(found);
    return ended;
  }

  // Returns once the others have the order, or will have it before any that the caller sends.
  void Announce(const std::shared_ptr<const AdapterVersion>& version) {
    const std::lock_guard one_by_one(announcing);
    MessageWriter order;
    {
      const std::lock_guard lock(mutex);
      if (!announced.try_emplace(version->generation, version).second) return;
    }
    order.Put(GroupOrder::kAdapter);
    PutAdapter(*version, order);
    SendToAll(order);
    ForgetFreed();
  }

  // Tells the others of adapters that nothing uses any more.
  void ForgetFreed() {
    std::vector<AdapterGeneration> freed;
    {
      const std::lock_guard lock(mutex);
      for (const auto& [generation, version] : announced) {
        if (version.expired()) freed.push_back(generation);
      }
      for (const AdapterGeneration generation : freed) announced.erase(generation);
    }
    for (const AdapterGeneration generation : freed) {
      MessageWriter order;
      order.Put(GroupOrder::kForgetAdapter);
      order.Put(generation);
      SendToAll(order);
    }
  }

  // Hears one rank until the group ends.
  void Listen(std::int64_t rank) {
    while (true) {
      const auto message = group->Receive(GroupChannel::kReports, rank, group->wait_limit());
      if (!message.ok()) break;
      if (!*message) {
        group->Fail(Unavailable(NameOfRank(*group, rank) + " is lost: it has said nothing for " +
                                std::to_string(group->wait_limit() / kNsPerMs) + " ms"));
        break;
      }
      MessageReader from(**message);
      const auto kind = from.Take<GroupReport>();
      if (kind == GroupReport::kAlive) continue;
      const auto number = from.Take<std::uint64_t>();
      std::optional<Error> error = from.TakeError();
      if (error) error->message = NameOfRank(*group, rank) + ": " + error->message;
      {
        const std::lock_guard lock(mutex);
        const auto found = outstanding.find(number);
        if (found != outstanding.end()) {
          --found->second.reports;
          if (error && !found->second.error) found->second.error = std::move(error);
        }
      }
      on_report();
    }
    TellOfLoss();
    on_report();
  }

  // Once, although several threads notice it.
  void TellOfLoss() {
    {
      const std::lock_guard lock(mutex);
      if (stopping || lost) return;
      lost = true;
    }
    spdlog::error("{}", group->failure()->message);
    if (on_lost) on_lost();
  }

  // Lets the others know that this rank lives.
  void KeepAlive() {
    std::unique_lock lock(mutex);
    while (!stop.wait_for(lock, std::chrono::nanoseconds(group->wait_limit() / 4), [this] { return stopping; })) {
      lock.unlock();
      SendToAll(GroupOrder::kAlive, 0);
      lock.lock();
    }
  }
};

class GroupLeader::GroupExecutor final : public Executor {
 public:
  GroupExecutor(State* state, std::unique_ptr<Executor> own) : state_(state), own_(std::move(own)) {}

  void Submit(StepBatch batch) override {
    const std::uint64_t number = state_->Begin();
    for (const AdapterPlacement& placement : batch.placements) state_->Announce(placement.version);
    MessageWriter order;
    order.Put(GroupOrder::kStep);
    order.Put(number);
    {
      const std::lock_guard lock(state_->mutex);
      const auto number_of = [&](const LayerProgress* progress) {
        const auto found = state_->numbers.find(progress);
        CHECK(found != state_->numbers.end());
        return found->second;
      };
      PutStep(batch, number_of, order);
    }
    state_->SendToAll(order);
    steps_.push_back(number);
    began_ = state_->clock.Now();
    own_->Submit(std::move(batch));
  }

  bool Poll(StepResult& result) override {
    if (steps_.empty()) return false;
    if (!computed_) {
      if (!own_->Poll(computed_result_)) return false;
      computed_ = true;
      computed_at_ = state_->clock.Now();
    }
    const auto others = state_->End(steps_.front());
    if (!others) return false;
    steps_.pop_front();
    computed_ = false;
    {
      const std::lock_guard lock(state_->mutex);
      ++state_->steps;
      state_->computing_time += computed_at_ - began_;
      state_->report_time += state_->clock.Now() - computed_at_;
    }
    std::swap(result, computed_result_);
    if (others->error && !result.error) result.error = others->error;
    // What one rank cannot compute, no later step can rely on.
    if (const auto lost = state_->group->failure()) result.error = lost;
    return true;
  }

 private:
  State* const state_;
  const std::unique_ptr<Executor> own_;
  std::deque<std::uint64_t> steps_;
  StepResult computed_result_;  // result of steps_.front() on this rank, if it was computed
  bool computed_ = false;
  TimeNs began_ = 0, computed_at_ = 0;  // times of the last step
};

class GroupLeader::GroupTransfer final : public PageTransfer {
 public:
  GroupTransfer(State* state, std::unique_ptr<PageTransfer> own) : state_(state), own_(std::move(own)) {}

  void Submit(TransferJob job) override {
    if (job.adapter != nullptr) state_->Announce(job.adapter);
    const std::uint64_t number = state_->Begin();
    if (job.progress != nullptr) {
      const std::lock_guard lock(state_->mutex);
      state_->numbers[job.progress.get()] = number;
    }
    MessageWriter order;
    order.Put(GroupOrder::kTransfer);
    order.Put(number);
    PutTransfer(job, order);
    state_->SendToAll(order);
    moving_.push_back({number, job.progress, {job.id}});
    own_->Submit(std::move(job));
  }

  std::optional<TransferCompletion> Poll() override {
    for (Moving& moving : moving_) {
      if (moving.told_to_stop || moving.progress == nullptr || !moving.progress->cancelled()) continue;
      moving.told_to_stop = true;
      state_->SendToAll(GroupOrder::kCancel, moving.number);
    }
    while (auto completion = own_->Poll()) {
      const auto moving = std::ranges::find(moving_, completion->id, [](const Moving& m) { return m.outcome.id; });
      CHECK(moving != moving_.end());
      moving->outcome = *std::move(completion);
      moving->moved = true;
    }
    for (auto moving = moving_.begin(); moving != moving_.end(); ++moving) {
      if (!moving->moved) continue;
      const auto others = state_->End(moving->number);
      if (!others) continue;
      TransferCompletion outcome = std::move(moving->outcome);
      const std::shared_ptr<LayerProgress> progress = moving->progress;
      const std::uint64_t number = moving->number;
      moving_.erase(moving);
      if (progress != nullptr) {
        const bool stopped = progress->cancelled();
        if (stopped) outcome.cancelled = true;
        if (others->error && !outcome.error && !stopped) outcome.error = others->error;
        if (outcome.error || outcome.cancelled) progress->Fail();
        const std::lock_guard lock(state_->mutex);
        state_->numbers.erase(progress.get());
      } else if (others->error && !outcome.error) {
        outcome.error = others->error;
      }
      if (outcome.cancelled) outcome.error.reset();
      state_->SendToAll(GroupOrder::kForget, number);
      return outcome;
    }
    return std::nullopt;
  }

 private:
  struct Moving {
    std::uint64_t number = 0;
    std::shared_ptr<LayerProgress> progress;
    TransferCompletion outcome;  // with its id from the start; the rest once it has `moved` on this rank
    bool moved = false, told_to_stop = false;
  };
  State* const state_;
  const std::unique_ptr<PageTransfer> own_;
  std::vector<Moving> moving_;
};

Result<std::unique_ptr<GroupLeader>> GroupLeader::Start(std::shared_ptr<Collectives> group, const GroupSetup& setup,
                                                        std::function<void()> on_report,
                                                        std::function<void()> on_lost) {
  CHECK_EQ(group->rank(), 0);
  MessageWriter order;
  order.Put(setup);
  for (std::int64_t rank = 1; rank < group->ranks(); ++rank) {
    RETURN_IF_ERROR(group->Send(GroupChannel::kOrders, rank, order.bytes()));
  }
  for (std::int64_t rank = 1; rank < group->ranks(); ++rank) {
    ASSIGN_OR_RETURN(const auto message, Await(*group, GroupChannel::kReports, rank));
    MessageReader from(message);
    CHECK(from.Take<GroupReport>() == GroupReport::kReady);
    if (auto error = from.TakeError()) {
      error->message = NameOfRank(*group, rank) + ": " + error->message;
      return *std::move(error);
    }
  }
  auto state = std::make_unique<State>(std::move(group), std::move(on_report), std::move(on_lost));
  return std::unique_ptr<GroupLeader>(new GroupLeader(std::move(state)));
}

GroupLeader::GroupLeader(std::unique_ptr<State> state) : state_(std::move(state)) {
  for (std::int64_t rank = 1; rank < state_->group->ranks(); ++rank) {
    state_->threads.emplace_back([state = state_.get(), rank] { state->Listen(rank); });
  }
  state_->threads.emplace_back([state = state_.get()] { state->KeepAlive(); });
}

GroupLeader::~GroupLeader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->stop.notify_all();
  state_->SendToAll(GroupOrder::kEnd, 0);
  state_->group->End();
  for (std::thread& thread : state_->threads) thread.join();
}

std::unique_ptr<Executor> GroupLeader::Lead(std::unique_ptr<Executor> own) {
  return std::make_unique<GroupExecutor>(state_.get(), std::move(own));
}

std::unique_ptr<PageTransfer> GroupLeader::Lead(std::unique_ptr<PageTransfer> own) {
  return std::make_unique<GroupTransfer>(state_.get(), std::move(own));
}

std::string GroupLeader::DescribeSteps() const {
  const std::lock_guard lock(state_->mutex);
  const double steps = static_cast<double>(std::max<std::int64_t>(1, state_->steps)) * 1e6;
  const auto exchanges = static_cast<double>(state_->group->step_time());
  return fmt::format(
      "{} steps on {} ranks: {:.3f} ms to compute, {:.3f} ms in exchanges, which receive {}, and {:.3f} ms until all "
      "had "
      "reported",
      state_->steps, state_->group->ranks(), (static_cast<double>(state_->computing_time) - exchanges) / steps,
      exchanges / steps, FormatBytes(state_->group->step_bytes() / std::max<std::int64_t>(1, state_->steps)),
      static_cast<double>(state_->report_time) / steps);
}

void GroupLeader::Announce(const std::shared_ptr<const AdapterVersion>& version) { state_->Announce(version); }

std::optional<Error> GroupLeader::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stopping ? std::nullopt : state_->group->failure();
}

}  // namespace loramux
