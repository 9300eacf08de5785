#include "server/batch/batch_format.h"

#include <limits>

#include <fmt/format.h>

#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxCustomIdBytes = 512;

JsonLimits LineLimits() {
  JsonLimits limits;
  limits.max_depth = JsonLimits().max_depth + 1;  // the body is one deeper than in HTTP
  limits.subject = "The line";
  return limits;
}

Json HeadOf(const BatchItem& item) {
  return {{"id", item.id}, {"custom_id", item.custom_id.empty() ? Json() : Json(item.custom_id)}};
}

}  // namespace

bool LineReader::Next(std::string& line) {
  line.clear();
  torn_ = true;
  bool any = false;
  for (int c = getc_unlocked(file_); c != EOF; c = getc_unlocked(file_)) {
    any = true;
    ++offset_;
    if (c == '\n') {
      torn_ = false;
      break;
    }
    if (line.size() <= kMaxBatchLineBytes) line.push_back(static_cast<char>(c));
  }
  return any;
}

std::string BatchLineId(std::int64_t number) { return fmt::format("batch_req_{:012}", number); }

Status ParseBatchLine(std::string_view line, std::int64_t number, BatchItem& item) {
  item = {};
  item.id = BatchLineId(number);
  if (line.size() > kMaxBatchLineBytes) {
    return InvalidArgument(fmt::format("The line: expected at most {} bytes, found more", kMaxBatchLineBytes));
  }
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(line, LineLimits()));
  FieldReader fields(json, "");
  std::string method = "POST";
  const bool named = fields.String("custom_id", item.custom_id);
  if (!named || item.custom_id.empty() || item.custom_id.size() > kMaxCustomIdBytes) {
    item.custom_id.clear();
    fields.Expect("custom_id", fmt::format("a string of 1 to {} bytes", kMaxCustomIdBytes), fields.Find("custom_id"));
  }
  fields.String("method", method);
  if (method != "POST") fields.Expect("method", "\"POST\"", fields.Find("method"));
  if (!fields.String("url", item.url)) fields.Expect("url", "a path of this server", fields.Find("url"));
  const Json* body = fields.Object("body");
  if (body == nullptr) fields.Expect("body", "an object, the request", nullptr);
  if (!fields.ok()) return fields.error();
  item.body = DumpJson(*body);
  return Ok{};
}

// The body is JSON already, so the line is put together as text.
std::string BatchResponseLine(const BatchItem& item, int status, std::string_view request_id, std::string_view body) {
  std::string line = DumpJson(HeadOf(item));
  line.pop_back();  // the closing brace
  const Json request = request_id.empty() ? Json(item.id) : Json(std::string(request_id));
  return fmt::format("{},\"response\":{{\"status_code\":{},\"request_id\":{},\"body\":{}}},\"error\":null}}\n", line,
                     status, DumpJson(request), body);
}

std::string BatchErrorLine(const BatchItem& item, std::string_view code, std::string_view message) {
  Json line = HeadOf(item);
  line["response"] = nullptr;
  line["error"] = {{"code", code}, {"message", message}};
  return DumpJson(line) + "\n";
}

Result<BatchResult> ParseBatchResult(std::string_view line) {
  JsonLimits limits = LineLimits();
  limits.max_depth += JsonLimits().max_depth;                   // an answer echoes parts of a request
  limits.max_values = std::numeric_limits<std::size_t>::max();  // log-probabilities; the line's length bounds them
  ASSIGN_OR_RETURN(const Json json, ParseRequestBody(line, limits));
  FieldReader fields(json, "");
  BatchResult result;
  if (!fields.String("custom_id", result.key) && !fields.String("id", result.key)) {
    fields.Expect("custom_id", "a string", fields.Find("custom_id"));
  }
  std::int64_t status = 0;
  const Json* response = fields.Object("response");
  if (!fields.ok()) return fields.error();
  if (response != nullptr) FieldReader(*response, "response.").Integer("status_code", 0, 999, status);
  result.failed = status != 200;
  return result;
}

}  // namespace loramux
