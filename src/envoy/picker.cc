#include "envoy/picker.h"

#include <utility>

#include "base/text_file.h"

namespace loramux {
namespace {

constexpr std::size_t kAroundBody = std::size_t{1} << 20;  // bytes of a message beside the body: headers, metadata

Result<PickerServerOptions> ServerOptionsOf(const RouterOptions& options, std::uint16_t port) {
  PickerServerOptions server{.host = options.http.host, .port = port};
  server.max_message = options.http.max_body_bytes + kAroundBody;
  if (!options.tls.enabled()) return server;
  RETURN_IF_ERROR(TlsContext::Load(options.tls));  // finds what gRPC would not explain
  ASSIGN_OR_RETURN(server.certificate, ReadTextFile(options.tls.certificate));
  ASSIGN_OR_RETURN(server.key, ReadTextFile(options.tls.key));
  return server;
}

}  // namespace

Result<std::unique_ptr<Picker>> Picker::Start(const RouterOptions& options, std::uint16_t port, const Clock& clock) {
  ASSIGN_OR_RETURN(const PickerServerOptions server_options, ServerOptionsOf(options, port));
  ASSIGN_OR_RETURN(std::unique_ptr<Dispatcher> dispatcher, Dispatcher::Create(options.dispatch));
  std::unique_ptr<Picker> picker(new Picker);
  picker->picker_ = std::make_unique<EndpointPicker>(std::move(dispatcher), clock);
  picker->exchanges_ = std::make_unique<PickerExchanges>(*picker->picker_, options.http.max_body_bytes);
  ASSIGN_OR_RETURN(picker->server_, StartPickerServer(server_options, *picker->exchanges_));
  picker->fleet_ = std::make_unique<PickerFleet>(
      *picker->picker_, options.access, [server = picker->server_.get()](bool ready) { server->SetServing(ready); },
      clock);
  return picker;
}

Picker::~Picker() { Shutdown(std::chrono::nanoseconds(0)); }

std::int64_t Picker::Shutdown(std::chrono::nanoseconds patience) {
  if (server_ == nullptr) return 0;
  const std::int64_t cut_off = server_->Shutdown(patience);
  fleet_.reset();
  server_.reset();
  return cut_off;
}

}  // namespace loramux
