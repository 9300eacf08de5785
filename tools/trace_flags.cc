#include "tools/trace_flags.h"

#include <algorithm>
#include <utility>
#include <unistd.h>

#include <fmt/format.h>

#include "base/clock.h"
#include "http/exchange.h"
#include "http/random_source.h"

namespace loramux {
namespace {

std::string WithoutSpaceAround(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

// A name of HTTP's token characters, and a value without control characters: nothing that would begin another header.
// The value may be percent-encoded, as OpenTelemetry's variable has it.
Result<std::pair<std::string, std::string>> HeaderOf(const std::string& text) {
  constexpr std::string_view kToken = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const std::size_t equals = text.find('=');
  const std::string name = WithoutSpaceAround(text.substr(0, equals));
  const std::string value =
      equals == std::string::npos ? std::string() : PercentDecode(WithoutSpaceAround(text.substr(equals + 1)));
  const bool named =
      equals != std::string::npos && !name.empty() && name.find_first_not_of(kToken) == std::string::npos;
  const bool clean = std::none_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (named && clean) return std::pair{name, value};
  return InvalidArgument(
      "--otlp-headers: expected NAME=VALUE without control characters, found something else (not shown: it may be a "
      "secret)",
      "--otlp-headers");
}

const Clock& ProcessClock() {
  static const OsClock clock;
  return clock;
}

}  // namespace

void AddTraceFlags(CommandLine& line, SpanExporterOptions& spans, std::vector<std::string>& headers) {
  const std::string traces = "Traces (OpenTelemetry)";
  line.Add({.names = "--otlp-endpoint",
            .target = &spans.endpoint,
            .unit = "URL",
            .group = traces,
            .help =
                "Send spans of requests to this collector by OTLP over HTTP, as in http://127.0.0.1:4318; /v1/traces "
                "is appended. A collector that is slow or gone costs spans, never requests",
            .default_text = "none: no spans are sent",
            .environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}});
  line.Add({.names = "--otlp-headers",
            .target = &headers,
            .unit = "NAME=VALUE",
            .group = traces,
            .help = "Headers of every export, such as a key of the collector; values may be percent-encoded",
            .comma_list = true,
            .secret = true,
            .environment = {"OTEL_EXPORTER_OTLP_HEADERS"}});
  line.Add({.names = "--otlp-service-name",
            .target = &spans.resource.service_name,
            .unit = "NAME",
            .group = traces,
            .help = "The name of this server in traces (service.name)",
            .environment = {"OTEL_SERVICE_NAME"}});
  line.Add({.names = "--otlp-sample",
            .target = &spans.sample_share,
            .unit = "SHARE",
            .group = traces,
            .help = "Share of the requests without a trace of their caller that get one here. The sampled flag of a "
                    "caller's trace is always followed",
            .range = {{0.0, 1.0}}});
}

Result<std::unique_ptr<SpanExporter>> StartSpanExporter(SpanExporterOptions spans,
                                                        const std::vector<std::string>& headers,
                                                        std::string_view version) {
  if (spans.endpoint.empty()) return SpanExporter::None();
  for (const std::string& text : headers) {
    ASSIGN_OR_RETURN(auto header, HeaderOf(text));
    spans.headers.push_back(std::move(header));
  }
  spans.resource.service_version = std::string(version);
  spans.resource.instance = fmt::format("{:016x}", RandomIdBits());
  auto exporter = SpanExporter::Start(std::move(spans), ProcessClock());
  if (!exporter.ok()) return InvalidArgument(exporter.error().message, "--otlp-endpoint");
  return exporter;
}

}  // namespace loramux
