// What the controller does next: a pure function of what Kubernetes and etcd hold.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "etcd/catalogue.h"
#include "kubernetes/lora_adapter.h"

namespace loramux {

struct ControllerView {
  std::string space;                                 // the controller's namespace
  std::map<std::string, LoraAdapterObject> objects;  // by the object's name
  // Who wrote a name of the catalogue, as SPACE/OBJECT. Names without an owner came another way, such as by a load over
  // HTTP.
  std::map<std::string, std::string> owners;
  std::map<std::string, FleetAdapter> catalogue;
  std::vector<std::pair<std::string, AdapterStatus>> servers;  // what each server made of a name
};

struct ControllerPlan {
  struct Write {
    std::string owner;  // SPACE/OBJECT
    FleetAdapter entry;
  };
  std::map<std::string, Write> writes;                      // by name
  std::set<std::string> removals;                           // names, with their owners
  std::map<std::string, LoraAdapterStatus> status_changes;  // by object
};

// An object wins over what came another way; of two objects with one name the older one wins. A name is removed only if
// an object of this namespace owned it and none names it now.
ControllerPlan PlanController(const ControllerView& view);

}  // namespace loramux
