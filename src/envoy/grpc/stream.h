// One gRPC stream: one HTTP exchange of the proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include "envoy/proxy_message.h"
#include "ext_proc.grpc.pb.h"

namespace loramux {

class ProcessStream;

// The streams that are open. Thread-safe.
class OpenStreams {
 public:
  void Add(ProcessStream* stream);
  void Remove(ProcessStream* stream);
  // From now on streams close as soon as they are settled; those that are settled close now. Streams that end after
  // `deadline` are counted.
  void CloseSettled(gpr_timespec deadline);
  bool closing() const;
  std::int64_t ended_late() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<ProcessStream*> streams_;
  bool closing_ = false;
  gpr_timespec deadline_{};
  std::int64_t ended_late_ = 0;
};

// Reads a message, writes its replies one after the other, then reads the next message: so at most one message's
// replies wait for a slow proxy. gRPC calls the On... functions, one at a time. Destroys itself.
class ProcessStream final : public grpc::ServerBidiReactor<envoy::service::ext_proc::v3::ProcessingRequest,
                                                           envoy::service::ext_proc::v3::ProcessingResponse> {
 public:
  ProcessStream(std::unique_ptr<ProxyExchange> exchange, OpenStreams& streams);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;
  // Closes the stream if it waits for the proxy and is settled. Thread-safe.
  void CloseIfSettled();

 private:
  void WriteOrRead();
  void Close();

  std::mutex mutex_;  // guards everything below
  std::unique_ptr<ProxyExchange> exchange_;
  OpenStreams& streams_;
  envoy::service::ext_proc::v3::ProcessingRequest request_;
  envoy::service::ext_proc::v3::ProcessingResponse response_;
  std::vector<ProxyReply> replies_;
  std::size_t next_ = 0;  // reply to write
  bool reading_ = false, finished_ = false;
};

}  // namespace loramux
