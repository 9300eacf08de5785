// Versions of adapters that take the place of others (Engine::Retarget).
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/make_sequence.h"

namespace loramux {

void Engine::Impl::TakeRetargeted(TimeNs now) {
  for (const AdapterGeneration old : inbox.retargeted) {
    const Successor* const successor = inbox.successors.Of(old);
    if (successor == nullptr) continue;  // nothing can be on it any more
    Retargeting taken{.old = old, .next = successor->next.lock(), .why = successor->why};
    if (successor->ends) taken.next = nullptr;
    if (!successor->ends && taken.next == nullptr) continue;
    taken.next_retired = taken.next != nullptr && parts.registry->IsRetired(taken.next->generation);
    const bool aborts = successor->ends && !successor->why;
    AddRetargeting(taken);
    if (!aborts) continue;
    for (const AdapterGeneration composite : CompositesWith(old)) {
      taken.old = composite;
      AddRetargeting(taken);
    }
  }
  if (!inbox.successors.empty()) MoveUnseen(arriving, now);
  if (!std::exchange(inbox.retargeted, {}).empty()) MoveUnseen(inbox.submitted, now);
}

void Engine::Impl::AddRetargeting(const Retargeting& added) {
  for (Retargeting& earlier : retargetings) {
    if (earlier.next == nullptr || earlier.next->generation != added.old) continue;
    const AdapterGeneration old = earlier.old;
    earlier = added;
    earlier.old = old;
  }
  observer.RetargetAsked(added.old, added.next.get());
  retargetings.push_back(added);
}

std::vector<AdapterGeneration> Engine::Impl::CompositesWith(AdapterGeneration part) const {
  std::vector<AdapterGeneration> composites;
  for (const auto& [id, sequence] : sequences) {
    if (sequence->state == RequestState::kFinished || sequence->adapter == kBaseModel) continue;
    const auto& of = residency.Get(sequence->adapter).version->parts;
    if (std::ranges::any_of(of, [&](const auto& one) { return one->generation == part; }))
      composites.push_back(sequence->adapter);
  }
  std::ranges::sort(composites);
  const auto same = std::ranges::unique(composites);
  composites.erase(same.begin(), same.end());
  return composites;
}

void Engine::Impl::MoveUnseen(std::vector<std::unique_ptr<Sequence>>& unseen, TimeNs now) {
  for (std::unique_ptr<Sequence>& sequence : unseen) {
    if (sequence->version == nullptr || sequence->keeps_version) continue;
    const Successor* const successor = inbox.successors.Of(*sequence->version);
    if (successor == nullptr) continue;
    std::shared_ptr<const AdapterVersion> next = successor->next.lock();
    if (!successor->ends && next == nullptr) {
      sequence->keeps_version = true;  // a replay knows no version that is gone
      continue;
    }
    std::optional<Error> why = successor->ends ? successor->why : WhyNotOn(*next, *sequence);
    if (!successor->ends && !why) {
      sequence->adapter = next->generation;
      sequence->version = std::move(next);
      ++totals.retargeted.moved;
      continue;
    }
    End(EndUnseen(std::move(sequence), now), std::move(why));
  }
  std::erase(unseen, nullptr);
}

std::optional<Error> Engine::Impl::WhyNotOn(const AdapterVersion& next, const Sequence& sequence) const {
  const std::string begun = "The adapter `" + next.name + "` was loaded anew, and this request cannot go on with it: ";
  if (PagesOf(sequence.max_total_tokens) > PagesBesideAdapter(next.generation)) {
    return ResourceExhausted(begun + "the device memory does not hold its " +
                             std::to_string(sequence.max_total_tokens) + " tokens beside the new version (" +
                             std::to_string(next.layout.pages) + " pages). Shorten it, or raise --device-memory.");
  }
  const auto unknown = FindUnknownToken(sequence.tokens, options.vocab_size, &next);
  if (!unknown) return std::nullopt;
  return Unavailable(begun + "the new version does not embed its token " + std::to_string(*unknown) + ".");
}

void Engine::Impl::End(GenerationEvent& event, std::optional<Error> why) {
  ++(why ? totals.retargeted.failed : totals.retargeted.aborted);
  event.finish = why ? FinishReason::kError : FinishReason::kAborted;
  event.error = std::move(why);
}

bool Engine::Impl::ApplyRetargetings(TimeNs now) {
  bool any = false;
  for (const Retargeting& retargeting : std::exchange(retargetings, {})) {
    std::vector<Sequence*> moving;
    for (const auto& [id, sequence] : sequences) {
      if (sequence->state == RequestState::kFinished || sequence->keeps_version) continue;
      if (sequence->adapter == retargeting.old) moving.push_back(sequence.get());
    }
    std::ranges::sort(moving, {}, [](const Sequence* sequence) { return sequence->id; });
    any |= !moving.empty();
    std::erase_if(moving, [&](Sequence* sequence) { return EndsBy(retargeting, *sequence, now); });
    for (Sequence* const sequence : moving) MoveTo(*sequence, retargeting, now);
  }
  return any;
}

bool Engine::Impl::EndsBy(const Retargeting& retargeting, Sequence& sequence, TimeNs now) {
  std::optional<Error> why = retargeting.why;
  if (retargeting.next != nullptr) {
    const std::lock_guard lock(inbox.mutex);
    why = WhyNotOn(*retargeting.next, sequence);
    if (!why) return false;
    observer.CancelAsked(sequence.id);  // a replay does not know each reason
  }
  End(Finish(sequence, FinishReason::kAborted, now), std::move(why));
  return true;
}

void Engine::Impl::MoveTo(Sequence& sequence, const Retargeting& retargeting, TimeNs now) {
  const AdapterGeneration old = sequence.adapter, next = retargeting.next->generation;
  residency.Add(retargeting.next);
  residency.Acquire(next);
  if (retargeting.next_retired) residency.Retire(next);
  if (sequence.generated().empty()) sequence.BeginPrompt();  // else the scores come with the first token
  observer.Retargeted(sequence, *retargeting.next, sequence.tokens);
  scheduler.ChangeAdapter(&sequence, next, now);
  residency.Release(old);
  ++totals.retargeted.moved;
}

}  // namespace loramux
