// The gate of a server's and of a router's routes: finds out who asks.
#pragma once

#include <optional>
#include <string>

#include "auth/access.h"
#include "base/clock.h"
#include "http/exchange.h"

namespace loramux {

struct CallerGateOptions {
  const AccessControl* access = nullptr;  // the API keys; null: no key is asked for
  std::string fleet_key;  // key of routers that vouch for callers (vouched_caller.h); empty: none is believed
  bool trust_fairness_header = false;  // the headers of FairnessIdIn name the tenant
};

// Thread-safe. Sets HttpRequest::caller, `tenant` and `address`: by the request's own key, else by what a router
// vouches for, else by the trusted header.
class CallerGate {
 public:
  // The keys and the clock must outlive the gate.
  CallerGate(CallerGateOptions options, const Clock& clock) : options_(std::move(options)), clock_(&clock) {}

  // Returns the reply that refuses the request: a missing or unknown key, or a caller that no router of this fleet
  // signed.
  std::optional<HttpReply> operator()(HttpRequest& request) const;

 private:
  std::optional<HttpReply> CheckKey(HttpRequest& request) const;
  std::optional<HttpReply> TakeVouched(HttpRequest& request) const;

  CallerGateOptions options_;
  const Clock* clock_;
};

// What a request's headers say of the tenant, whether or not that is trusted: x-llm-d-inference-fairness-id or
// x-gateway-inference-fairness-id. Empty: nothing.
std::string_view FairnessIdIn(const HttpRequest& request);

}  // namespace loramux
