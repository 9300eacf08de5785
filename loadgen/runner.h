// Sends a workload to a server: in an open loop at the times of a trace, or in a closed loop with a fixed number of
// concurrent sessions. Uses one thread. Traces and sessions are made before they are due, so answers cannot delay
// arrivals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "loadgen/api_client.h"
#include "loadgen/openai_wire.h"
#include "loadgen/record.h"
#include "loadgen/session_maker.h"
#include "workload/trace.h"

namespace loramux::load {

// Settings of a run.
struct RunOptions {
  ApiEndpoint endpoint = ApiEndpoint::kChat;
  bool stream = true;
  double temperature = 0;
  int concurrency = 0;        // concurrent sessions of a closed loop; 0: open loop
  std::int64_t sessions = 0;  // sessions of a closed loop; 0: no limit
  double duration_s = 0;      // seconds that a closed loop runs; 0: no limit
  double think_s = 0;         // pause between the turns of a session
};

// The progress of a run.
struct RunProgress {
  std::int64_t started = 0, finished = 0, failed = 0, tokens = 0;  // numbers of requests; tokens: pieces of text
  TimeNs elapsed = 0;
};

// Runs one benchmark. Not thread-safe.
class BenchRunner {
 public:
  // `clock` must outlive the runner.
  BenchRunner(HttpClientOptions client, RunOptions options, const Clock& clock);

  // Resolves the server's name. Blocks.
  Status Resolve() { return client_.Resolve(); }
  // Returns the model names from /v1/models. Blocks.
  Result<ModelNames> FetchModels();
  // Sends one request that is not measured. Blocks.
  RequestRecord Ask(const std::string& model, const std::string& prompt, std::int64_t max_tokens);
  // Measures the server's tokens per word with two requests. Blocks.
  Result<TokenScale> MeasureScale(const std::string& model);

  // Runs the benchmark. The first SIGINT or SIGTERM stops sending and waits for running requests; the second cancels
  // them. `trace` is null for a closed loop. `progress` is called several times per second. REQUIRES: called once.
  RunResult Run(const SessionMaker& maker, const Trace* trace, const std::function<void(const RunProgress&)>& progress);

 private:
  boost::asio::awaitable<void> OpenLoop(const SessionMaker& maker, const Trace& trace);
  boost::asio::awaitable<void> ClosedLoopWorker(const SessionMaker& maker);
  boost::asio::awaitable<void> RunSession(Session session, TimeNs scheduled);
  // Puts the text of the answer into `answer`.
  boost::asio::awaitable<Failure> RunTurn(const Session& session, int turn, ApiRequest request, TimeNs scheduled,
                                          std::string& answer);
  boost::asio::awaitable<void> ReportProgress(const std::function<void(const RunProgress&)>& progress);
  boost::asio::awaitable<void> WatchSignals();
  boost::asio::awaitable<void> WaitUntil(TimeNs at);
  void Start(boost::asio::awaitable<void> work);
  void OnWorkDone();

  boost::asio::io_context context_{1};
  const Clock& clock_;
  ApiClient client_;
  RunOptions options_;
  const std::vector<std::string>* models_ = nullptr;
  RunResult result_;
  RunProgress progress_;
  std::int64_t next_session_ = 0;
  int working_ = 0;        // coroutines that the run waits for
  bool stopping_ = false;  // no further requests are sent
};

}  // namespace loramux::load
