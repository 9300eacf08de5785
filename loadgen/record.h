// The outcome of one request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace loramux::load {

// Why a request failed.
enum class Failure {
  kNone,
  kConnect,      // no connection could be made
  kTimeout,      // no complete answer within --timeout
  kHttpStatus,   // a status other than 200
  kStreamError,  // an error event within the stream, or an error object with status 200
  kCutOff,       // the connection or the stream ended before the answer was complete
  kMalformed,    // not JSON of an OpenAI-compatible server
  kWrongAnswer,  // complete, but not the expected text
  kCancelled,    // still running when the user stopped the run
};

// Returns a stable name for reports, e.g. "cut_off".
const char* FailureName(Failure failure);

// The record of one request. Times are relative to the start of the run; -1: did not happen.
struct RequestRecord {
  std::int64_t session = 0;
  int turn = 0;
  int model = 0;            // index into the run's models
  TimeNs scheduled = -1;    // planned time in an open loop; -1 in a closed loop and for the later turns of a session
  TimeNs sent = 0;          // before connecting
  TimeNs first_token = -1;  // first piece of text; -1 unless streaming
  // Last piece of text.
  TimeNs last_token = -1;
  TimeNs end = 0;
  // The max_tokens of the request.
  std::int64_t requested_output_tokens = 0;
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  bool has_usage = false;      // false: output_tokens counts pieces of text
  std::vector<float> gaps_ms;  // between consecutive pieces of text
  Failure failure = Failure::kNone;
  int http_status = 0;   // 0: no response
  bool checked = false;  // the answer was compared with the expected one
  std::string detail;    // description of the failure, for people
  std::string finish_reason;

  bool ok() const { return failure == Failure::kNone; }
  double ttft_ms() const { return static_cast<double>(first_token - sent) / 1e6; }
  double e2e_ms() const { return static_cast<double>(end - sent) / 1e6; }
  bool has_ttft() const { return first_token >= 0; }
  bool has_tpot() const { return first_token >= 0 && output_tokens > 1; }
  // Time per output token after the first. REQUIRES: has_tpot().
  double tpot_ms() const {
    return static_cast<double>(last_token - first_token) / 1e6 / static_cast<double>(output_tokens - 1);
  }
  // Returns "http_429" and the like for kHttpStatus, otherwise FailureName.
  std::string failure_kind() const;
};

// The outcome of a run.
struct RunResult {
  std::vector<RequestRecord> records;  // in the order of their ends
  TimeNs duration = 0;                 // from the start to the end of the last request
  std::int64_t started_unix_s = 0;
  bool interrupted = false;
};

}  // namespace loramux::load
