// An HTTP server of a test: each connection gets one reply, byte for byte as the test says.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"

namespace loramux {

struct ScriptedRequest {
  std::string method, path;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // body of a request with a Content-Length
};

// The bytes to send, after which the connection ends. `drip`: a few bytes each 50 ms, until the client goes.
struct ScriptedReply {
  std::string bytes;
  bool drip = false;
  std::size_t drip_bytes = 1;
};

class ByteServer {
 public:
  using Handler = std::function<ScriptedReply(const ScriptedRequest&)>;
  explicit ByteServer(Handler handler) : handler_(std::move(handler)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(listener_, 64) == 0);
    CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~ByteServer() {
    stop_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    for (std::thread& thread : connections_) thread.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ScriptedRequest> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    seen_.clear();
  }

 private:
  void Accept() {
    for (int socket; (socket = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      connections_.emplace_back([this, socket] {
        Answer(socket);
        ::close(socket);
      });
    }
  }
  void Answer(int socket) {
    std::string text;
    char block[4096];
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t size = ::recv(socket, block, sizeof(block), 0);
      if (size <= 0) return;
      text.append(block, static_cast<std::size_t>(size));
    }
    ScriptedRequest request = Parse(text);
    request.body = text.substr(text.find("\r\n\r\n") + 4);
    const auto length = request.headers.find("content-length");
    while (length != request.headers.end() && request.body.size() < std::stoul(length->second)) {
      const ssize_t size = ::recv(socket, block, sizeof(block), 0);
      if (size <= 0) return;
      request.body.append(block, static_cast<std::size_t>(size));
    }
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(request);
    }
    const ScriptedReply reply = handler_(request);
    const std::size_t step = reply.drip ? reply.drip_bytes : reply.bytes.size();
    for (std::size_t at = 0; at < reply.bytes.size() && !stop_; at += step) {
      const std::size_t size = std::min(step, reply.bytes.size() - at);
      if (::send(socket, reply.bytes.data() + at, size, MSG_NOSIGNAL) < 0) return;
      if (reply.drip) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  static ScriptedRequest Parse(const std::string& text) {
    ScriptedRequest request;
    std::size_t at = text.find(' ');
    request.method = text.substr(0, at);
    request.path = text.substr(at + 1, text.find(' ', at + 1) - at - 1);
    for (at = text.find("\r\n") + 2; text.compare(at, 2, "\r\n") != 0;) {
      const std::size_t colon = text.find(':', at), end = text.find("\r\n", at);
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      request.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return request;
  }

  const Handler handler_;
  const int listener_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<ScriptedRequest> seen_;
  std::vector<std::thread> connections_;
  std::thread acceptor_;
};

}  // namespace loramux
