#include "router/event_stream.h"

#include <algorithm>
#include <charconv>

#include <boost/beast/core/string.hpp>

#include "auth/error_body.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

bool IsMessages(std::string_view path) { return path.starts_with("/v1/messages"); }

}  // namespace

bool IsEventStream(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  return boost::beast::iequals(type, "text/event-stream");
}

std::string WholeEvents::Take(std::string piece) {
  const std::size_t old = held_.size();
  std::string all = std::exchange(held_, {});
  if (all.empty()) {
    all = std::move(piece);
  } else {
    all += piece;
  }
  // An empty line ends an event. It may begin in what was held.
  std::size_t whole = 0;
  std::size_t at = old < 3 ? 0 : old - 3;
  while ((at = all.find('\n', at)) != std::string::npos) {
    std::size_t next = at + 1;
    if (next < all.size() && all[next] == '\r') ++next;
    if (next < all.size() && all[next] == '\n') {
      whole = next + 1;
      ++events_;
    }
    at = next;
  }
  if (whole == 0 && all.size() > kMostHeld) {
    between_events_ = false;
    return all;
  }
  held_ = all.substr(whole);
  all.resize(whole);
  if (whole > 0) between_events_ = true;
  return all;
}

namespace {

// The number of a field in the text of an object; -1: it has none.
std::int64_t NumberOf(std::string_view object, std::string_view field) {
  const std::size_t at = object.find(field);
  if (at == std::string_view::npos) return -1;
  const std::size_t digits = object.find_first_not_of(": ", at + field.size());
  std::int64_t number = -1;
  if (digits != std::string_view::npos) std::from_chars(object.data() + digits, object.data() + object.size(), number);
  return std::max<std::int64_t>(number, -1);
}

}  // namespace

// A quotation mark within a string has a backslash before it, so the pattern is never in an answer's text.
AnswerUsage UsageIn(std::string_view text) {
  constexpr std::string_view kUsage = "\"usage\":";
  constexpr std::size_t kMostUsageBytes = 2048;
  AnswerUsage usage;
  for (std::size_t at = text.rfind(kUsage); at != std::string_view::npos && !usage.known;
       at = at == 0 ? std::string_view::npos : text.rfind(kUsage, at - 1)) {
    const std::string_view object = text.substr(at + kUsage.size(), kMostUsageBytes);
    const std::size_t begin = object.find_first_not_of(' ');
    if (begin == std::string_view::npos || object[begin] != '{') continue;
    const std::int64_t prompt = std::max(NumberOf(object, "\"prompt_tokens\""), NumberOf(object, "\"input_tokens\""));
    const std::int64_t output =
        std::max(NumberOf(object, "\"completion_tokens\""), NumberOf(object, "\"output_tokens\""));
    usage = {.known = prompt >= 0 || output >= 0,
             .prompt = std::max<std::int64_t>(prompt, 0),
             .output = std::max<std::int64_t>(output, 0)};
  }
  return usage;
}

std::string ErrorBodyOf(std::string_view path, int status, std::string_view message) {
  if (!IsMessages(path)) return ErrorBody(status, message, "");
  const char* type = status == 503   ? "overloaded_error"
                     : status >= 500 ? "api_error"
                     : status == 429 ? "rate_limit_error"
                                     : "invalid_request_error";
  return DumpJson({{"type", "error"}, {"error", {{"type", type}, {"message", message}}}});
}

std::string StreamEnd(std::string_view path, int status, std::string_view message) {
  const std::string body = ErrorBodyOf(path, status, message);
  if (IsMessages(path)) return "event: error\ndata: " + body + "\n\n";
  if (path.starts_with("/v1/responses")) {
    const Json event = {{"type", "error"}, {"code", "server_error"}, {"message", message}, {"param", nullptr}};
    return "event: error\ndata: " + DumpJson(event) + "\n\n";
  }
  return "data: " + body + "\n\ndata: [DONE]\n\n";
}

}  // namespace loramux
