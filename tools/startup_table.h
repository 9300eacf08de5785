// What the user sees when the server is ready: what is served, what it takes, and how to ask it.
#pragma once

#include <cstdint>
#include <string>

namespace loramux {

struct StartupFacts {
  std::string name;                // name of the base model in requests
  std::string path;                // path of its folder
  std::string family, dtype;       // family and type of the weights
  std::int64_t max_model_len = 0;  // tokens
  std::int64_t weight_bytes = 0, device_bytes = 0, host_bytes = 0;
  std::int64_t weight_memory = 0;  // bytes of the machine's memory if the weights lie there; 0: on a device
  std::int64_t adapters = 0, broken_adapters = 0;
  std::string first_adapter;  // for the example; empty: there is none
  std::string host;
  std::uint16_t port = 0;
  bool tls = false, keys = false, chat = false;
  bool page = false;  // it serves the page for people
};

// The server's address for a client on this machine: an address of all interfaces becomes that of the loopback.
std::string ClientUrl(const StartupFacts& facts);

// A table of a few lines, and one curl command, which never shows a key.
std::string StartupTable(const StartupFacts& facts);

}  // namespace loramux
