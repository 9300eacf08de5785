// What moves between the tiers. Every plan has one list of moves; the engine's observer sees it before the scheduler
// carries it out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "memory/tier.h"
#include "prefix/tree_nodes.h"

namespace loramux {

// What lies in pages and moves as one: a page of the dependency tree, or an adapter.
struct ItemId {
  ItemId(NodeId node) : node(node) {}
  ItemId(AdapterGeneration adapter) : adapter(adapter) {}

  NodeId node;                             // the page; none if it is an adapter
  AdapterGeneration adapter = kBaseModel;  // kBaseModel: the item is a page
  bool is_adapter() const { return adapter != kBaseModel; }
  friend bool operator==(const ItemId&, const ItemId&) = default;
};

// Why something moves. Recordings have the numbers of the reasons of plans beside steps, which come first.
enum class MoveReason : std::uint8_t {
  kNewcomer,    // a request arrived during a step: its adapter loads at once
  kExpected,    // an adapter is expected to be used soon: it loads
  kReserve,     // history is evicted, so that the next plan finds free pages
  kSwapOut,     // memory is busy: what is worth least leaves the device (residency/proactive_swapper.h)
  kSwapIn,      // memory is idle: what is worth most comes back from the host tier
  kRoom,        // something else of the plan needs the room
  kBackUp,      // history that will be evicted soon is copied to the host tier, and what is worth less leaves it
  kReset,       // an operator wants no history
  kRegistered,  // an adapter has a name: it is read into the host tier
  kWaits,       // a waiting request, or an operator, needs it
  kBegins,      // a request of the plan begins with it while it comes from the host tier
  kAhead,       // a waiting request that has no seat yet will need it
};

// One move. An adapter whose load leaves a copy in the host tier has two: kDisk to kHost, then kHost to kDevice. One
// that is registered may have the first alone.
struct Move {
  ItemId item;  // the end of the path, if pages are fetched
  Tier from = Tier::kDevice;
  // kDisk: the copy in `from` is freed. Nothing is written: an adapter's file is there, and keys and values that no
  // tier has are computed again.
  Tier to = Tier::kDisk;
  MoveReason why = MoveReason::kRoom;
  std::int64_t pages = 1;
  RequestId requester;  // 0: no particular request

  bool leaves(Tier tier) const { return from == tier && to == Tier::kDisk; }
  bool comes_to_device() const { return to == Tier::kDevice; }
  bool is_load() const { return item.is_adapter() && comes_to_device(); }
  bool is_fetch() const { return !item.is_adapter() && comes_to_device(); }
};

using Moves = std::vector<Move>;

}  // namespace loramux
