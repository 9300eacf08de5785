// A blocking HTTP client for tests, byte by byte where they want: it can violate the protocol, dawdle and break off.
// What only wants an answer uses http/client.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "http/json_reader.h"

namespace loramux {

// A response as the client received it.
struct ClientResponse {
  int status = 0;  // 0: the connection ended without a response
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // True if the whole response arrived.
  bool complete = false;
  bool keep_alive = false;

  std::string Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (boost::beast::iequals(key, name)) return value;
    }
    return {};
  }
  Json json() const { return Json::parse(body, nullptr, false); }
  // Returns the data of every server-sent event in the body.
  std::vector<std::string> events() const {
    std::vector<std::string> data;
    std::size_t at = 0;
    while (body.compare(at, 6, "data: ") == 0) {
      const auto end = body.find("\n\n", at);
      if (end == std::string::npos) break;
      data.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    if (at != body.size()) data.push_back("not an event: " + body.substr(at));
    return data;
  }
};

class RawHttpClient {
 public:
  // Connects to 127.0.0.1. `receive_bytes` > 0 sets the size of the socket's receive buffer. `own_address`: the address
  // that the server sees, in 127.0.0.0/8.
  explicit RawHttpClient(std::uint16_t port, int receive_bytes = 0, const char* own_address = "127.0.0.1")
      : socket_(context_) {
    using boost::asio::ip::tcp;
    socket_.open(tcp::v4());
    socket_.bind(tcp::endpoint(boost::asio::ip::make_address(own_address), 0));
    if (receive_bytes > 0) socket_.set_option(boost::asio::socket_base::receive_buffer_size(receive_bytes));
    socket_.connect(tcp::endpoint(boost::asio::ip::make_address("127.0.0.1"), port));
  }

  // Sends raw bytes. False on error.
  bool Send(std::string_view bytes) {
    boost::system::error_code error;
    boost::asio::write(socket_, boost::asio::buffer(bytes.data(), bytes.size()), error);
    return !error;
  }
  // Returns the text of a request.
  static std::string Format(std::string_view method, std::string_view target, std::string_view body = {},
                            std::string_view extra_headers = {}) {
    std::string text =
        std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: test\r\n" + std::string(extra_headers);
    if (!body.empty())
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + std::string(body);
  }
  // Reads one response. `head_only`: it has no body.
  ClientResponse Read(bool head_only = false) {
    namespace http = boost::beast::http;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    parser.skip(head_only);
    boost::system::error_code error;
    http::read(socket_, buffer_, parser, error);
    ClientResponse response;
    if (!parser.is_header_done()) return response;
    response.status = static_cast<int>(parser.get().result_int());
    response.keep_alive = parser.get().keep_alive();
    for (const auto& field : parser.get()) response.headers.emplace_back(field.name_string(), field.value());
    response.body = std::move(parser.get().body());
    response.complete = !error;
    return response;
  }
  // Sends one request and reads its response.
  ClientResponse Do(std::string_view method, std::string_view target, std::string_view body = {},
                    std::string_view extra_headers = {}) {
    Send(Format(method, target, body, extra_headers));
    return Read(method == "HEAD");
  }
  // Reads at least one byte. Empty at the end of the connection.
  std::string ReadSome() {
    char bytes[4096];
    boost::system::error_code error;
    const std::size_t n = socket_.read_some(boost::asio::buffer(bytes), error);
    return std::string(bytes, n);
  }
  // Reads until `wanted` has arrived so many times, and keeps it all for Read. False at the end of the connection.
  bool Await(std::string_view wanted, int times = 1) {
    while (true) {
      const auto data = buffer_.cdata();
      const std::string_view text(static_cast<const char*>(data.data()), data.size());
      int found = 0;
      for (auto at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + 1)) ++found;
      if (found >= times) return true;
      boost::system::error_code error;
      const std::size_t n = socket_.read_some(buffer_.prepare(4096), error);
      if (error) return false;
      buffer_.commit(n);
    }
  }
  // Something has arrived that was not read yet.
  bool HasBytes() const {
    boost::system::error_code ignored;
    return buffer_.size() > 0 || socket_.available(ignored) > 0;
  }
  std::string ReadUntil(std::string_view wanted) {
    std::string text;
    while (text.find(wanted) == std::string::npos) {
      const std::string more = ReadSome();
      if (more.empty()) break;
      text += more;
    }
    return text;
  }
  std::string ReadToEnd() {
    std::string text, more;
    while (!(more = ReadSome()).empty()) text += more;
    return text;
  }
  void Close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  // Closes the connection with RST instead of FIN.
  void Reset() {
    socket_.set_option(boost::asio::socket_base::linger(true, 0));
    Close();
  }

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace loramux
