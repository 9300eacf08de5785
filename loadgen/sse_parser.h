// Parses server-sent events from a byte stream that may be split anywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace loramux::load {

// Lines end with LF, CRLF or CR. Several data lines of one event are joined by LF. Other fields and comments are
// ignored (WHATWG HTML, section 9.2). Not thread-safe.
class SseParser {
 public:
  // The maximum length of an event. At a longer one Feed returns false and drops it.
  static constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20;

  // Calls on_event with the data of each event that `bytes` completes, in order. False: an event was too long.
  bool Feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event);
  // True if part of an event is held: the stream ended within an event.
  bool mid_event() const { return has_data_ || !line_.empty(); }

 private:
  void EndLine(const std::function<void(std::string_view)>& on_event);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false;
};

}  // namespace loramux::load
