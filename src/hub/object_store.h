// Puts the files of an adapter from an object store or a model hub into a folder. It asks for names that it knows and
// never lists a bucket.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/adapter_source.h"
#include "hub/hub_client.h"
#include "hub/s3_client.h"

namespace loramux {

// A file as its source has it. `version` changes with the content: an ETag, or a digest.
struct SourceFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string version;
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// Called before content arrives and again before the folder has more: with the bytes of all files as their source
// announced them, and with those that the folder will have next. An error ends the download.
using ReserveBytes = std::function<Status(std::int64_t announced, std::int64_t next)>;

// One thread uses it. Waits for the network.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  // Downloads adapter_config.json, the file of tensors (kAdapterTensorFiles) and, where the source has them, the files
  // of a tokenizer with its chat template, generation_config.json, modules.json and its N_Pooling/config.json into
  // `folder`; of a hub's repository without an adapter_config.json its GGUF file in place of the first two, and so of
  // a store where the source names one, with what lies beside it. What an
  // earlier call left there of the same versions is resumed. A file that changes meanwhile is begun again, three times
  // at most. Files are on disk when it returns. Errors name the source: kNotFound: a file is not there;
  // kInvalidArgument: no access, or content that is not what the source announced; kUnavailable: the network, a stall,
  // a source that keeps changing; kIoError: the disk.
  virtual Result<std::vector<SourceFile>> Fetch(const AdapterSource& source, const std::filesystem::path& folder,
                                                const ReserveBytes& reserve) = 0;
  // Whether the source still has exactly these files in these versions. Errors: as Fetch.
  virtual Result<bool> IsCurrent(const AdapterSource& source, const std::vector<SourceFile>& files) = 0;
};

// Whether a file says something of prompts and answers, which the digest of an adapter's weights leaves out.
bool IsAdapterText(std::string_view name);

// `stop` may be null; true ends what runs. Errors: as S3Client::Create and HubClient::Create.
Result<std::unique_ptr<ObjectStore>> OpenS3Store(S3Options options, const std::atomic<bool>* stop);
Result<std::unique_ptr<ObjectStore>> OpenHubStore(HubClientOptions options);

// Largest files that are fetched, in bytes.
inline constexpr std::int64_t kMaxConfigObjectBytes = std::int64_t{16} << 20;
inline constexpr std::int64_t kMaxWeightObjectBytes = std::int64_t{1} << 40;

}  // namespace loramux
