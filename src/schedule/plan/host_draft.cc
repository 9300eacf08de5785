#include "schedule/plan/host_draft.h"

#include <algorithm>

#include "base/check.h"

namespace loramux {

void HostDraft::Reset(Moves& moves, MoveReason leaves, MoveReason comes) {
  moves_ = &moves;
  leaves_ = leaves;
  comes_ = comes;
  free_ = view_.residency.pool(Tier::kHost).free_pages();
  fetches_in_flight_ = view_.tiers.fetches_in_flight();
  droppable_ = view_.tree.tiers().droppable_host_pages();
  PutBack();
  ++plan_;
  for (const NodeId node : dropped_) tree_.OfferToDrop(node);  // dropped by a plan that was not carried out
  dropped_.clear();
  while (offered_.First() != nullptr) offered_.Remove(offered_.First()->item);
}

HostDraft::Mark& HostDraft::At(std::vector<Mark>& marks, std::size_t index) const {
  if (marks.size() <= index) marks.resize(std::max({index + 1, tree_.nodes().slots(), view_.residency.All().size()}));
  Mark& mark = marks[index];
  if (mark.plan != plan_) mark = {.plan = plan_};
  return mark;
}

// ---------------------------------------------------------------- Adapters

bool HostDraft::Load(const AdapterResidency& adapter) {
  Mark& mark = Of(adapter);
  mark.comes = true;
  if (adapter.host == TierState::kResident && !mark.leaves) return true;
  if (adapter.host == TierState::kLoading) return true;  // it is being read into the tier: BeginHostRead
  if (adapter.pages > view_.residency.pool(Tier::kHost).capacity_pages()) return false;
  if (free_ < adapter.pages) RefreshVictims();
  const std::size_t first = moves_->size();
  std::int64_t dropped = 0;  // pages of history
  while (free_ < adapter.pages) {
    const HostOrder::Entry* const victim = NextVictim();
    const HostOrder::Entry* const history = droppable_ > 0 ? tree_.NextToDrop() : nullptr;
    const bool drops = droppable_ > 0 && (victim == nullptr || (history != nullptr && history->worth < victim->worth));
    if (drops) {
      --droppable_;
      ++free_;
      ++dropped;
    } else if (victim != nullptr) {
      EvictCopy(view_.residency.All()[victim->item]);
    } else {  // all other copies are moving to the device, or will be
      Undo(first, dropped);
      return false;
    }
  }
  free_ -= adapter.pages;
  moves_->push_back({.item = adapter.version->generation,
                     .from = Tier::kDisk,
                     .to = Tier::kHost,
                     .why = comes_,
                     .pages = adapter.pages});
  return true;
}

// Copies of adapters that requests wait for stay, because those adapters will be loaded themselves, and so do those
// that are being copied to the device or that a step computes with. With HostCopies::kAlways so do those of all
// registered adapters.
void HostDraft::RefreshVictims() {
  changes_.clear();
  residency_.TakeChanges(changes_);
  const bool always = view_.options.host_copies == HostCopies::kAlways;
  for (const std::uint32_t slot : changes_) {
    const AdapterResidency& adapter = view_.residency.All()[slot];
    const bool waited_for = adapter.device == TierState::kAbsent && adapter.references > adapter.users;
    const bool in_use = adapter.device == TierState::kLoading || adapter.read_in_host;
    const bool stays = always && adapter.registered && !adapter.retired;
    const bool may_go = adapter.host == TierState::kResident && !in_use && !waited_for && !stays;
    if (may_go) {
      victims_.Set({view_.worth.HostWorthOf(adapter, view_.tree), adapter.host_arrival, slot});
    } else {
      victims_.Remove(slot);
    }
  }
}

const HostOrder::Entry* HostDraft::NextVictim() {
  const HostOrder::Entry* victim = victims_.First();
  for (; victim != nullptr; victim = victims_.First()) {
    const Mark& mark = At(adapters_, victim->item);
    if (!mark.leaves && !mark.comes) break;
    aside_.push_back(*victim);
    victims_.Remove(victim->item);
  }
  return victim;
}

void HostDraft::EvictCopy(const AdapterResidency& adapter) {
  Of(adapter).leaves = true;
  moves_->push_back({.item = adapter.version->generation, .from = Tier::kHost, .why = leaves_, .pages = adapter.pages});
  free_ += adapter.pages;
}

void HostDraft::Undo(std::size_t first, std::int64_t dropped) {
  for (; moves_->size() > first; moves_->pop_back()) {
    Of(view_.residency.Get(moves_->back().item.adapter)).leaves = false;
    free_ -= moves_->back().pages;
  }
  free_ -= dropped;
  droppable_ += dropped;
  PutBack();
}

// What has changed meanwhile is corrected by the next RefreshVictims.
void HostDraft::PutBack() {
  for (const HostOrder::Entry& entry : aside_) victims_.Set(entry);
  aside_.clear();
}

// ---------------------------------------------------------------- History

const HostOrder::Entry* HostDraft::NextDrop() {
  const HostOrder::Entry *offered = offered_.First(), *present = tree_.NextToDrop();
  if (offered == nullptr || present == nullptr) return offered == nullptr ? present : offered;
  return *offered < *present ? offered : present;
}

void HostDraft::DropNext() {
  const HostOrder::Entry* const next = NextDrop();
  CHECK(next != nullptr);
  const NodeId node = tree_.nodes().IdOf(next->item);
  offered_.Remove(node.index);
  tree_.HoldFromDrop(node);
  dropped_.push_back(node);
  Of(node).leaves = true;
  moves_->push_back({.item = node, .from = Tier::kHost, .why = leaves_});
  ++free_;
  OfferParent(node);
}

// The copy of a page that is on the device could be dropped anyway.
void HostDraft::OfferParent(NodeId node) {
  if (tree_.tiers().OnDevice(node)) return;
  const NodeId parent = tree_.nodes().Parent(node);
  const TreeNode& record = tree_.nodes().At(parent);
  if (record.on_device() || !record.has_host_page() || record.moving()) return;
  for (NodeId child = tree_.nodes().FirstChild(parent); child.generation != 0;
       child = tree_.nodes().NextSibling(child)) {
    if (!Of(child).leaves) return;
  }
  offered_.Set(HostEntry(record, parent.index));
}

void HostDraft::Drop(std::int64_t pages) {
  for (; pages > 0; --pages) DropNext();
}

// A page is copied together with its ancestors: when it is evicted they become leaves, and a copy is useless without
// its ancestors' copies.
std::int64_t HostDraft::BackUp(NodeId tail, std::int64_t most) {
  chain_.clear();
  for (NodeId at = tail; tree_.nodes().Exists(at) && tree_.nodes().Depth(at) > 0; at = tree_.nodes().Parent(at)) {
    // For a page in transfer, the copy is already on its way.
    if (!tree_.tiers().OnDevice(at) || tree_.nodes().At(at).moving() || Of(at).comes) break;
    if (tree_.nodes().At(at).has_host_copy() && !Of(at).leaves) break;
    chain_.push_back(at);
  }
  std::int64_t copied = 0;
  for (; copied < most && !chain_.empty(); ++copied, chain_.pop_back()) {
    if (free_ == 0) {  // only a page of less worth gives way
      const HostOrder::Entry* const least = NextDrop();
      if (least == nullptr || least->worth >= tree_.reuse().HostWorth(chain_.back())) break;
      DropNext();
    }
    --free_;
    Of(chain_.back()).comes = true;
    moves_->push_back({.item = chain_.back(), .to = Tier::kHost, .why = comes_});
  }
  return copied;
}

}  // namespace loramux
