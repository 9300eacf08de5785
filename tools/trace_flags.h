// The flags of `serve` that send spans to an OTLP collector.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/tracing/span_exporter.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct TraceFlags {
  std::string endpoint;              // empty: no spans
  std::vector<std::string> headers;  // NAME=VALUE; secret
  std::string service_name = "loramux";
  double sample = 1;  // share of the requests without a trace
};

void AddTraceFlags(CommandLine& line, TraceFlags& flags);

// Null: not asked for. Errors name the flag.
Result<std::unique_ptr<SpanExporter>> StartSpanExporter(const TraceFlags& flags, std::string_view version);

}  // namespace loramux
