// Server-sent events out of a byte stream that may be split anywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace loramux::load {

// Lines end with LF, CRLF or CR; several data lines of one event are joined by LF; other fields and comments are
// ignored (WHATWG HTML, section 9.2). Not thread-safe.
class SseParser {
 public:
  // An event longer than this is not kept: Feed returns false from then on.
  static constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20;

  // Calls on_event with the data of each event that these bytes complete, in order. False: too long an event.
  bool Feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event);
  // Whether bytes of an event that has not ended are held: the stream broke off inside it.
  bool mid_event() const { return has_data_ || !line_.empty(); }

 private:
  void EndLine(const std::function<void(std::string_view)>& on_event);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false;
};

}  // namespace loramux::load
