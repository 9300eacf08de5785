// Sends a workload to a server: in an open loop at the times of a trace, or in a closed loop with so many sessions at
// once. One thread; the trace and the sessions are made before they are due, so answers cannot hold up arrivals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "tools/bench/api_client.h"
#include "tools/bench/openai_wire.h"
#include "tools/bench/record.h"
#include "tools/bench/trace.h"
#include "tools/bench/workload.h"

namespace loramux::load {

struct RunOptions {
  ApiEndpoint endpoint = ApiEndpoint::kChat;
  bool stream = true;
  double temperature = 0;
  int concurrency = 0;        // > 0: closed loop
  std::int64_t sessions = 0;  // of a closed loop; 0: no bound
  double duration_s = 0;      // of a closed loop; 0: no bound
  double think_s = 0;         // between the turns of a session
};

struct RunProgress {
  std::int64_t started = 0, finished = 0, failed = 0, tokens = 0;  // requests; pieces of text
  TimeNs elapsed = 0;
};

class BenchRunner {
 public:
  // `clock` outlives the runner.
  BenchRunner(ApiClientOptions client, RunOptions options, const Clock& clock);

  Status Resolve() { return client_.Resolve(); }
  // The model names of /v1/models. Blocks.
  Result<ModelNames> FetchModels();
  // One request outside the measurement. Blocks.
  RequestRecord Ask(const std::string& model, const std::string& prompt, std::int64_t max_tokens);
  // Measures the server's tokens per word with two requests. Blocks.
  Result<TokenScale> MeasureScale(const std::string& model);

  // The run. The first SIGINT or SIGTERM sends nothing more and waits; the second one cancels what is running.
  // `trace` is null for a closed loop. `progress` is called some times a second. REQUIRES: called once.
  RunResult Run(const Workload& workload, const Trace* trace, const std::function<void(const RunProgress&)>& progress);

 private:
  boost::asio::awaitable<void> OpenLoop(const Workload& workload, const Trace& trace);
  boost::asio::awaitable<void> ClosedLoopWorker(const Workload& workload);
  boost::asio::awaitable<void> RunSession(Session session, TimeNs scheduled);
  // The answer's text goes to `answer`.
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
  bool stopping_ = false;  // nothing more is sent
};

}  // namespace loramux::load
