// The plugin's server, and the function that the program finds.
#include "envoy/plugin.h"

#include <memory>
#include <string>
#include <utility>

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "envoy/grpc/stream.h"
#include "ext_proc.grpc.pb.h"

namespace loramux {
namespace {

using envoy::service::ext_proc::v3::ExternalProcessor;
using envoy::service::ext_proc::v3::ProcessingRequest;
using envoy::service::ext_proc::v3::ProcessingResponse;

constexpr const char* kServices[] = {"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor",
                                     "inference-extension"};
constexpr const char* kLiveness = "liveness";          // answers as long as anything does
constexpr std::size_t kMemory = std::size_t{1} << 30;  // bytes of gRPC's buffers; beyond it connections are slowed down
constexpr int kMaxThreads = 64;

class Service final : public ExternalProcessor::CallbackService {
 public:
  explicit Service(ProxyExchanges& exchanges) : exchanges_(exchanges) {}
  grpc::ServerBidiReactor<ProcessingRequest, ProcessingResponse>* Process(grpc::CallbackServerContext*) override {
    return new ProcessStream(exchanges_.Begin(), streams_);
  }
  OpenStreams& streams() { return streams_; }

 private:
  ProxyExchanges& exchanges_;
  OpenStreams streams_;
};

class GrpcPickerServer final : public PickerServer {
 public:
  explicit GrpcPickerServer(ProxyExchanges& exchanges) : service_(exchanges) {}
  ~GrpcPickerServer() override {
    if (server_ != nullptr && !down_) Shutdown(std::chrono::nanoseconds(0));
  }

  Status Start(const PickerServerOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ResourceQuota quota("picker");
    quota.Resize(kMemory).SetMaxThreads(kMaxThreads);
    auto credentials = grpc::InsecureServerCredentials();
    if (!options.certificate.empty()) {
      grpc::SslServerCredentialsOptions tls;
      tls.pem_key_cert_pairs.push_back({options.key, options.certificate});
      credentials = grpc::SslServerCredentials(tls);
    }
    const bool v6 = options.host.find(':') != std::string::npos;
    const std::string address = (v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(options.port);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message));
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, credentials, &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return IoError("--ext-proc: cannot listen on " + address +
                     ": the port is in use, the address is not of this machine, or the certificate or key is bad");
    }
    port_ = static_cast<std::uint16_t>(port);
    SetServing(false);
    server_->GetHealthCheckService()->SetServingStatus(kLiveness, true);
    return Ok{};
  }

  std::uint16_t port() const override { return port_; }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    for (const char* service : kServices) health->SetServingStatus(service, serving);
  }

  std::int64_t Shutdown(std::chrono::nanoseconds patience) override {
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_nanos(patience.count(), GPR_TIMESPAN));
    server_->GetHealthCheckService()->Shutdown();
    service_.streams().CloseSettled(deadline);
    server_->Shutdown(deadline);  // takes no new streams; cancels those that are open at the deadline
    server_->Wait();
    down_ = true;
    return service_.streams().ended_late();
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::uint16_t port_ = 0;
  bool down_ = false;
};

Result<std::unique_ptr<PickerServer>> StartGrpc(const PickerServerOptions& options, ProxyExchanges& exchanges) {
  auto server = std::make_unique<GrpcPickerServer>(exchanges);
  RETURN_IF_ERROR(server->Start(options));
  return std::unique_ptr<PickerServer>(std::move(server));
}

const EnvoyPlugin kPlugin = {kEnvoyPluginVersion, StartGrpc};

}  // namespace
}  // namespace loramux

extern "C" __attribute__((visibility("default"))) const loramux::EnvoyPlugin* loramux_envoy_plugin() {
  return &loramux::kPlugin;
}
