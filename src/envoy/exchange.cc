#include "envoy/exchange.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "auth/error_body.h"
#include "base/bytes.h"
#include "cluster/session_servers.h"
#include "envoy/picker_request.h"
#include "http/error_status.h"
#include "http/exchange.h"
#include "router/route_headers.h"

namespace loramux {
namespace {

constexpr std::size_t kPieceCost = 64;  // bytes that a held piece takes besides its text

// The response's status; 200 if the proxy does not tell it.
int StatusIn(const ProxyMessage& message) {
  const std::string_view text = HeaderOf(message.headers, ":status");
  int status = 200;
  std::from_chars(text.data(), text.data() + text.size(), status);
  return status;
}

}  // namespace

class PickerExchanges::Exchange final : public ProxyExchange {
 public:
  explicit Exchange(PickerExchanges& owner) : owner_(owner) {}
  ~Exchange() override;
  void Take(ProxyMessage message, std::vector<ProxyReply>& replies) override;
  bool Settled() const override { return request_done_ && response_mode_ == ProxyBodyMode::kNone; }

 private:
  using Replies = std::vector<ProxyReply>;
  void TakeRequestHeaders(ProxyMessage message, Replies& replies);
  void TakeRequestBody(ProxyMessage message, Replies& replies);
  void TakeRequestTrailers(Replies& replies);
  void TakeResponseHeaders(const ProxyMessage& message, Replies& replies);
  void TakeResponseBody(ProxyMessage message, Replies& replies);
  bool Hold(std::string piece, bool end_of_stream, Replies& replies);
  bool Choose(std::string_view body, ProxyPart part, Replies& replies);
  void TellServer(const ProxyMessage& message, ProxyReply& reply) const;
  bool ChooseAndSendBack(Replies& replies);
  void Refuse(int status, const Error& error, Replies& replies, const char* dropped_reason = kDroppedNoEndpoints);
  void DropHeld();

  PickerExchanges& owner_;
  ProxyHeaders headers_;
  std::optional<std::vector<std::string>> subset_;
  // A proxy that does not say how it sends bodies uses the mode that the protocol demands.
  ProxyBodyMode request_mode_ = ProxyBodyMode::kFullDuplex;
  std::optional<ProxyBodyMode> response_mode_;
  std::vector<std::pair<std::string, bool>> held_;  // pieces of the body, and whether it ends with them
  std::size_t held_bytes_ = 0, held_cost_ = 0;
  Pick pick_;
  bool request_done_ = false, refused_ = false, answered_ = false;
};

std::unique_ptr<ProxyExchange> PickerExchanges::Begin() { return std::make_unique<Exchange>(*this); }

PickerExchanges::Exchange::~Exchange() {
  DropHeld();
  // The stream closes with the response. Without its body the proxy does not tell a broken response from a whole one.
  const bool whole = answered_ && response_mode_.value_or(ProxyBodyMode::kNone) == ProxyBodyMode::kNone;
  owner_.picker_.End(pick_, whole ? AttemptEnd::kAnswered : AttemptEnd::kCancelled);
}

void PickerExchanges::Exchange::Take(ProxyMessage message, Replies& replies) {
  if (refused_) return;
  switch (message.part) {
    case ProxyPart::kRequestHeaders:
      return TakeRequestHeaders(std::move(message), replies);
    case ProxyPart::kRequestBody:
      return TakeRequestBody(std::move(message), replies);
    case ProxyPart::kRequestTrailers:
      return TakeRequestTrailers(replies);
    case ProxyPart::kResponseHeaders:
      return TakeResponseHeaders(message, replies);
    case ProxyPart::kResponseBody:
      return TakeResponseBody(std::move(message), replies);
    case ProxyPart::kResponseTrailers:
      owner_.picker_.End(pick_, AttemptEnd::kAnswered);
      replies.push_back({.part = ProxyPart::kResponseTrailers});
      return;
    case ProxyPart::kImmediate:
    case ProxyPart::kOther:
      return;
  }
}

void PickerExchanges::Exchange::TakeRequestHeaders(ProxyMessage message, Replies& replies) {
  if (request_done_) return;  // a proxy sends them once
  headers_ = std::move(message.headers);
  subset_ = std::move(message.subset);
  request_mode_ = message.request_body_mode.value_or(ProxyBodyMode::kFullDuplex);
  response_mode_ = message.response_body_mode;
  switch (request_mode_) {
    case ProxyBodyMode::kFullDuplex:
      if (message.end_of_stream) request_done_ = Choose({}, ProxyPart::kRequestHeaders, replies);
      return;
    case ProxyBodyMode::kBuffered:
    case ProxyBodyMode::kBufferedPartial:
      if (!message.end_of_stream) {
        replies.push_back({.part = ProxyPart::kRequestHeaders});
        return;
      }
      [[fallthrough]];
    case ProxyBodyMode::kNone:
    case ProxyBodyMode::kStreamed:  // the headers leave before the body is known
      request_done_ = Choose({}, ProxyPart::kRequestHeaders, replies);
      return;
  }
}

void PickerExchanges::Exchange::TakeRequestBody(ProxyMessage message, Replies& replies) {
  if (request_done_) {  // kStreamed
    replies.push_back({.part = ProxyPart::kRequestBody});
    return;
  }
  if (request_mode_ != ProxyBodyMode::kFullDuplex) {
    if (message.body.size() > owner_.max_body_) {
      return Refuse(413, InvalidArgument("The request body has more than " + FormatBytes(owner_.max_body_)), replies);
    }
    request_done_ = Choose(message.body, ProxyPart::kRequestBody, replies);
    return;
  }
  const bool ends = message.end_of_stream;
  if (Hold(std::move(message.body), ends, replies) && ends) request_done_ = ChooseAndSendBack(replies);
}

void PickerExchanges::Exchange::TakeRequestTrailers(Replies& replies) {
  if (!request_done_ && request_mode_ == ProxyBodyMode::kFullDuplex) request_done_ = ChooseAndSendBack(replies);
  if (!refused_) replies.push_back({.part = ProxyPart::kRequestTrailers});
}

void PickerExchanges::Exchange::TakeResponseHeaders(const ProxyMessage& message, Replies& replies) {
  answered_ = true;
  owner_.picker_.Answered(pick_, {.served = message.served,
                                  .details = message.details,
                                  .not_started = HeaderOf(message.headers, "x-loramux-not-started") == "1",
                                  .status = StatusIn(message)});
  if (message.end_of_stream) owner_.picker_.End(pick_, AttemptEnd::kAnswered);
  ProxyReply reply{.part = ProxyPart::kResponseHeaders};
  TellServer(message, reply);
  replies.push_back(std::move(reply));
}

// Names the server that answered, for later requests of the conversation.
void PickerExchanges::Exchange::TellServer(const ProxyMessage& message, ProxyReply& reply) const {
  const auto served = std::find(pick_.addresses.begin(), pick_.addresses.end(), message.served);
  const auto at = served == pick_.addresses.end() ? 0 : served - pick_.addresses.begin();
  const bool by_proxy = !message.details.empty() && message.details != "via_upstream";
  if (pick_.servers.empty() || by_proxy) return;
  reply.set_headers.emplace_back(kSessionTokenHeader, SessionToken(pick_.servers[static_cast<std::size_t>(at)]));
}

void PickerExchanges::Exchange::TakeResponseBody(ProxyMessage message, Replies& replies) {
  if (message.end_of_stream) owner_.picker_.End(pick_, AttemptEnd::kAnswered);
  const bool duplex = response_mode_.value_or(ProxyBodyMode::kFullDuplex) == ProxyBodyMode::kFullDuplex;
  replies.push_back({.part = ProxyPart::kResponseBody,
                     .streamed = duplex,
                     .end_of_stream = message.end_of_stream,
                     .body = duplex ? std::move(message.body) : std::string()});
}

// False: the request was refused, because too much is held.
bool PickerExchanges::Exchange::Hold(std::string piece, bool end_of_stream, Replies& replies) {
  const std::size_t bytes = piece.size();
  if (held_bytes_ + bytes > owner_.max_body_) {
    Refuse(413, InvalidArgument("The request body has more than " + FormatBytes(owner_.max_body_)), replies);
    return false;
  }
  held_bytes_ += bytes;
  const std::size_t cost = bytes + kPieceCost;
  held_cost_ += cost;
  if (owner_.held_.fetch_add(cost) + cost > owner_.max_held_) {
    Refuse(503, Unavailable("The endpoint picker holds too many incomplete requests"), replies, kDroppedSaturated);
    return false;
  }
  held_.emplace_back(std::move(piece), end_of_stream);
  return true;
}

void PickerExchanges::Exchange::DropHeld() {
  owner_.held_.fetch_sub(held_cost_);
  held_cost_ = 0;
  held_bytes_ = 0;
  held_.clear();
}

bool PickerExchanges::Exchange::Choose(std::string_view body, ProxyPart part, Replies& replies) {
  auto request = PickerRequestOf(headers_, body);
  if (!request.ok()) {
    Refuse(400, request.error(), replies);
    return false;
  }
  auto pick = owner_.picker_.Choose(std::move(request->route), subset_);
  if (!pick.ok()) {
    Refuse(HttpStatus(pick.error()), pick.error(), replies);
    return false;
  }
  pick_ = std::move(*pick);
  ProxyReply reply{.part = part};
  for (const std::string& address : pick_.addresses) reply.endpoints += (reply.endpoints.empty() ? "" : ",") + address;
  reply.set_headers.emplace_back(kDestinationEndpoint, reply.endpoints);
  if (!pick_.request.digest.empty()) reply.set_headers.emplace_back("x-loramux-require-digest", pick_.request.digest);
  if (request->body && part == ProxyPart::kRequestBody) reply.replaces_body = true;
  if (request->body) reply.body = std::move(*request->body);
  replies.push_back(std::move(reply));
  return true;
}

bool PickerExchanges::Exchange::ChooseAndSendBack(Replies& replies) {
  std::string body;
  body.reserve(held_bytes_);
  for (const auto& [piece, ends] : held_) body += piece;
  if (!Choose(body, ProxyPart::kRequestHeaders, replies)) return false;
  if (std::string other = std::exchange(replies.back().body, {}); !other.empty()) {
    const bool ends = held_.back().second;
    held_.clear();
    held_.emplace_back(std::move(other), ends);
  }
  for (auto& [piece, ends] : held_) {
    replies.push_back(
        {.part = ProxyPart::kRequestBody, .streamed = true, .end_of_stream = ends, .body = std::move(piece)});
  }
  DropHeld();
  return true;
}

void PickerExchanges::Exchange::Refuse(int status, const Error& error, Replies& replies, const char* dropped_reason) {
  refused_ = true;
  DropHeld();
  ProxyReply reply{
      .part = ProxyPart::kImmediate, .body = ErrorBody(status, error.message, error.param), .status = status};
  reply.set_headers.emplace_back("content-type", "application/json");
  if (status == 429 || status == 503) {
    reply.set_headers.emplace_back("retry-after", std::to_string(std::max(1, error.retry_after_seconds)));
  }
  if (status == 429) reply.set_headers.emplace_back(kDroppedReasonHeader, kDroppedSaturated);
  if (status == 503) {
    reply.set_headers.emplace_back(kNotStartedHeader, "1");
    reply.set_headers.emplace_back(kDroppedReasonHeader, dropped_reason);
  }
  replies.push_back(std::move(reply));
}

}  // namespace loramux
