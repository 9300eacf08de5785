// The way of one request through the router. Internal to the proxy.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/awaitable.hpp>

#include "auth/admission.h"
#include "cluster/route_policy.h"
#include "http/client.h"
#include "http/exchange.h"
#include "router/event_stream.h"
#include "router/forwarded_headers.h"
#include "router/proxy.h"
#include "router/request_scan.h"

namespace loramux {

class Forwarding {
 public:
  // Both must outlive it. `arrived`: when the request had been received.
  Forwarding(Proxy& proxy, HttpExchange& exchange, TimeNs arrived);
  ~Forwarding();
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;

  // Answers the request.
  boost::asio::awaitable<void> Run();

 private:
  // What is done after a try.
  enum class Next { kEnd, kRetry };

  boost::asio::awaitable<bool> Prepare();
  boost::asio::awaitable<bool> CheckCaller(const ScannedRequest& scanned, bool read);
  boost::asio::awaitable<bool> Admit(const ScannedRequest& scanned);
  boost::asio::awaitable<Next> Try(Dispatcher::Attempt attempt);
  boost::asio::awaitable<Next> NotBegun(HttpCall& call, const ExchangeEnd& end);
  boost::asio::awaitable<Next> Refused(HttpCall& call, PassedHead head);
  boost::asio::awaitable<void> PassWhole(HttpCall& call, PassedHead head);
  boost::asio::awaitable<void> PassStream(HttpCall& call, PassedHead head, std::string begun);
  boost::asio::awaitable<void> EndBroken(const ExchangeEnd& end, WholeEvents* events);
  boost::asio::awaitable<void> Fail(int status, std::string message);
  boost::asio::awaitable<void> Fail(const Error& error);
  boost::asio::awaitable<void> GiveUp(std::string why);

  HttpCallRequest MakeCall();
  void Count(AttemptEnd end);
  void SentFirst();
  void Charge(std::int64_t tokens);
  AttemptEnd EndOf(const ExchangeEnd& end) const;
  std::string Broken(const ExchangeEnd& end) const;
  TimeNs Now() const { return proxy_.pool_.clock().Now(); }
  std::string_view path() const { return exchange_.request().path; }

  Proxy& proxy_;
  HttpExchange& exchange_;
  const TimeNs arrived_;
  const RouterMetrics::Gauge in_flight_;
  AdmissionTicket ticket_;    // what the caller's key was admitted with
  std::int64_t waiting_ = 0;  // sequences that have sent nothing yet
  std::int64_t charged_ = 0;  // tokens that the caller was charged so far
  RouteRequest route_;
  std::string body_;
  std::vector<std::string> tried_;
  std::string last_fault_;            // fault of the last try
  bool other_content_ = false;        // the last server only has not got the content
  std::optional<HttpReply> refusal_;  // reply of the last server that began nothing
  std::shared_ptr<RoutedServer> server_;
  Dispatcher::Attempt attempt_ = 0;
  bool open_ = false;  // the attempt has not ended
  HttpCall* call_ = nullptr;
  bool gone_ = false, cut_off_ = false;
  TimeNs sent_at_ = 0, head_at_ = 0;
};

}  // namespace loramux
