#include "http/bound_port.h"

#include <fmt/format.h>

namespace loramux {

using boost::asio::ip::tcp;
using boost::system::error_code;

Result<std::unique_ptr<BoundPort>> BoundPort::Bind(const std::string& host, std::uint16_t port) {
  std::unique_ptr<BoundPort> bound(new BoundPort(fmt::format("{}:{}", host, port)));
  error_code error;
  tcp::resolver resolver(bound->context_);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return IoError("cannot resolve the host to listen on, '" + host + "': " + error.message(), "host");
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  const auto failed = [&](const char* step) {
    return IoError(fmt::format("cannot {} {}: {}", step, bound->name_, error.message()), "port");
  };
  if (bound->socket_.open(endpoint.protocol(), error)) return failed("open a socket for");
  bound->socket_.set_option(boost::asio::socket_base::reuse_address(true), error);
  if (bound->socket_.bind(endpoint, error)) return failed("listen on");
  bound->port_ = bound->socket_.local_endpoint(error).port();
  return bound;
}

Status BoundPort::ListenAs(tcp::acceptor& acceptor) {
  error_code error;
  if (socket_.listen(boost::asio::socket_base::max_listen_connections, error)) {
    return IoError(fmt::format("cannot listen on {}: {}", name_, error.message()), "port");
  }
  const tcp protocol = socket_.local_endpoint(error).protocol();
  acceptor.assign(protocol, socket_.release(error), error);
  if (error) return IoError(fmt::format("cannot listen on {}: {}", name_, error.message()), "port");
  return Ok{};
}

}  // namespace loramux
