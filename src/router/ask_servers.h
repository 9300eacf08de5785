// Asks several servers the same, at the same time, and waits for all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>

#include "http/client.h"
#include "http/json_reader.h"
#include "router/server_pool.h"

namespace loramux {

// What one server said.
struct ServerAnswer {
  std::string server;  // its name
  int status = 0;      // 0: it gave no whole answer
  std::string content_type, body;
  std::string fault;  // why it gave none
};

// Questions that run. Use it on one thread.
class RunningQuestions {
 public:
  RunningQuestions() = default;
  RunningQuestions(const RunningQuestions&) = delete;
  RunningQuestions& operator=(const RunningQuestions&) = delete;

  // Ends them, and all that begin later: they count as not answered.
  void Cancel();
  bool cancelled() const { return cancelled_; }

  // For AskServers.
  void Add(HttpCall* call);
  void Remove(HttpCall* call) { std::erase(calls_, call); }

 private:
  std::vector<HttpCall*> calls_;
  bool cancelled_ = false;
};

// The answers in the order of `servers`. An answer of more than `max_bytes` counts as none. Call it on the thread of
// the servers' executor. `request` is sent once to each. `running`, if not null, has the questions meanwhile. A server
// that answers no poll or probe for `silence_patience` (nullopt: however long) is given up before the request's time.
boost::asio::awaitable<std::vector<ServerAnswer>> AskServers(
    std::span<const std::shared_ptr<RoutedServer>> servers, HttpCallRequest request, std::size_t max_bytes,
    RunningQuestions* running = nullptr, std::optional<std::chrono::milliseconds> silence_patience = {});

// The document in an answer; discarded if it is none, or nests deeper than kMaxJsonDepth.
Json ParseAnswer(const std::string& body);

}  // namespace loramux
