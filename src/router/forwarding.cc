#include "router/forwarding.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "auth/access.h"
#include "base/log.h"
#include "cluster/pinned_name.h"
#include "cluster/prefix_blocks.h"
#include "cluster/session_servers.h"
#include "http/run_on.h"
#include "router/request_scan.h"
#include "router/route_headers.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kScannedAtOnce = 256 * 1024;        // bytes of a body; a longer one is scanned on another thread
constexpr std::size_t kMostWhole = std::size_t{1} << 20;  // most bytes of an answer that is sent once it is whole
constexpr std::size_t kMostRefusal = 64 * 1024;           // most bytes of the body of an answer that began nothing
constexpr double kBytesPerAnswerToken = 4;
constexpr std::int64_t kMostSequences = 1 << 20;

// Requests that count towards the limits of a key, as at a server: those that may generate.
bool IsLimited(std::string_view path) { return !path.ends_with("tokenize") && !path.ends_with("/count_tokens"); }

// An error as the path's API writes it.
HttpReply InForm(std::string_view path, HttpReply reply) {
  reply.body = ErrorBodyOf(path, reply.status, std::exchange(reply.error, {})->message);
  reply.content_type = "application/json";
  return reply;
}

}  // namespace

Forwarding::Forwarding(Proxy& proxy, HttpExchange& exchange, TimeNs arrived)
    : proxy_(proxy), exchange_(exchange), arrived_(arrived), in_flight_(proxy.metrics_.in_flight) {
  exchange_.OnDisconnect([this] {
    gone_ = true;
    if (call_ != nullptr) call_->Cancel();
  });
  exchange_.OnCutOff([this] {
    cut_off_ = true;
    if (call_ != nullptr) call_->Cancel();
  });
}

Forwarding::~Forwarding() {
  exchange_.OnDisconnect(nullptr);
  exchange_.OnCutOff(nullptr);
  if (open_) Count(AttemptEnd::kCancelled);
  exchange_.AddDetails({{"server", server_ == nullptr ? std::string("none") : server_->address.name},
                        {"tries", static_cast<std::int64_t>(tried_.size())}});
}

void Forwarding::Count(AttemptEnd end) {
  open_ = false;
  proxy_.pool_.dispatcher().End(attempt_, end, Now());
  proxy_.metrics_.CountAttempt(server_->address.name, end);
}

asio::awaitable<void> Forwarding::Run() {
  const bool allowed = co_await Prepare();
  if (!allowed) co_return;
  Dispatcher& dispatcher = proxy_.pool_.dispatcher();
  while (true) {
    const auto decision = dispatcher.Send(route_, Now(), tried_);
    if (!decision.ok()) co_return co_await GiveUp(decision.error().message);
    attempt_ = decision->attempt;
    open_ = true;
    server_ = proxy_.pool_.Find(decision->server);
    CHECK(server_ != nullptr);
    tried_.push_back(decision->server);
    const Next next = co_await Try(attempt_);
    if (next == Next::kEnd || gone_) co_return;
    if (cut_off_) co_return co_await GiveUp("the router is shutting down");
    const bool free = std::exchange(other_content_, false);  // such a retry adds no load to a fleet in trouble
    if (!free && !dispatcher.MayRetry(Now())) co_return co_await GiveUp("too many requests are being sent again");
    proxy_.metrics_.CountRetry();
  }
}

// Reads what the dispatcher needs to know. False: the request has been answered.
asio::awaitable<bool> Forwarding::Prepare() {
  const HttpRequest& request = exchange_.request();
  const HeaderLookup header = [&request](std::string_view name) { return request.Header(name); };
  const std::string_view rewritten = RewrittenModel(header);
  ScannedRequest scanned;
  bool read = false;
  const auto scan = [&] {
    read = ScanRequest(request.body, scanned);
    if (read && !rewritten.empty()) {
      body_ = WithModel(request.body, scanned, rewritten);
      scanned.model = rewritten;
      scanned.names.emplace_back(rewritten);
    }
    const std::string& model = scanned.adapter.empty() ? scanned.model : scanned.adapter;
    route_.prefix = PrefixBlocks(SplitPinnedName(model).name, scanned.text);
  };
  if (request.body.size() <= kScannedAtOnce) {
    scan();
  } else {
    co_await RunOn(proxy_.scans_, WorkTenant(request), scan);
  }
  if (!rewritten.empty() && !read) {
    co_await Fail(400, "x-llm-d-model-name-rewrite: expected a body that is a JSON object, found something else.");
    co_return false;
  }
  const PinnedName named = SplitPinnedName(scanned.adapter.empty() ? scanned.model : scanned.adapter);
  const bool allowed = co_await CheckCaller(scanned, read);
  if (!allowed) co_return false;
  const bool admitted = co_await Admit(scanned);
  if (!admitted) co_return false;
  if (const Status steered = ReadRouteHeaders(header, route_); !steered.ok()) {
    co_await Fail(steered.error());
    co_return false;
  }
  route_.adapter = proxy_.pool_.AdapterOf(named.name);
  route_.prompt_tokens = PromptTokens(scanned);
  route_.output_tokens = proxy_.lengths_.Expect(route_.adapter, scanned.max_tokens);
  if (!route_.adapter.empty()) {
    const auto entry = proxy_.catalogue_.find(route_.adapter);
    if (entry != proxy_.catalogue_.end()) route_.digest = entry->second.digest;
    if (!named.digest.empty()) route_.digest = named.digest;
  }
  std::string original = exchange_.TakeBody();
  if (rewritten.empty()) body_ = std::move(original);
  co_return true;
}

// A key for some models alone. The servers may check no keys, so whatever in the body could name another model is
// refused. False: the request has been answered.
asio::awaitable<bool> Forwarding::CheckCaller(const ScannedRequest& scanned, bool read) {
  const ApiKey& caller = CallerOf(exchange_.request());
  if (caller.AllowsAll()) co_return true;
  if (!read || scanned.names.empty() || !scanned.names_known) {
    co_await Fail(400,
                  "This API key is for some models alone: expected a JSON object with the name of one in `model`.");
    co_return false;
  }
  for (const std::string& scanned_name : scanned.names) {
    const std::string name(SplitPinnedName(scanned_name).name);
    const std::string adapter = proxy_.pool_.AdapterOf(name);
    if (caller.Allows(adapter.empty() ? name : adapter)) continue;  // what is behind the base model's name decides
    co_await Fail(404, fmt::format("The model `{}` does not exist.", name));
    co_return false;
  }
  co_return true;
}

// The limits of the caller's key, which only the router may know. False: the request has been answered.
asio::awaitable<bool> Forwarding::Admit(const ScannedRequest& scanned) {
  const ApiKey& caller = CallerOf(exchange_.request());
  if (caller.nameless() || !IsLimited(path())) co_return true;
  AdmissionRequest wanted{.key = caller.name, .key_limits = caller.limits};
  wanted.sequences = std::clamp<std::int64_t>(scanned.choices, 1, kMostSequences) *
                     std::clamp<std::int64_t>(scanned.prompts, 1, kMostSequences);
  auto ticket = proxy_.admission_.Admit(wanted, Now());
  if (!ticket.ok()) {
    co_await Fail(ticket.error());
    co_return false;
  }
  ticket_ = *std::move(ticket);
  waiting_ = wanted.sequences;
  co_return true;
}

HttpCallRequest Forwarding::MakeCall() {
  const HttpRequest& request = exchange_.request();
  HttpCallRequest call{.method = request.method, .path = request.target, .body = std::move(body_)};
  call.headers = RequestHeaders(exchange_, proxy_.pool_.access().fleet_key, proxy_.pool_.clock().UnixSeconds());
  call.as_given = true;
  if (!route_.digest.empty()) call.headers.emplace_back("x-loramux-require-digest", route_.digest);
  call.idle_timeout = proxy_.answer_timeout_;
  call.repeatable = false;
  return call;
}

asio::awaitable<Forwarding::Next> Forwarding::Try(Dispatcher::Attempt attempt) {
  HttpCall call(server_->client, MakeCall());
  call_ = &call;
  const auto forget = [this](HttpCall*) { call_ = nullptr; };
  const std::unique_ptr<HttpCall, decltype(forget)> calling(&call, forget);
  if (gone_ || cut_off_) call.Cancel();
  sent_at_ = Now();
  const ExchangeEnd end = co_await call.Begin();
  if (!end.ok()) co_return co_await NotBegun(call, end);
  head_at_ = Now();
  PassedHead head = ReadPassedHead(call.headers());
  const bool well = !head.not_started && EndWithStatus(call.status()) == AttemptEnd::kAnswered;
  proxy_.pool_.dispatcher().Answered(attempt, head_at_, well);
  if (head.not_started) co_return co_await Refused(call, std::move(head));
  call.TakeBody();
  exchange_.ReleaseBody();
  exchange_.AddHeader("x-loramux-server", server_->address.name);
  exchange_.AddHeader(kSessionTokenHeader, SessionToken(server_->address.name));
  if (IsEventStream(head.content_type)) {
    std::string begun;
    co_await PassStream(call, std::move(head), std::move(begun));
  } else {
    co_await PassWhole(call, std::move(head));
  }
  co_return Next::kEnd;
}

AttemptEnd Forwarding::EndOf(const ExchangeEnd& end) const {
  return end.kind == ExchangeEnd::Kind::kCancelled ? AttemptEnd::kCancelled : AttemptEnd::kBroken;
}

std::string Forwarding::Broken(const ExchangeEnd& end) const {
  if (cut_off_) return "The router is shutting down.";
  return fmt::format("The server {} broke off: {}. It may have begun, so no other server was asked.",
                     server_->address.name, end.detail);
}

// There is no head of a response.
asio::awaitable<Forwarding::Next> Forwarding::NotBegun(HttpCall& call, const ExchangeEnd& end) {
  body_ = call.TakeBody();
  if (end.kind != ExchangeEnd::Kind::kCancelled && !call.sent()) {
    Count(AttemptEnd::kNoConnection);
    last_fault_ = end.detail;
    co_return Next::kRetry;
  }
  Count(EndOf(end));
  exchange_.AddHeader("x-loramux-server", server_->address.name);
  if (!gone_) co_await Fail(cut_off_ ? 503 : end.kind == ExchangeEnd::Kind::kTimeout ? 504 : 502, Broken(end));
  co_return Next::kEnd;
}

// The server began nothing. Its answer is kept, in case that no other server takes the request.
asio::awaitable<Forwarding::Next> Forwarding::Refused(HttpCall& call, PassedHead head) {
  HttpReply reply{.status = call.status(), .body = {}, .content_type = head.content_type, .headers = head.headers};
  std::string piece;
  ExchangeEnd end;
  do {
    end = co_await call.ReadPiece(piece);
    reply.body += piece;
  } while (end.ok() && !piece.empty() && reply.body.size() <= kMostRefusal);
  body_ = call.TakeBody();
  // To lack the content is no fault of the server: otherwise names that no server has would eject all of them.
  const AttemptEnd refused = head.other_content ? AttemptEnd::kAnswered : AttemptEnd::kNotStarted;
  Count(gone_ ? AttemptEnd::kCancelled : refused);
  other_content_ = head.other_content;
  last_fault_ = fmt::format("it answered {} and began nothing", reply.status);
  if (end.ok() && piece.empty()) refusal_ = std::move(reply);
  co_return Next::kRetry;
}

// Where the first byte of the answer goes to the client.
void Forwarding::SentFirst() { proxy_.metrics_.ObserveAdded(sent_at_ - arrived_ + Now() - head_at_); }

// The answer has come so far that the request has cost so many tokens.
void Forwarding::Charge(std::int64_t tokens) {
  ticket_.Progress(std::exchange(waiting_, 0), tokens - charged_);
  charged_ = tokens;
}

// An answer that is no stream of events: it is sent once it is whole, so that a server that dies in the middle is an
// error and no half answer. A long one is passed on piece by piece.
asio::awaitable<void> Forwarding::PassWhole(HttpCall& call, PassedHead head) {
  std::string body, piece;
  ExchangeEnd end;
  do {
    end = co_await call.ReadPiece(piece);
    if (body.empty()) {
      body.swap(piece);
      if (body.empty()) break;
    } else {
      if (piece.empty()) break;
      body += piece;
    }
  } while (end.ok() && body.size() <= kMostWhole);
  if (end.ok() && body.size() > kMostWhole) co_return co_await PassStream(call, std::move(head), std::move(body));
  if (!end.ok()) {
    Count(EndOf(end));
    if (!gone_) co_await Fail(cut_off_ ? 503 : 502, Broken(end));
    co_return;
  }
  if (call.status() < 300) {
    const AnswerUsage usage = UsageIn(body);
    const auto tokens = static_cast<std::int64_t>(static_cast<double>(body.size()) / kBytesPerAnswerToken);
    proxy_.lengths_.Learn(route_.adapter, usage.known ? usage.output : tokens);
    Charge(usage.known ? usage.prompt + usage.output : route_.prompt_tokens + tokens);
  }
  SentFirst();
  Count(EndWithStatus(call.status()));
  HttpReply reply{.status = call.status(), .body = std::move(body), .content_type = std::move(head.content_type)};
  reply.headers = std::move(head.headers);
  co_await exchange_.Send(std::move(reply));
}

// A piece is read after the one before was written: what the client does not read stays in the sockets.
asio::awaitable<void> Forwarding::PassStream(HttpCall& call, PassedHead head, std::string begun) {
  const RouterMetrics::Gauge streaming(proxy_.metrics_.streams);
  const bool is_events = IsEventStream(head.content_type);
  WholeEvents events;
  HttpStreamHead start{.status = call.status(), .headers = std::move(head.headers)};
  start.headers.emplace_back("Content-Type", std::move(head.content_type));
  if (!is_events) start.content_length = head.content_length;
  SentFirst();
  bool alive = co_await exchange_.StartStream(std::move(start));
  if (alive && !begun.empty()) alive = co_await exchange_.Write(begun);
  begun = std::string();
  std::string piece;
  AnswerUsage usage;
  while (alive) {
    const ExchangeEnd end = co_await call.ReadPiece(piece);
    if (!end.ok()) co_return co_await EndBroken(end, is_events ? &events : nullptr);
    if (piece.empty()) break;
    if (is_events) piece = events.Take(std::move(piece));
    if (piece.empty()) continue;
    if (is_events && call.status() < 300) {
      const AnswerUsage said = UsageIn(piece);
      if (said.known) usage = said;
      Charge(route_.prompt_tokens + events.events());
    }
    alive = co_await exchange_.Write(piece);
  }
  if (alive && !events.held().empty()) alive = co_await exchange_.Write(events.held());
  if (usage.known) Charge(usage.prompt + usage.output);
  if (!alive) co_return Count(AttemptEnd::kCancelled);
  proxy_.lengths_.Learn(route_.adapter, events.events());
  Count(EndWithStatus(call.status()));
  co_await exchange_.EndStream();
}

// The server, or the wait for it, ended in the middle of a stream. `events` null: the stream has no place for an error.
asio::awaitable<void> Forwarding::EndBroken(const ExchangeEnd& end, WholeEvents* events) {
  Count(EndOf(end));
  if (gone_) co_return;
  const std::string message = cut_off_ ? "The router is shutting down."
                                       : fmt::format("The server {} broke off: {}.", server_->address.name, end.detail);
  spdlog::warn("{} of {}: {}", exchange_.trace().request_id, path(), message);
  if (events == nullptr) co_return exchange_.Abort();
  std::string last = events->between_events() ? "" : "\n\n";
  last += StreamEnd(path(), cut_off_ ? 503 : 502, message);
  const bool written = co_await exchange_.Write(last);
  if (written) co_await exchange_.EndStream();
}

asio::awaitable<void> Forwarding::Fail(int status, std::string message) {
  co_await exchange_.Send(InForm(path(), ErrorReply(status, message)));
}

asio::awaitable<void> Forwarding::Fail(const Error& error) {
  co_await exchange_.Send(InForm(path(), ErrorReply(error)));
}

// No server takes the request, and none began.
asio::awaitable<void> Forwarding::GiveUp(std::string why) {
  proxy_.metrics_.CountRefused();
  if (refusal_) {
    exchange_.AddHeader("x-loramux-server", server_->address.name);
    co_await exchange_.Send(std::move(*refusal_));
    co_return;
  }
  if (!last_fault_.empty()) why = fmt::format("{}; {}: {}", why, tried_.back(), last_fault_);
  exchange_.AddHeader(kNotStartedHeader, "1");
  exchange_.AddHeader(kDroppedReasonHeader, cut_off_ ? kDroppedShuttingDown : kDroppedNoEndpoints);
  co_await Fail(503, "No server takes the request: " + why);
}

}  // namespace loramux
