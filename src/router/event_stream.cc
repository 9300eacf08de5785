#include "router/event_stream.h"

#include <algorithm>

#include <boost/beast/core/string.hpp>

#include "http/error_body.h"
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

std::string ErrorBodyOf(std::string_view path, int status, std::string_view message) {
  if (!IsMessages(path)) return ErrorBody(status, message, "");
  const char* type = status == 503 ? "overloaded_error" : status >= 500 ? "api_error" : "invalid_request_error";
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
