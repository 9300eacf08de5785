#include "tools/top/frame.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/bytes.h"
#include "report/shown_text.h"

namespace loramux {
namespace {

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kReset = "\x1b[0m";

std::int64_t Bytes(double bytes) { return std::llround(std::clamp(bytes, 0.0, 1e18)); }

// The text's first characters, as many as fit; a character of several bytes stays whole.
std::string Cut(std::string_view text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && seen++ == columns) return std::string(text.substr(0, i));
  }
  return std::string(text);
}

std::size_t Characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Padded(std::string text, std::size_t columns) {
  text = Cut(text, columns);
  text.append(columns - Characters(text), ' ');
  return text;
}

std::string Duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e12));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min", whole / 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string Milliseconds(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.{}f} ms", *seconds * 1e3, *seconds < 0.01 ? 2 : 0) : "-";
}

// The pool as a bar: # keys and values, = history, @ adapters, . free.
std::string Bar(const TierView& tier, std::size_t width) {
  std::string bar;
  double sum = 0;
  for (const auto& [bytes, sign] :
       {std::pair{tier.kv, '#'}, {tier.history, '='}, {tier.adapters, '@'}, {tier.free, '.'}}) {
    sum += bytes;
    const auto end = static_cast<std::size_t>(std::llround(sum / tier.total() * static_cast<double>(width)));
    bar.append(std::max(end, bar.size()) - bar.size(), sign);
  }
  bar.resize(width, '.');
  return bar;
}

// Collects the lines, each cut to the width.
class Lines {
 public:
  explicit Lines(const FrameOptions& options) : options_(options) {}
  void Add(const std::string& text, const char* style = "") {
    if (options_.rows > 0 && count_ >= options_.rows) return;
    ++count_;
    const std::string shown = Cut(text, static_cast<std::size_t>(std::max(options_.columns, 1)));
    const bool styled = options_.color && *style != '\0';
    text_ += (styled ? style : "") + shown + (styled ? kReset : "") + "\n";
  }
  int left() const { return options_.rows > 0 ? options_.rows - count_ : 1 << 20; }
  std::string Take() { return std::move(text_); }

 private:
  const FrameOptions& options_;
  std::string text_;
  int count_ = 0;
};

void AddSummary(Lines& lines, const ServerFigures& view, const FrameOptions& options) {
  lines.Add(fmt::format("loramux top  {}  {}  up {}  {} resident  {:.2f} processors busy", ShownText(options.address),
                        ShownText(view.model), Duration(view.uptime_s), FormatBytes(Bytes(view.resident_bytes)),
                        view.processors),
            kBold);
  std::string lanes;
  for (const auto& [lane, waiting] : view.lanes) lanes += fmt::format("  lane {}: {:.0f}", ShownText(lane), waiting);
  lines.Add(fmt::format("sequences  {:.0f} running, {:.0f} waiting{}   {:.1f} ended/s", view.running, view.waiting,
                        lanes, view.requests_per_s));
  lines.Add(fmt::format("tokens     {:.1f}/s generated, {:.1f}/s of prompts", view.generated_per_s, view.prompt_per_s));
  lines.Add(fmt::format("TTFT       half {}, 95 % {}   TPOT  half {}, 95 % {}", Milliseconds(view.ttft.half),
                        Milliseconds(view.ttft.most), Milliseconds(view.tpot.half), Milliseconds(view.tpot.most)));
  const auto width = static_cast<std::size_t>(std::clamp(options.columns - 75, 10, 60));
  for (const TierView& tier : view.tiers) {
    lines.Add(fmt::format("{:<10} [{}] # kv {}  = history {}  @ adapters {}  . free {}", tier.name, Bar(tier, width),
                          FormatBytes(Bytes(tier.kv)), FormatBytes(Bytes(tier.history)),
                          FormatBytes(Bytes(tier.adapters)), FormatBytes(Bytes(tier.free))));
  }
  lines.Add(fmt::format("adapters   {:.0f} opened, {:.0f} on the device, {:.0f} loading, {:.1f} loads/s",
                        view.adapters_registered, view.adapters_on_device, view.loads_in_flight, view.loads_per_s));
}

std::string AdapterLine(const AdapterView& adapter, std::size_t name_columns) {
  return fmt::format("{} {:<7} {:>5} {:>5} {:>5} {:>9.1f} {:>9.0f} {:>6.0f}{}",
                     Padded(ShownText(adapter.name), name_columns), Cut(ShownText(adapter.place), 7),
                     adapter.rank > 0 ? std::to_string(adapter.rank) : "-", adapter.running, adapter.waiting,
                     adapter.tokens_per_s, adapter.requests, adapter.loads, adapter.pinned ? "  pinned" : "");
}

}  // namespace

std::string DrawFrame(ServerFigures view, const FrameOptions& options) {
  Lines lines(options);
  AddSummary(lines, view, options);
  lines.Add("");
  std::size_t name_columns = 12;
  const std::size_t widest = static_cast<std::size_t>(std::max(options.columns - 62, 12));
  for (const AdapterView& adapter : view.adapters) {
    name_columns = std::max(name_columns, std::min(Characters(ShownText(adapter.name)), widest));
  }
  lines.Add(fmt::format("{} {:<7} {:>5} {:>5} {:>5} {:>9} {:>9} {:>6}", Padded("ADAPTER", name_columns), "PLACE",
                        "RANK", "RUN", "WAIT", "TOKENS/S", "REQUESTS", "LOADS"),
            "\x1b[7m");
  SortAdapters(view.adapters, options.order);
  const int last_lines = options.keys || !options.problem.empty() ? 1 : 0;
  for (const AdapterView& adapter : view.adapters) {
    if (lines.left() <= last_lines) break;
    lines.Add(AdapterLine(adapter, name_columns), adapter.running > 0 ? "\x1b[32m" : "");
  }
  if (!options.problem.empty()) {
    lines.Add(ShownText(options.problem), "\x1b[31m");
  } else if (options.keys) {
    lines.Add("q quit   sort by: t tokens/s  n name  r running  w waiting  u requests");
  }
  return lines.Take();
}

}  // namespace loramux
