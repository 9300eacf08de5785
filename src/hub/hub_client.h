// Talks to a model hub over HTTP: lists a repository's files, and downloads one.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "hub/repo_files.h"
#include "hub/repo_name.h"
#include "hub/transfer_limits.h"

namespace loramux {

struct HubClientOptions {
  std::string endpoint = "https://huggingface.co";  // http:// or https://, without a slash at its end
  std::string token;                                // secret; sent to the endpoint's host alone; empty: none
  TransferLimits limits = {.stall_seconds = 60, .least_bytes_per_second = 1, .patience_seconds = 0};
  const std::atomic<bool>* stop = nullptr;  // true ends what runs; null: never
};

// One thread uses it. Waits for the network.
class HubClient {
 public:
  // Error: an endpoint that is no URL, or a token with characters that no header may have.
  static Result<std::unique_ptr<HubClient>> Create(HubClientOptions options);
  ~HubClient();
  HubClient(const HubClient&) = delete;
  HubClient& operator=(const HubClient&) = delete;

  // Asks for commit and files of the repository. Errors: kNotFound, no such repository or revision, or a private one;
  // kUnavailable, the network; the message says what to do.
  Result<RepoFiles> List(const RepoName& repo);

  // Called with the bytes of the file that are there. An error ends the download, and is returned.
  using OnBytes = std::function<Status(std::int64_t bytes)>;
  // Appends to `partial` what it lacks of the file, and checks size and digest. A broken connection is resumed within
  // the limits. Errors: as List; the content is not the one that was announced, and then
  // `partial` is removed.
  Status Download(const RepoName& repo, const RepoFiles& files, const RepoFile& file,
                  const std::filesystem::path& partial, const OnBytes& on_bytes);

 private:
  struct Transfer;
  explicit HubClient(HubClientOptions options);
  Status Get(const std::string& path, Transfer& transfer);
  Error Explain(const RepoName& repo, const std::string& failure, long http_status) const;

  const HubClientOptions options_;
  void* curl_;  // CURL
};

}  // namespace loramux
