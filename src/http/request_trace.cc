#include "http/request_trace.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr std::size_t kMaxRequestId = 128;
constexpr std::size_t kMaxTraceState = 512, kMaxTraceStateMembers = 32;  // W3C Trace Context, 3.3.1

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

bool IsSaneId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestId && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' ||
           c == '-';
  });
}

// The ends of the fields of: version "-" trace-id "-" parent-id "-" flags
constexpr std::size_t kVersionEnd = 2, kTraceIdEnd = 35, kParentIdEnd = 52, kFlagsEnd = 55;

bool IsTraceParent(std::string_view text) {
  if (text.size() < kFlagsEnd) return false;
  const std::string_view version = text.substr(0, kVersionEnd);
  if (!IsHex(version) || version == "ff") return false;
  if (text.size() > kFlagsEnd && (version == "00" || text[kFlagsEnd] != '-')) return false;
  if (text[kVersionEnd] != '-' || text[kTraceIdEnd] != '-' || text[kParentIdEnd] != '-') return false;
  const std::string_view trace_id = text.substr(3, 32), parent_id = text.substr(36, 16);
  return IsHex(trace_id) && !IsZero(trace_id) && IsHex(parent_id) && !IsZero(parent_id) && IsHex(text.substr(53, 2));
}

bool IsMember(std::string_view member) {
  const auto equals = member.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == member.size()) return false;
  const bool key = std::all_of(member.begin(), member.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  });
  const std::string_view value = member.substr(equals + 1);
  return key && std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '='; });
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsTraceState(std::string_view text) {
  if (text.empty() || text.size() > kMaxTraceState) return false;
  std::size_t members = 0;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view member = Trim(text.substr(0, comma));
    if (!member.empty() && (!IsMember(member) || ++members > kMaxTraceStateMembers)) return false;
    if (comma == std::string_view::npos) return members > 0;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> RequestTrace::Headers() const {
  std::vector<std::pair<std::string, std::string>> headers = {{"X-Request-Id", request_id}};
  if (trace_id.empty()) return headers;
  headers.emplace_back("traceparent", fmt::format("00-{}-{}-{}", trace_id, span_id, sampled ? "01" : "00"));
  if (!tracestate.empty()) headers.emplace_back("tracestate", tracestate);
  return headers;
}

RequestTrace NewTrace(const RandomBits& random_bits) {
  RequestTrace trace;
  const std::uint64_t high = random_bits();
  trace.request_id = fmt::format("{:016x}{:016x}", high, random_bits());
  return trace;
}

void AdoptTrace(RequestTrace& trace, std::string_view request_id, std::string_view traceparent,
                std::string_view tracestate, const RandomBits& random_bits) {
  if (IsSaneId(request_id)) trace.request_id = request_id;
  if (!IsTraceParent(traceparent)) return;
  trace.trace_id = traceparent.substr(3, 32);
  trace.span_id = fmt::format("{:016x}", std::max<std::uint64_t>(1, random_bits()));  // zero means no span
  const char last_flag = traceparent[kFlagsEnd - 1];
  trace.sampled = ((last_flag <= '9' ? last_flag - '0' : last_flag - 'a' + 10) & 1) != 0;
  if (IsTraceState(tracestate)) trace.tracestate = tracestate;
}

}  // namespace loramux
