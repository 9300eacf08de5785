// What crosses the boundary between the picker and its gRPC server (grpc/, a plugin): the messages of Envoy's external
// processing protocol, as far as endpoint picking needs them, in plain types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace loramux {

using ProxyHeaders = std::vector<std::pair<std::string, std::string>>;  // names in lower case

// The part of an HTTP exchange that a message carries, or that a reply answers. kImmediate: the proxy answers the
// client itself. kOther: a kind of message that this program does not know.
enum class ProxyPart : std::uint8_t {
  kRequestHeaders,
  kRequestBody,
  kRequestTrailers,
  kResponseHeaders,
  kResponseBody,
  kResponseTrailers,
  kImmediate,
  kOther,
};

// How the proxy sends a body; the values are those of Envoy's ProcessingMode.BodySendMode.
enum class ProxyBodyMode : std::uint8_t {
  kNone = 0,
  kStreamed = 1,
  kBuffered = 2,
  kBufferedPartial = 3,
  kFullDuplex = 4,
};

// A message from the proxy.
struct ProxyMessage {
  ProxyPart part = ProxyPart::kOther;
  ProxyHeaders headers;        // the fields of headers and trailers
  std::string body;            // a piece of a body
  bool end_of_stream = false;  // nothing follows in this direction
  // With the first message, if the proxy says so.
  std::optional<ProxyBodyMode> request_body_mode, response_body_mode;
  // The endpoints that the request may go to; absent: all.
  std::optional<std::vector<std::string>> subset;
  // With the response: the endpoint that gave it, and why the proxy gave it itself ("via_upstream": it did not). Empty:
  // the proxy does not say.
  std::string served, details;
};

// A message to the proxy.
struct ProxyReply {
  ProxyPart part = ProxyPart::kOther;
  ProxyHeaders set_headers;                 // fields to set in the request, the response or the immediate response
  std::vector<std::string> remove_headers;  // fields to remove from the request
  std::string endpoints;                    // the picked ones, for the dynamic metadata; empty: none
  bool streamed = false;                    // replaces the body's piece by `body`, as the duplex mode demands
  bool end_of_stream = false;               // this piece is the last of a streamed body
  bool replaces_body = false;               // `body` is the request's body from now on; not with `streamed`
  std::string body;                         // a streamed piece, the request's body, or that of the immediate response
  int status = 0;                           // status of the immediate response
};

// The processing of one HTTP exchange. One thread at a time uses it; its destruction ends the exchange.
class ProxyExchange {
 public:
  virtual ~ProxyExchange() = default;
  // Takes the next message and appends the replies, in the order in which they are to be sent.
  virtual void Take(ProxyMessage message, std::vector<ProxyReply>& replies) = 0;
  // No message with a reply that the exchange needs can follow: the stream may be closed without harm.
  virtual bool Settled() const = 0;
};

// Makes exchanges. Thread-safe.
class ProxyExchanges {
 public:
  virtual ~ProxyExchanges() = default;
  virtual std::unique_ptr<ProxyExchange> Begin() = 0;
};

}  // namespace loramux
