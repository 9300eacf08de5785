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

Result<std::string> IncrementalDetokenizer::Held() const {
  Buffer text, error;
  const auto status = loramux_decode_stream_held(impl_->stream.get(), text.out(), error.out());
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

constexpr std::int32_t kFirstSpecial = 256;  // the symbol of the token 0; symbols below are bytes

std::int32_t SymbolOf(char c) { return static_cast<unsigned char>(c); }

std::vector<std::int32_t> SymbolsOf(std::string_view text) {
  std::vector<std::int32_t> symbols(text.size());
  std::ranges::transform(text, symbols.begin(), SymbolOf);
  return symbols;
}

// The special tokens in `text`, which are none of `shown`, as one symbol each. Empty: there are none.
std::vector<std::int32_t> SpecialSymbolsOf(const std::string& text, const Tokenizer& tokenizer,
                                           std::span<const TokenId> shown) {
  const auto tokens = tokenizer.Encode(text, /*add_special_tokens=*/false);
  if (!tokens.ok()) return {};
  std::vector<std::int32_t> symbols;
  bool found = false;
  std::size_t from = 0;
  const auto add = [&](std::size_t size) {
    for (const char c : std::string_view(text).substr(from, size)) symbols.push_back(SymbolOf(c));
  };
  for (const TokenId id : *tokens) {
    if (!tokenizer.IsSpecial(id) || std::ranges::find(shown, id) != shown.end()) continue;
    const std::string name = tokenizer.IdToToken(id);
    const std::size_t at = text.find(name, from);
    if (name.empty() || at == std::string::npos) continue;
    add(at - from);
    symbols.push_back(kFirstSpecial + id);
    from = at + name.size();
    found = true;
  }
  if (!found) return {};
  add(std::string::npos);
  return symbols;
}

std::vector<std::size_t> Borders(const std::vector<std::int32_t>& symbols) {
  std::vector<std::size_t> border(symbols.size() + 1, 0);
  std::size_t length = 0;
  for (std::size_t i = 1; i < symbols.size(); ++i) {
    while (length > 0 && symbols[i] != symbols[length]) length = border[length];
    if (symbols[i] == symbols[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  Prepare(std::move(stops), nullptr, {});
}

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops, bool include_stop, const Tokenizer& tokenizer,
                                     std::span<const TokenId> shown)
    : include_stop_(include_stop) {
  Prepare(std::move(stops), &tokenizer, shown);
}

void StopStringMatcher::Prepare(std::vector<std::string> stops, const Tokenizer* tokenizer,
                                std::span<const TokenId> shown) {
  std::vector<Stop> prepared;
  const auto add = [&](const std::string& text, std::vector<std::int32_t> symbols) {
    Stop stop{.text = text, .symbols = std::move(symbols), .border = {}, .bytes = {0}};
    stop.border = Borders(stop.symbols);
    for (const std::int32_t symbol : stop.symbols) {
      stop.bytes.push_back(stop.bytes.back() + (symbol < kFirstSpecial ? 1 : 0));
    }
    stop.has_special = stop.bytes.back() < stop.symbols.size();
    prepared.push_back(std::move(stop));
  };
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    add(stop, SymbolsOf(stop));
    auto special = tokenizer == nullptr ? std::vector<std::int32_t>() : SpecialSymbolsOf(stop, *tokenizer, shown);
    if (!special.empty()) add(stop, std::move(special));
  }
  matched_.resize(prepared.size());
  stops_ = std::make_shared<const std::vector<Stop>>(std::move(prepared));
}

// Returns the longest stop string that is complete with the symbol, or null. Plain ones know nothing of special tokens.
const StopStringMatcher::Stop* StopStringMatcher::Step(std::int32_t symbol) {
  const Stop* complete = nullptr;
  for (std::size_t s = 0; s < matched_.size(); ++s) {
    const Stop& stop = (*stops_)[s];
    if (symbol >= kFirstSpecial && !stop.has_special) continue;
    std::size_t& matched = matched_[s];
    while (matched > 0 && symbol != stop.symbols[matched]) matched = stop.border[matched];
    if (symbol == stop.symbols[matched]) ++matched;
    const bool whole = matched == stop.symbols.size();
    if (whole && (complete == nullptr || stop.text.size() > complete->text.size())) complete = &stop;
  }
  return complete;
}

// The output that ends with `stop`, whose bytes are the last ones held.
StopStringMatcher::Output StopStringMatcher::Complete(const Stop& stop) {
  Output output{std::exchange(held_, {}), true, stop.text};
  output.text.resize(output.text.size() - stop.bytes.back());
  if (include_stop_) output.text += stop.text;
  return output;
}

// Returns the held text that is part of no stop string.
std::string StopStringMatcher::Release() {
  std::size_t keep = 0;
  for (std::size_t s = 0; s < matched_.size(); ++s) keep = std::max(keep, (*stops_)[s].bytes[matched_[s]]);
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

StopStringMatcher::Output StopStringMatcher::Push(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (const Stop* complete = Step(SymbolOf(text[i]))) {
      held_.append(text.substr(0, i + 1));
      return Complete(*complete);
    }
  }
  held_.append(text);
  return {Release(), false, {}};
}

StopStringMatcher::Output StopStringMatcher::PushSpecial(TokenId id, std::string_view before) {
  if (!before.empty() && HasSpecial(id)) {
    StopStringMatcher with_text = *this;
    Output output = with_text.Push(before);
    if (!output.stopped) {
      Output last = with_text.PushSpecial(id, {});
      if (last.stopped) return {std::move(output.text) + last.text, true, std::move(last.matched)};
    }
  }
  if (const Stop* complete = Step(kFirstSpecial + id)) return Complete(*complete);
  return {Release(), false, {}};
}

bool StopStringMatcher::HasSpecial(TokenId id) const {
  return std::ranges::any_of(*stops_, [id](const Stop& stop) {
    return stop.has_special && std::ranges::find(stop.symbols, kFirstSpecial + id) != stop.symbols.end();
  });
}

std::string StopStringMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace loramux
