#include "base/log.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace loramux {
namespace {

constexpr std::size_t kMaxMessageBytes = 8192;
constexpr std::size_t kMaxFieldBytes = 1024;

// Passes the fields of LogWith's record to the formatter; spdlog formats on the thread that logs.
thread_local std::span<const LogField> current_fields;

std::string_view Cut(std::string_view text, std::size_t max) { return text.substr(0, max); }

// Escapes control characters (above all terminal escapes and line ends) as \xNN.
std::string Visible(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

// A JSON string: quoted, escaped, and valid UTF-8.
std::string Quoted(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whether a value needs no quotes in `name=value`.
bool IsPlain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

std::string ToText(const LogField& field) {
  if (const auto* integer = std::get_if<std::int64_t>(&field.value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&field.value)) return fmt::format("{:.1f}", *number);
  const std::string_view text = Cut(std::get<std::string_view>(field.value), kMaxFieldBytes);
  return IsPlain(text) ? std::string(text) : Visible(Quoted(text));
}

std::string ToJson(const LogField& field) {
  if (const auto* integer = std::get_if<std::int64_t>(&field.value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&field.value)) return fmt::format("{:.3f}", *number);
  return Quoted(Cut(std::get<std::string_view>(field.value), kMaxFieldBytes));
}

std::string_view View(const spdlog::string_view_t& text) { return {text.data(), text.size()}; }

class TextFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& record, spdlog::memory_buf_t& out) override {
    std::string text = Visible(Cut(View(record.payload), kMaxMessageBytes));
    for (const LogField& field : current_fields)
      fmt::format_to(std::back_inserter(text), " {}={}", field.name, ToText(field));
    spdlog::details::log_msg safe = record;
    safe.payload = text;
    pattern_.format(safe, out);
    record.color_range_start = safe.color_range_start;
    record.color_range_end = safe.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<TextFormatter>(); }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v"};
};

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& record, spdlog::memory_buf_t& out) override {
    const auto time = record.time.time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    auto to = fmt::appender(out);
    fmt::format_to(to, "{{\"time\":\"{:%Y-%m-%dT%H:%M:%S}.{:03}Z\",\"level\":\"{}\",\"message\":{}",
                   fmt::gmtime(static_cast<std::time_t>(milliseconds / 1000)), milliseconds % 1000,
                   View(spdlog::level::to_string_view(record.level)),
                   Quoted(Cut(View(record.payload), kMaxMessageBytes)));
    for (const LogField& field : current_fields) fmt::format_to(to, ",{}:{}", Quoted(field.name), ToJson(field));
    fmt::format_to(to, "}}\n");
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

std::unique_ptr<spdlog::formatter> MakeTextFormatter() { return std::make_unique<TextFormatter>(); }
std::unique_ptr<spdlog::formatter> MakeJsonFormatter() { return std::make_unique<JsonFormatter>(); }

Status InitLogging(const std::string& level, const std::string& format) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument("log level: expected trace, debug, info, warn, error or off, found '" + level + "'",
                           "--log-level");
  }
  if (format != "text" && format != "json") {
    return InvalidArgument("log format: expected text or json, found '" + format + "'", "--log-format");
  }
  auto logger = spdlog::stderr_color_mt("loramux");
  logger->set_formatter(format == "json" ? MakeJsonFormatter() : MakeTextFormatter());
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(parsed);
  return Ok{};
}

void LogWith(spdlog::level::level_enum level, std::string_view message, std::span<const LogField> fields) {
  current_fields = fields;
  spdlog::log(level, "{}", message);
  current_fields = {};
}

}  // namespace loramux
