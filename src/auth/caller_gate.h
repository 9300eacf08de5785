// The gate of a server's and of a router's routes: finds out who asks.
#pragma once

#include <optional>
#include <string>

#include "auth/access.h"
#include "base/clock.h"
#include "http/exchange.h"

namespace loramux {

// Thread-safe. Sets HttpRequest::caller, `tenant` and `address`: by the request's own key, else by what a router
// vouches for, else by the trusted header.
class CallerGate {
 public:
  // `access`: the API keys; null: no key is asked for. `fleet_key`: that of routers that vouch for callers
  // (vouched_caller.h); empty: none is believed. `trust_fairness_header`: the headers of FairnessIdIn name the tenant.
  // The keys and the clock must outlive the gate.
  CallerGate(const AccessControl* access, std::string fleet_key, bool trust_fairness_header, const Clock& clock)
      : access_(access),
        fleet_key_(std::move(fleet_key)),
        trust_fairness_header_(trust_fairness_header),
        clock_(&clock) {}

  // Returns the reply that refuses the request: a missing or unknown key, or a caller that no router of this fleet
  // signed.
  std::optional<HttpReply> operator()(HttpRequest& request) const;

 private:
  std::optional<HttpReply> CheckKey(HttpRequest& request) const;
  std::optional<HttpReply> TakeVouched(HttpRequest& request) const;

  const AccessControl* access_;
  std::string fleet_key_;
  bool trust_fairness_header_;
  const Clock* clock_;
};

// What a request's headers say of the tenant, whether or not that is trusted: x-llm-d-inference-fairness-id or
// x-gateway-inference-fairness-id. Empty: nothing.
std::string_view FairnessIdIn(const HttpRequest& request);

}  // namespace loramux
