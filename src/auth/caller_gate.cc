#include "auth/caller_gate.h"

#include <memory>
#include <utility>

#include "auth/tenancy.h"
#include "auth/vouched_caller.h"

namespace loramux {

std::string_view FairnessIdIn(const HttpRequest& request) {
  for (const std::string_view name : kFairnessHeaders) {
    const std::string_view id = request.Header(name);
    if (!id.empty()) return id;
  }
  return {};
}

// Anthropic's clients send their key as x-api-key; `Authorization` comes first.
std::optional<HttpReply> CallerGate::CheckKey(HttpRequest& request) const {
  const std::string_view authorization = request.Header("authorization"), key = request.Header("x-api-key");
  request.caller = access_->Authenticate(authorization);
  if (request.caller == nullptr) request.caller = access_->AuthenticateKey(key);
  if (request.caller != nullptr) return std::nullopt;
  const bool given = !authorization.empty() || !key.empty();
  HttpReply reply = ErrorReply(
      401, given ? "Incorrect API key provided."
                 : "No API key provided: expected a header \"Authorization: Bearer KEY\" or \"x-api-key: KEY\".");
  reply.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"loramux\"");
  return reply;
}

std::optional<HttpReply> CallerGate::TakeVouched(HttpRequest& request) const {
  const std::string_view value = request.Header(kVouchedCallerHeader);
  if (value.empty()) return std::nullopt;
  auto vouched = ReadVouchedCaller(value, fleet_key_, request.Header("X-Request-Id"), clock_->UnixSeconds());
  if (!vouched.ok()) return ErrorReply(401, vouched.error().message);
  request.address = std::move(vouched->address);
  request.tenant = std::move(vouched->id);
  if (vouched->key.empty() || request.caller != nullptr) return std::nullopt;
  // The router has checked the key, its models and its limits.
  request.caller = std::make_shared<const ApiKey>(ApiKey{.name = std::move(vouched->key), .models = {"*"}});
  return std::nullopt;
}

std::optional<HttpReply> CallerGate::operator()(HttpRequest& request) const {
  if (access_ != nullptr) {
    if (auto refusal = CheckKey(request)) return refusal;
  }
  const bool own_key = request.caller != nullptr;
  if (!fleet_key_.empty()) {
    if (auto refusal = TakeVouched(request)) return refusal;
  }
  // What a router vouches for says it all: it repeats the name of its key in this header, for servers without the key.
  const bool vouched_key = !own_key && request.caller != nullptr;
  if (trust_fairness_header_ && request.tenant.empty() && !vouched_key) {
    request.tenant = FairnessIdIn(request);
  }
  const auto tenant = TenantName(CallerOf(request), request.tenant);
  return tenant.ok() ? std::nullopt : std::optional(ErrorReply(tenant.error()));
}

}  // namespace loramux
