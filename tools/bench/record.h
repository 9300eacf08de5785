// What became of one request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace loramux::load {

enum class Failure {
  kNone,
  kConnect,      // no connection
  kTimeout,      // not answered to the end within --timeout
  kHttpStatus,   // an answer with a status other than 200
  kStreamError,  // an error event in mid-stream, or an error object with status 200
  kCutOff,       // the connection or the stream ended before the answer did
  kMalformed,    // not the JSON that an OpenAI-compatible server sends
  kWrongAnswer,  // complete, but not the expected text
  kCancelled,    // still running when the user stopped the run
};

// Stable name for reports, e.g. "cut_off".
const char* FailureName(Failure failure);

// Times are after the start of the run; -1: did not happen.
struct RequestRecord {
  std::int64_t session = 0;
  int turn = 0;
  int model = 0;            // index into the run's models
  TimeNs scheduled = -1;    // when an open loop meant to send it; -1 in a closed loop and for later turns
  TimeNs sent = 0;          // before connecting
  TimeNs first_token = -1;  // the first piece of text; -1 unless streaming
  TimeNs last_token = -1;
  TimeNs end = 0;
  std::int64_t requested_output_tokens = 0;
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  bool has_usage = false;      // otherwise output_tokens counts chunks of text
  std::vector<float> gaps_ms;  // between consecutive pieces of text
  Failure failure = Failure::kNone;
  int http_status = 0;   // 0: no response
  bool checked = false;  // the answer was compared with the expected one
  std::string detail;    // what the failure was, for people
  std::string finish_reason;

  bool ok() const { return failure == Failure::kNone; }
  double ttft_ms() const { return static_cast<double>(first_token - sent) / 1e6; }
  double e2e_ms() const { return static_cast<double>(end - sent) / 1e6; }
  bool has_ttft() const { return first_token >= 0; }
  bool has_tpot() const { return first_token >= 0 && output_tokens > 1; }
  // REQUIRES: has_tpot().
  double tpot_ms() const {
    return static_cast<double>(last_token - first_token) / 1e6 / static_cast<double>(output_tokens - 1);
  }
  // "http_429" and the like for kHttpStatus, else FailureName.
  std::string failure_kind() const;
};

struct RunResult {
  std::vector<RequestRecord> records;  // in the order of their ends
  TimeNs duration = 0;                 // from the start to the last end
  std::int64_t started_unix_s = 0;
  bool interrupted = false;
};

}  // namespace loramux::load
