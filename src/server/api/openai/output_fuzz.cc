// Fuzzes the parsers of the model's text. For any text, cut anywhere, they must give the same events; complete calls
// have a name and an object; and no text is lost.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "server/api/openai/chat_message.h"
#include "server/output/formats.h"
#include "server/output/json_scanner.h"
#include "server/output/reasoning.h"

namespace loramux {
namespace {

std::shared_ptr<const ToolSet> FuzzedTools() {
  static const auto tools = [] {
    auto set = std::make_shared<ToolSet>();
    set->Add("f", Json::parse(R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})"));
    set->Add("python", Json());
    return set;
  }();
  return tools;
}

std::unique_ptr<OutputParser> FuzzedParser(std::uint8_t choice) {
  const std::vector<std::string> names = ToolFormatNames();
  auto calls = std::make_unique<CallParser>(*FindToolFormat(names[choice % names.size()])->grammar, FuzzedTools());
  if ((choice & 0x40) == 0) return calls;
  const auto start = (choice & 0x80) == 0 ? ReasoningParser::Start::kPerhaps : ReasoningParser::Start::kInside;
  return std::make_unique<ReasoningParser>(start, std::move(calls));
}

// The message of the text, read in pieces of `step` bytes.
Json Read(std::uint8_t choice, std::string_view text, std::size_t step) {
  const auto parser = FuzzedParser(choice);
  OutputEvents events;
  for (std::size_t at = 0; at < text.size(); at += step) parser->Push(text.substr(at, step), events);
  parser->Finish(events, (choice & 0x20) != 0);
  CHECK_LE(events.bytes(), 20 * text.size() + 1000);
  return MessageOf(events.Take());
}

void CheckCalls(const Json& message) {
  for (const Json& call : message.value("tool_calls", Json::array())) {
    const Json& function = call["function"];
    CHECK(!function["name"].get_ref<const std::string&>().empty());
    JsonScanner scanner;
    auto result = JsonScanner::Result::kMore;
    for (const char c : function["arguments"].get_ref<const std::string&>()) {
      CHECK(result == JsonScanner::Result::kMore);
      result = scanner.Step(c);
    }
    CHECK(result == JsonScanner::Result::kEnd);
  }
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  using namespace loramux;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Json whole = Read(data[0], text, size);
  CheckCalls(whole);
  CHECK(whole == Read(data[0], text, 1));
  CHECK(whole == Read(data[0], text, 3));
  if (!whole.contains("tool_calls") && (data[0] & 0x40) == 0) CHECK(whole["content"] == Json(std::string(text)));
  return 0;
}
