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

// `headers`: NAME=VALUE; secret.
void AddTraceFlags(CommandLine& line, SpanExporterOptions& spans, std::vector<std::string>& headers);

// Completes the options and starts the exporter. Null: not asked for. Errors name the flag.
Result<std::unique_ptr<SpanExporter>> StartSpanExporter(SpanExporterOptions spans,
                                                        const std::vector<std::string>& headers,
                                                        std::string_view version);

}  // namespace loramux
