#include "loadgen/sse_parser.h"

namespace loramux::load {

bool SseParser::Feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const auto end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > kMaxEventBytes) {
      *this = SseParser();
      return false;
    }
    line_.append(part);
    if (end == std::string_view::npos) return true;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    EndLine(on_event);
  }
  return true;
}

void SseParser::EndLine(const std::function<void(std::string_view)>& on_event) {
  if (line_.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  std::string_view line = line_;
  if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace loramux::load
