// Whether a request begins before its adapter is on the device, with the copy in the host tier (CaraServe 4).
#pragma once

#include "schedule/options.h"

namespace loramux {

// Predicted seconds of the request's first step, by where its adapter is computed.
struct ColdStartCosts {
  double load = 0;       // until the adapter is on the device
  double assisted = 0;   // the step, if it begins now with the copy in the host tier
  double on_device = 0;  // the step, once the adapter is on the device
};

// Whether the request begins now. REQUIRES: the host tier has the whole adapter.
inline bool BeginsFromHost(ColdStartPolicy policy, const ColdStartCosts& costs) {
  switch (policy) {
    case ColdStartPolicy::kWait:
      return false;
    case ColdStartPolicy::kAssist:
      return true;
    case ColdStartPolicy::kAuto:
      return costs.assisted <= costs.load + costs.on_device;
  }
  return false;
}

}  // namespace loramux
