#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "text/c_interface.h"
#include "text/tokenizer_impl.h"

namespace loramux {

using text_internal::Buffer;
using text_internal::ToError;

struct IncrementalDetokenizer::Impl {
  text_internal::DecodeStreamHandle stream;
};

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : impl_(std::make_unique<Impl>()) {
  impl_->stream.reset(loramux_decode_stream_new(tokenizer.impl_->handle.get(), skip_special_tokens));
  CHECK(impl_->stream != nullptr);
}

IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer::~IncrementalDetokenizer() = default;

Result<std::string> IncrementalDetokenizer::Push(TokenId id) {
  Buffer text, error;
  const auto status = loramux_decode_stream_push(impl_->stream.get(), id, text.out(), error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, "");
  return text.ToString();
}

Result<std::string> IncrementalDetokenizer::Finish() {
  Buffer text, error;
  const auto status = loramux_decode_stream_finish(impl_->stream.get(), text.out(), error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, "");
  return text.ToString();
}

namespace {

std::vector<std::size_t> Borders(const std::string& text) {
  std::vector<std::size_t> border(text.size() + 1, 0);
  std::size_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  std::vector<Stop> prepared;
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    std::vector<std::size_t> border = Borders(stop);
    prepared.push_back({std::move(stop), std::move(border)});
  }
  matched_.resize(prepared.size());
  stops_ = std::make_shared<const std::vector<Stop>>(std::move(prepared));
}

StopStringMatcher::Output StopStringMatcher::Push(std::string_view text) {
  Output output;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Stop* complete = nullptr;
    for (std::size_t s = 0; s < matched_.size(); ++s) {
      const Stop& stop = (*stops_)[s];
      std::size_t& matched = matched_[s];
      while (matched > 0 && text[i] != stop.text[matched]) matched = stop.border[matched];
      if (text[i] == stop.text[matched]) ++matched;
      if (matched == stop.text.size() && (complete == nullptr || matched > complete->text.size())) complete = &stop;
    }
    if (complete != nullptr) {
      output.text = std::exchange(held_, {}).append(text.substr(0, i + 1));
      if (!include_stop_) output.text.resize(output.text.size() - complete->text.size());
      output.stopped = true;
      output.matched = complete->text;
      return output;
    }
  }
  const std::size_t keep = matched_.empty() ? 0 : std::ranges::max(matched_);
  held_.append(text);
  output.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return output;
}

std::string StopStringMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace loramux
