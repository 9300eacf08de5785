// Which adapters there are: names, immutable generations, files. Knows nothing of memory (residency.h does).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/layout.h"
#include "base/ids.h"
#include "base/result.h"
#include "formats/adapter_config.h"

namespace loramux {

// One immutable version of an adapter. Shared: requests in flight keep it alive after its name is gone.
struct AdapterVersion {
  AdapterGeneration generation;
  std::string name;
  std::filesystem::path path;      // as the operator gave it
  AdapterFile file;
  AdapterLayout layout;            // where its rows lie in pages
  std::int64_t created_unix_seconds = 0;
};

// Names of adapters, thread-safe. Generations are handed out in ascending order and never reused.
class AdapterRegistry {
 public:
  struct Options {
    std::size_t page_bytes = 0;            // of the pools that the adapters will live in
    DType base_dtype = DType::kBF16;       // of the base model's weights
    std::optional<DType> forced_dtype;     // --lora-dtype; otherwise ChooseAdapterDType decides
    std::int64_t max_rank = 4096;          // --max-lora-rank
    // A further check of an opened adapter by whoever has the base's weights; empty: none. Any thread may call it.
    std::function<Status(const AdapterFile&)> check;
  };
  // `base_names` are what the base model answers to; adapters may not take them.
  AdapterRegistry(ModelConfig model, std::vector<std::string> base_names, Options options);

  // Opens and validates the adapter in `path` and registers it as `name`. May block on the disk; call off the engine
  // thread. Errors: a name that is taken, empty, has a comma or a control character, or exceeds 256 bytes; whatever
  // OpenAdapter refuses; a rank above max_rank; a row that does not fit a page.
  Result<std::shared_ptr<const AdapterVersion>> Register(const std::string& name, const std::filesystem::path& path,
                                                         std::int64_t now_unix_seconds);

  // Registers a version that was made elsewhere (the simulator's have a layout and no file): checks the name, gives it
  // its generation. Register ends with this.
  Result<std::shared_ptr<const AdapterVersion>> Commit(std::shared_ptr<AdapterVersion> version);

  // The version that `name` stands for now. Base names give a null pointer inside an ok Result; unknown names kNotFound.
  Result<std::shared_ptr<const AdapterVersion>> Resolve(std::string_view name) const;
  // Null if the generation is unknown.
  std::shared_ptr<const AdapterVersion> Find(AdapterGeneration generation) const;
  // In order of name.
  std::vector<std::shared_ptr<const AdapterVersion>> List() const;

  const std::vector<std::string>& base_names() const { return base_names_; }
  const ModelConfig& model() const { return model_; }

 private:
  static Error NameTaken(const std::string& name);
  Status CheckFree(const std::string& name) const;

  const ModelConfig model_;
  const std::vector<std::string> base_names_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const AdapterVersion>, std::less<>> by_name_;
  std::vector<std::shared_ptr<const AdapterVersion>> by_generation_;   // index = generation - 1
};

}  // namespace loramux
