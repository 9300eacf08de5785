// Converts the bytes of one answer, as they arrive, into the times, counts and failure of its record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "http/exchange_end.h"
#include "loadgen/openai_wire.h"
#include "loadgen/record.h"
#include "loadgen/sse_parser.h"

namespace loramux::load {

// Receives an HTTP response as it arrives.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // Called once, before OnBody.
  virtual void OnStatus(int status) = 0;
  // Called for each piece of the body, which arrived at `now`. False: the rest is not wanted, and the exchange ends.
  virtual bool OnBody(std::string_view bytes, TimeNs now) = 0;
};

// Stores the body, up to kMaxBytes.
class BodyCollector final : public BodySink {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  void OnStatus(int status) override { status_ = status; }
  bool OnBody(std::string_view bytes, TimeNs) override {
    body_.append(bytes.substr(0, kMaxBytes - body_.size()));
    return body_.size() < kMaxBytes;
  }
  int status() const { return status_; }
  const std::string& body() const { return body_; }

 private:
  int status_ = 0;
  std::string body_;
};

// Reads the answer to one ApiRequest. Times are relative to the start of the run. Not thread-safe. Whatever a server
// sends, the reader keeps at most kMaxStreamBytes and shows only printable text.
class ReplyReader final : public BodySink {
 public:
  // The maximum size of an answer, streamed or whole.
  static constexpr std::size_t kMaxStreamBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

  // Fills in `record` and adds each piece of text to `live_tokens`. Both must outlive the reader.
  ReplyReader(ApiEndpoint endpoint, bool stream, RequestRecord& record, std::int64_t& live_tokens)
      : endpoint_(endpoint), stream_(stream), record_(record), live_tokens_(live_tokens) {}
  void OnStatus(int status) override { record_.http_status = status; }
  bool OnBody(std::string_view bytes, TimeNs now) override;
  // Decides whether the request failed. With `expected`, the text must be equal to it. REQUIRES: called once, last.
  void Finish(const ExchangeEnd& end, TimeNs now, const std::optional<std::string>& expected);
  // The text received so far.
  const std::string& text() const { return text_; }

 private:
  void OnEvent(std::string_view data, TimeNs now);
  void OnPiece(const ApiPiece& piece, std::string_view json);
  void OnText(const std::string& text, TimeNs now);
  void Fail(Failure failure, std::string_view detail);
  void JudgeEnd(const ExchangeEnd& end);
  void CountTokens();

  ApiEndpoint endpoint_;
  bool stream_;
  RequestRecord& record_;
  std::int64_t& live_tokens_;
  SseParser events_;
  std::string body_, text_;  // body_: for answers that are not streams
  std::int64_t pieces_ = 0;
  std::optional<ApiUsage> usage_;
  std::size_t stream_bytes_ = 0;
  bool done_ = false;
};

}  // namespace loramux::load
