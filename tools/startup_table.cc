#include "tools/startup_table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/message.h"

namespace loramux {
namespace {

std::string Row(const char* name, const std::string& text) { return fmt::format("  {:<9} {}\n", name, text); }

// `text` for a shell, within single quotes.
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + quoted + "'";
}

std::string Curl(const StartupFacts& facts) {
  const std::string model = facts.first_adapter.empty() ? facts.name : facts.first_adapter;
  nlohmann::ordered_json body = {{"model", model}, {"max_tokens", 32}};
  if (facts.chat) {
    body["messages"] = {{{"role", "user"}, {"content", "Hello"}}};
  } else {
    body["prompt"] = "Hello";
  }
  return fmt::format("curl {}{}/v1/{} -H 'Content-Type: application/json'{} -d {}", facts.tls ? "--insecure " : "",
                     ClientUrl(facts), facts.chat ? "chat/completions" : "completions",
                     facts.keys ? " -H \"Authorization: Bearer $LORAMUX_API_KEY\"" : "",
                     Quoted(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

}  // namespace

std::string ClientUrl(const StartupFacts& facts) {
  std::string host = facts.host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::" || host == "[::]") host = "::1";
  if (host.find(':') != std::string::npos && !host.starts_with('[')) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", facts.tls ? "https" : "http", host, facts.port);
}

std::string StartupTable(const StartupFacts& facts) {
  std::string adapters = fmt::format("{} served", facts.adapters);
  if (facts.broken_adapters > 0) adapters += fmt::format(", {} broken (the log above says why)", facts.broken_adapters);
  // Only files that are mapped can be larger (WeightOptions::memory).
  const bool beyond = facts.weight_memory > 0 && facts.weight_bytes > facts.weight_memory;
  const std::string waits = fmt::format(" in mapped files, beyond the machine's {}: steps wait for the disk",
                                        FormatBytes(facts.weight_memory));
  std::string memory = fmt::format("weights {}{}; pool of KV cache and adapters {}", FormatBytes(facts.weight_bytes),
                                   beyond ? waits : "", FormatBytes(facts.device_bytes));
  if (facts.host_bytes > 0) memory += fmt::format("; host tier {}", FormatBytes(facts.host_bytes));
  return Row("model", fmt::format("{} ({}, {}, up to {} tokens)", Printable(facts.name), facts.family, facts.dtype,
                                  facts.max_model_len)) +
         Row("folder", Printable(facts.path)) + Row("memory", memory) + Row("adapters", adapters) +
         Row("address", ClientUrl(facts)) + (facts.page ? Row("page", ClientUrl(facts) + "/") : std::string()) +
         Row("try", Curl(facts));
}

}  // namespace loramux
