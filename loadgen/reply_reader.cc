#include "loadgen/reply_reader.h"

#include <algorithm>

#include <fmt/format.h>

#include "report/shown_text.h"

namespace loramux::load {
namespace {

constexpr std::size_t kMaxErrorBody = 64 * 1024;

std::string Quoted(std::string_view text) {
  return fmt::format("'{}{}'", text.substr(0, 120), text.size() > 120 ? "..." : "");
}

}  // namespace

bool ReplyReader::OnBody(std::string_view bytes, TimeNs now) {
  if (record_.http_status == 200 && stream_) {
    stream_bytes_ += bytes.size();
    if (stream_bytes_ > kMaxStreamBytes) {
      Fail(Failure::kMalformed, fmt::format("a stream of more than {} MiB", kMaxStreamBytes >> 20));
      return false;
    }
    if (events_.Feed(bytes, [&](std::string_view data) { OnEvent(data, now); })) return true;
    Fail(Failure::kMalformed, fmt::format("an event of more than {} MiB", SseParser::kMaxEventBytes >> 20));
    return false;
  }
  const std::size_t limit = record_.http_status == 200 ? kMaxAnswerBytes : kMaxErrorBody;
  if (body_.size() + bytes.size() <= limit) {
    body_.append(bytes);
    return true;
  }
  body_.append(bytes.substr(0, limit - body_.size()));
  if (record_.http_status == 200) {
    Fail(Failure::kMalformed, fmt::format("an answer of more than {} MiB", kMaxAnswerBytes >> 20));
  }
  return false;
}

void ReplyReader::OnEvent(std::string_view data, TimeNs now) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const ApiPiece piece = ParsePiece(data, endpoint_, /*stream=*/true);
  OnPiece(piece, data);
  // The first token is the first readable text. If an answer has no text at all, its finish reason counts instead.
  if (!piece.text.empty() || (!piece.finish_reason.empty() && pieces_ == 0)) OnText(piece.text, now);
}

void ReplyReader::OnPiece(const ApiPiece& piece, std::string_view json) {
  if (piece.malformed) return Fail(Failure::kMalformed, "expected a chunk with choices, found " + Quoted(json));
  if (piece.error) return Fail(Failure::kStreamError, *piece.error);
  if (piece.usage) usage_ = piece.usage;
  if (!piece.finish_reason.empty()) record_.finish_reason = ShownText(piece.finish_reason);
}

void ReplyReader::OnText(const std::string& text, TimeNs now) {
  if (record_.first_token < 0) {
    record_.first_token = now;
  } else {
    record_.gaps_ms.push_back(static_cast<float>(static_cast<double>(now - record_.last_token) / 1e6));
  }
  record_.last_token = now;
  ++pieces_;
  ++live_tokens_;
  text_ += text;
}

void ReplyReader::Fail(Failure failure, std::string_view detail) {
  if (record_.failure != Failure::kNone) return;  // the first failure is the cause
  record_.failure = failure;
  record_.detail = ShownText(detail);
}

void ReplyReader::JudgeEnd(const ExchangeEnd& end) {
  using Kind = ExchangeEnd::Kind;
  if (end.kind == Kind::kConnect) return Fail(Failure::kConnect, end.detail);
  if (end.kind == Kind::kTimeout) return Fail(Failure::kTimeout, end.detail);
  if (end.kind == Kind::kGarbled) return Fail(Failure::kMalformed, end.detail);
  if (end.kind == Kind::kCancelled) return Fail(Failure::kCancelled, end.detail);
  if (record_.http_status != 200 && record_.http_status != 0) return Fail(Failure::kHttpStatus, ErrorText(body_));
  if (end.kind == Kind::kRefused) return;  // OnBody said why
  if (end.kind == Kind::kBroken) return Fail(Failure::kCutOff, end.detail);
  if (stream_ && !done_ && record_.failure == Failure::kNone) {
    Fail(Failure::kCutOff, fmt::format("the stream ended without [DONE] after {} pieces of text", pieces_));
  }
}

void ReplyReader::CountTokens() {
  record_.has_usage = usage_.has_value();
  record_.output_tokens = pieces_;
  if (!usage_) return;
  record_.input_tokens = usage_->input_tokens;
  record_.output_tokens = usage_->output_tokens;
  record_.cached_tokens = usage_->cached_tokens;
}

void ReplyReader::Finish(const ExchangeEnd& end, TimeNs now, const std::optional<std::string>& expected) {
  record_.end = now;
  JudgeEnd(end);
  if (!stream_ && record_.ok()) {
    const ApiPiece piece = ParsePiece(body_, endpoint_, /*stream=*/false);
    OnPiece(piece, body_);
    text_ = piece.text;
  }
  CountTokens();
  if (!expected) return;
  record_.checked = record_.ok();
  if (text_ != *expected) {
    Fail(Failure::kWrongAnswer, fmt::format("expected {}, found {}", Quoted(*expected), Quoted(text_)));
  }
}

}  // namespace loramux::load
