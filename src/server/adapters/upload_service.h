// The HTTP routes by which clients send an adapter itself: PUT /v1/adapters/NAME with its files, and SGLang's
// /load_lora_adapter_from_tensors with its tensors. Needs coroutines.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "http/exchange.h"
#include "server/adapters/adapter_changes.h"
#include "server/adapters/admin_gate.h"
#include "server/adapters/ticket.h"

namespace loramux {

struct UploadServiceOptions {
  AdminGate gate;
  std::size_t max_bytes = std::size_t{2} << 30;  // in one upload; beyond: 413
  int threads = 2;                               // that write, check and load
  int max_uploads = 8;                           // that arrive or are loaded; requests beyond this get status 503
};

// Thread-safe: one instance serves all connections.
class UploadService {
 public:
  // What `changes` refers to must outlive the service; the service must outlive its HTTP server.
  UploadService(AdapterChanges changes, UploadServiceOptions options);
  // Waits for the uploads that are being loaded.
  ~UploadService();

  // Adds PUT and DELETE /v1/adapters/NAME, and POST /load_lora_adapter_from_tensors.
  void AddRoutes(RouteTable& routes);

 private:
  class Upload;
  class Text;
  // The answer to an upload whose bytes are all there, or to one that is described in `json`. Both block.
  HttpReply Load(const HttpRequest& request, Upload& upload);
  HttpReply LoadTensors(const std::string& json);
  Status WriteTensors(const std::string& json, UploadFolder& folder, AdapterAdmin::LoadRequest& request) const;
  Result<AdapterAdmin::LoadResult> LoadFolder(const AdapterAdmin::LoadRequest& request) const;
  HttpReply Remove(const HttpRequest& request);
  // Error: uploads are refused, or there are too many.
  Status CheckRoom(const Ticket& ticket) const;
  template <typename Work>
  boost::asio::awaitable<void> Answer(HttpExchange& exchange, Work work);

  const AdapterChanges changes_;
  const UploadServiceOptions options_;
  std::atomic<int> in_{0};
  boost::asio::thread_pool workers_;
};

}  // namespace loramux
