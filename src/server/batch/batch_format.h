// The lines of an offline batch, in the format of OpenAI's batches: requests in, responses out.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// How every line of an output begins (BatchLineId).
inline constexpr std::string_view kBatchOutputStart = R"({"id":"batch_req_)";

// The most bytes of one line.
inline constexpr std::size_t kMaxBatchLineBytes = std::size_t{64} << 20;

// Reads the lines of a file, one after the other. Does not own the file.
class LineReader {
 public:
  explicit LineReader(std::FILE* file) : file_(file) {}
  // Reads the next line, without its end. False: the file ends here. A line that the file does not end (`torn`) counts.
  // If the line is longer than kMaxBatchLineBytes, `line` has its beginning, one byte too much.
  bool Next(std::string& line);
  // True if the last line was not ended.
  bool torn() const { return torn_; }
  // The bytes read so far, and whether the file could not be read.
  std::int64_t offset() const { return offset_; }
  bool failed() const { return std::ferror(file_) != 0; }

 private:
  std::FILE* file_;
  bool torn_ = false;
  std::int64_t offset_ = 0;
};

// One request of a batch.
struct BatchItem {
  std::string id;         // id of the output line, from the number of the input line
  std::string custom_id;  // the client's
  std::string url;        // "/v1/chat/completions"
  std::string body;       // JSON
};

// Returns the id of input line `number`, counted from 1.
std::string BatchLineId(std::int64_t number);

// Parses {"custom_id", "method", "url", "body"}. On error, `item` has the id, and the custom_id if that could be read.
Status ParseBatchLine(std::string_view line, std::int64_t number, BatchItem& item);

// Return an output line, with its end. `body` is JSON, the response's. An error is about the line, so no response is.
std::string BatchResponseLine(const BatchItem& item, int status, std::string_view request_id, std::string_view body);
std::string BatchErrorLine(const BatchItem& item, std::string_view code, std::string_view message);

// What an output line says.
struct BatchResult {
  std::string key;      // custom_id, or the id of a line without one
  bool failed = false;  // an error, or a response with a status other than 200
};
// Parses an output line. Error: it is none.
Result<BatchResult> ParseBatchResult(std::string_view line);

}  // namespace loramux
