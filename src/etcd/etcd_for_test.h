// A real etcd of one member, for tests: started on free ports, killed at the end. Tests skip themselves where the
// program is missing (Debian: etcd-server; tools/setup.sh test installs it).
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "etcd/etcd_client.h"
#include "http/bound_port.h"

namespace loramux {

class EtcdForTest {
 public:
  // Whether there is the program.
  static bool Exists() { return std::system("command -v etcd >/dev/null 2>&1") == 0; }

  EtcdForTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "loramux_etcd_XXXXXX").string();
    top_ = ::mkdtemp(pattern.data());
    {
      const auto client = BoundPort::Bind("127.0.0.1", 0), peer = BoundPort::Bind("127.0.0.1", 0);
      port_ = (*client)->port();
      peer_port_ = (*peer)->port();
    }
    Start();
  }
  ~EtcdForTest() {
    Kill();
    std::filesystem::remove_all(top_);
  }
  EtcdForTest(const EtcdForTest&) = delete;
  EtcdForTest& operator=(const EtcdForTest&) = delete;

  void Start() {
    const std::string client = "http://127.0.0.1:" + std::to_string(port_),
                      peer = "http://127.0.0.1:" + std::to_string(peer_port_), log = (top_ / "log").string();
    std::vector<std::string> words = {"etcd",
                                      "--name",
                                      "m",
                                      "--data-dir",
                                      (top_ / "data").string(),
                                      "--listen-client-urls",
                                      client,
                                      "--advertise-client-urls",
                                      client,
                                      "--listen-peer-urls",
                                      peer,
                                      "--initial-advertise-peer-urls",
                                      peer,
                                      "--initial-cluster",
                                      "m=" + peer};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(file, 1);
      ::dup2(file, 2);
      ::execvp("etcd", arguments.data());
      ::_exit(127);
    }
    const OsClock clock;
    const auto probe = EtcdClient::Open(Options(std::chrono::seconds(30)), clock);
    ASSERT_TRUE(probe.ok() && (*probe)->Range({.key = "x"}).ok());
  }
  // As power loss does.
  void Kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  void Restart() {
    Kill();
    Start();
  }
  // Loses everything.
  void Wipe() {
    Kill();
    std::filesystem::remove_all(top_ / "data");
    Start();
  }

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  EtcdOptions Options(std::chrono::nanoseconds timeout = std::chrono::seconds(5)) const {
    return {.urls = {url()}, .timeout = timeout};
  }

 private:
  std::filesystem::path top_;
  int port_ = 0, peer_port_ = 0;
  pid_t process_ = 0;
};

}  // namespace loramux
