// The endpoint-picker protocol of the Gateway API Inference Extension, over Envoy's external processing messages.
//
// A request's headers arrive, then its body: in one message (BUFFERED), or in pieces that must be sent back unchanged
// (FULL_DUPLEX_STREAMED). When the body is complete, the reply sets the header and the dynamic metadata
// kDestinationEndpoint to the chosen servers, best first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "envoy/endpoint_picker.h"
#include "envoy/proxy_message.h"

namespace loramux {

inline constexpr std::string_view kDestinationEndpoint = "x-gateway-destination-endpoint";

// The picker's exchanges. Thread-safe.
class PickerExchanges final : public ProxyExchanges {
 public:
  // `max_body`: bytes of one request; more gets 413. `max_held`: bytes of bodies that are not complete yet, in all;
  // more gets 503. `picker` must outlive it and all its exchanges; it must outlive its exchanges.
  explicit PickerExchanges(EndpointPicker& picker, std::size_t max_body = std::size_t{16} << 20,
                           std::size_t max_held = std::size_t{512} << 20)
      : picker_(picker), max_body_(max_body), max_held_(max_held) {}
  std::unique_ptr<ProxyExchange> Begin() override;

 private:
  class Exchange;
  EndpointPicker& picker_;
  const std::size_t max_body_, max_held_;
  std::atomic<std::size_t> held_{0};  // bytes
};

}  // namespace loramux
