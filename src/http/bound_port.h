// A port that is taken before there is a server for it, so that a port in use is known before a model is loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/result.h"

namespace loramux {

// A socket that is bound to an address and does not listen yet: clients are refused until a server takes it.
class BoundPort {
 public:
  // Looks `host` up and binds. `port` 0: any free one. Errors: the host does not resolve; the port is in use, or needs
  // rights that the process does not have.
  static Result<std::unique_ptr<BoundPort>> Bind(const std::string& host, std::uint16_t port);

  // The port in use.
  std::uint16_t port() const { return port_; }
  // Begins to listen, and hands the socket over to an acceptor. Error: another process has begun to listen meanwhile.
  // REQUIRES: called once.
  Status ListenAs(boost::asio::ip::tcp::acceptor& acceptor);

 private:
  explicit BoundPort(std::string name) : name_(std::move(name)), socket_(context_) {}

  const std::string name_;  // HOST:PORT as it was asked for
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor socket_;
  std::uint16_t port_ = 0;
};

}  // namespace loramux
