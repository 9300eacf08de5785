#include "tools/demo_command.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <fmt/format.h>

#include "http/bound_port.h"
#include "http/options.h"
#include "tools/serve.h"
#include "tools/startup_table.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// The port, or the next one that is free: a first try should not end at another program's port.
Result<std::uint16_t> FreePort(const HttpServerOptions& http) {
  constexpr int kTried = 100;
  const int last = std::min(http.port + kTried - 1, 65535);
  std::optional<Error> first_error;
  for (int port = http.port; port <= last; ++port) {
    const auto bound = BoundPort::Bind(http.host, static_cast<std::uint16_t>(port));
    if (bound.ok()) return (*bound)->port();
    if (!first_error) first_error = bound.error();
  }
  return *first_error;
}

void PrintFirstSteps(const std::string& host, std::uint16_t port, const std::vector<std::string>& words) {
  StartupFacts facts;
  facts.host = host;
  facts.port = port;
  const std::string url = ClientUrl(facts);
  fmt::print(
      "$ {}\n\n"
      "When the log says `ready`, the page is at\n"
      "  {}/\n"
      "and in another terminal this asks the adapter `reverse`:\n"
      "  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{{\"model\": \"reverse\", \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}'\n"
      "Ctrl-C ends it.\n\n",
      fmt::join(words, " "), url, url);
  std::fflush(stdout);
}

// Runs `loramux serve` with these words as the command line of a program.
int RunServeWith(std::vector<std::string> words) {
  Program program{.name = "loramux", .summary = "the demo's server", .version = LORAMUX_VERSION};
  program.commands.push_back(ServeCommand());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return RunProgram(program, static_cast<int>(words.size()), argv.data());
}

int RunDemo(const HttpServerOptions& http) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const auto demo = FindDemo(program);
  if (!demo.ok()) return FailCommand("demo", demo.error());
  const auto port = FreePort(http);
  if (!port.ok()) return FailCommand("demo", port.error());
  const std::vector<std::string> words = {"loramux",
                                          "serve",
                                          (*demo / "model").string(),
                                          "--served-model-name",
                                          "demo",
                                          "--adapter-dir",
                                          (*demo / "adapters").string(),
                                          "--tool-call-parser",
                                          "tools=hermes",
                                          "--device-memory",
                                          "256MiB",
                                          "--host-memory",
                                          "64MiB",
                                          "--host",
                                          http.host,
                                          "--port",
                                          std::to_string(*port)};
  PrintFirstSteps(http.host, *port, words);
  return RunServeWith(words);
}

}  // namespace

Result<fs::path> FindDemo(const fs::path& program) {
  const fs::path folder = program.parent_path();
  // build/PRESET/tools/loramux
  const std::vector<fs::path> places = {folder.parent_path() / "share" / "loramux" / "demo",
                                        folder.parent_path().parent_path().parent_path() / "demo"};
  std::error_code error;
  for (const fs::path& place : places) {
    if (fs::exists(place / "model" / "config.json", error) && fs::is_directory(place / "adapters", error)) return place;
  }
  return NotFound(
      fmt::format("the demo model is neither in {} nor in {}. Install loramux from a package, a wheel or a tarball, "
                  "which bring it, "
                  "or serve the demo of a source tree: loramux serve demo/model --adapter-dir demo/adapters",
                  places[0].string(), places[1].string()));
}

Command DemoCommand() {
  const auto http = std::make_shared<HttpServerOptions>();
  Command command{.name = "demo",
                  .summary = "Serve the demo model with its fourteen adapters, which came with loramux"};
  command.line.Add({.names = "--host", .target = &http->host, .unit = "ADDRESS", .help = "Address to listen on"});
  command.line.Add({.names = "--port",
                    .target = &http->port,
                    .unit = "PORT",
                    .help = "TCP port, or the next one that is free; 0 takes any free one"});
  command.line.set_footer("It prints the `loramux serve` that it runs. Add flags to that one to try them.");
  command.run = [http] { return RunDemo(*http); };
  return command;
}

}  // namespace loramux
