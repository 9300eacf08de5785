#include "kubernetes/plan.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace loramux {
namespace {

// Who holds each name: of several objects the oldest.
std::map<std::string, const LoraAdapterObject*> HoldersOf(const ControllerView& view) {
  std::map<std::string, const LoraAdapterObject*> holders;
  for (const auto& [key, object] : view.objects) {
    if (!object.invalid.empty()) continue;
    const LoraAdapterObject*& holder = holders[object.name];
    const bool older =
        holder != nullptr && std::tie(object.created, object.object) < std::tie(holder->created, holder->object);
    if (holder == nullptr || older) holder = &object;
  }
  return holders;
}

bool SameWish(const FleetAdapter& a, const FleetAdapter& b) {
  return std::tie(a.source, a.digest, a.replicas, a.pinned) == std::tie(b.source, b.digest, b.replicas, b.pinned);
}

LoraAdapterStatus Refused(const LoraAdapterObject& object, std::string reason, std::string message) {
  return {.observed_generation = object.generation,
          .ready = "False",
          .reason = std::move(reason),
          .message = std::move(message)};
}

// What the servers make of an entry that the catalogue has.
LoraAdapterStatus Served(const LoraAdapterObject& object, const FleetAdapter& entry, const ControllerView& view) {
  LoraAdapterStatus status{.observed_generation = object.generation, .catalogue_generation = entry.generation};
  std::string error;
  for (const auto& [name, server] : view.servers) {
    if (name != object.name || server.generation != entry.generation) continue;
    server.loaded ? ++status.loaded : ++status.failed;
    if (!server.loaded && error.empty()) error = server.error;
  }
  status.ready = status.loaded > 0 ? "True" : status.failed > 0 ? "False" : "Unknown";
  status.reason = status.failed > 0 ? "Refused" : status.loaded > 0 ? "Loaded" : "Pending";
  status.message = status.failed > 0   ? fmt::format("{} servers refuse it: {}", status.failed, error)
                   : status.loaded > 0 ? fmt::format("{} servers serve it", status.loaded)
                                       : std::string("in the catalogue; no server has said that it serves it yet");
  return status;
}

}  // namespace

ControllerPlan PlanController(const ControllerView& view) {
  ControllerPlan plan;
  const auto holders = HoldersOf(view);
  const std::string own = view.space + "/";
  for (const auto& [name, owner] : view.owners) {
    // An object that an edit made invalid keeps what it had.
    const bool invalid = std::ranges::any_of(view.objects, [&](const auto& item) {
      return own + item.second.object == owner && !item.second.invalid.empty();
    });
    if (owner.starts_with(own) && !holders.contains(name) && !invalid) plan.removals.insert(name);
  }
  for (const auto& [key, object] : view.objects) {
    LoraAdapterStatus status;
    const auto holder = holders.find(object.name);
    const auto owner = view.owners.find(object.name);
    const auto entry = view.catalogue.find(object.name);
    if (!object.invalid.empty()) {
      status = Refused(object, "Invalid", object.invalid);
    } else if (holder->second != &object) {
      status = Refused(object, "NameTaken",
                       fmt::format("the older LoraAdapter {} has the name '{}'; choose another spec.name",
                                   holder->second->object, object.name));
    } else if (owner != view.owners.end() && !owner->second.starts_with(own)) {
      status =
          Refused(object, "NameTaken",
                  fmt::format("the LoraAdapter {} of another namespace has the name '{}'", owner->second, object.name));
    } else {
      const std::string self = own + object.object;
      const bool written = entry != view.catalogue.end() && SameWish(entry->second, object.wanted);
      if (!written || owner == view.owners.end() || owner->second != self) {
        plan.writes[object.name] = {self, object.wanted};
      }
      status = written ? Served(object, entry->second, view)
                       : LoraAdapterStatus{.observed_generation = object.generation,
                                           .ready = "Unknown",
                                           .reason = "Pending",
                                           .message = "not in the catalogue yet"};
    }
    if (status != object.status) plan.status_changes[key] = std::move(status);
  }
  return plan;
}

}  // namespace loramux
