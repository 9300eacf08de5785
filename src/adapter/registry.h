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

// One immutable version of an adapter. Shared: requests in flight keep it, and its open file, alive after its name is
// gone.
struct AdapterVersion {
  AdapterGeneration generation;
  std::string name;
  std::filesystem::path path;  // as the operator gave it
  AdapterFile file;
  AdapterLayout layout;  // where its rows lie in pages
  std::int64_t created_unix_seconds = 0;
};

// Names of adapters, thread-safe. Generations are handed out in ascending order and never reused. A name stands for one
// generation at a time; Publish and Remove change that atomically, and retire the generation that the name leaves: who
// holds it (a request that resolved the name before) goes on with it, nobody else gets it. The registry itself holds
// only what has a name, so a retired generation's file and layout go with its last holder.
class AdapterRegistry {
 public:
  struct Options {
    std::size_t page_bytes = 0;         // of the pools that the adapters will live in
    DType base_dtype = DType::kBF16;    // of the base model's weights
    std::optional<DType> forced_dtype;  // --lora-dtype; otherwise ChooseAdapterDType decides
    std::int64_t max_rank = 4096;       // --max-lora-rank
    // A further check of an opened adapter by whoever has the base's weights; empty: none. Any thread may call it.
    std::function<Status(const AdapterFile&)> check;
    // called after a generation was retired, on the thread that did it; may be empty
    std::function<void()> on_retire;
  };
  // `base_names` are what the base model answers to; adapters may not take them.
  AdapterRegistry(ModelConfig model, std::vector<std::string> base_names, Options options);

  // Prepare, then Publish under a new name.
  Result<std::shared_ptr<const AdapterVersion>> Register(const std::string& name, const std::filesystem::path& path,
                                                         std::int64_t now_unix_seconds);

  // Opens and validates the adapter in `path`; gives it a generation but no name yet. May block on the disk; call off
  // the engine thread. `opened` looks at each file before it is read. Errors: a name that is empty, has a comma or a
  // control character, exceeds 256 bytes or is the base model's; whatever OpenAdapter refuses; a rank above max_rank; a
  // row that does not fit a page.
  Result<std::shared_ptr<const AdapterVersion>> Prepare(const std::string& name, const std::filesystem::path& path,
                                                        std::int64_t now_unix_seconds,
                                                        const OpenedFileCheck& opened = {});

  // Lets the version's name stand for it from now on. With `replace` the generation that the name stood for (if any) is
  // retired, otherwise a taken name is an error. REQUIRES: made by Prepare, not retired.
  Result<std::shared_ptr<const AdapterVersion>> Publish(std::shared_ptr<const AdapterVersion> version, bool replace);
  // Publishes a version that Prepare did not make (the simulator's have a layout and no file): checks its name and
  // gives it a generation.
  Result<std::shared_ptr<const AdapterVersion>> Commit(std::shared_ptr<AdapterVersion> version, bool replace = false);
  // Takes the name away and retires its generation, which is returned. Error: kNotFound.
  Result<std::shared_ptr<const AdapterVersion>> Remove(std::string_view name);
  // Retires a prepared version that will not be published.
  void Discard(const AdapterVersion& version);

  // For the engine. Appends the generations that were retired since the last call.
  void TakeRetired(std::vector<AdapterGeneration>& retired);
  // True also for generations that nobody holds any more.
  bool IsRetired(AdapterGeneration generation) const;

  // The version that `name` stands for now. Base names give a null pointer inside an ok Result; unknown names
  // kNotFound.
  Result<std::shared_ptr<const AdapterVersion>> Resolve(std::string_view name) const;
  // Null if nobody holds the generation (any more).
  std::shared_ptr<const AdapterVersion> Find(AdapterGeneration generation) const;
  // In order of name.
  std::vector<std::shared_ptr<const AdapterVersion>> List() const;

  const std::vector<std::string>& base_names() const { return base_names_; }
  const ModelConfig& model() const { return model_; }

  // Error: no name for an adapter (see Prepare).
  Status CheckName(const std::string& name) const;
  // Generations that somebody holds; for tests of what is kept.
  std::size_t held_generations() const;

 private:
  struct Entry {
    std::weak_ptr<const AdapterVersion> version;
    bool retired = false;
  };
  static Error NameTaken(const std::string& name);
  Result<std::shared_ptr<AdapterVersion>> Open(const std::string& name, const std::filesystem::path& path,
                                               const OpenedFileCheck& opened) const;
  bool IsBaseName(std::string_view name) const;
  // All REQUIRE mutex_.
  void Enter(const std::shared_ptr<AdapterVersion>& version);
  void Retire(AdapterGeneration generation);
  void ForgetUnheld();

  const ModelConfig model_;
  const std::vector<std::string> base_names_;
  const Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const AdapterVersion>, std::less<>> by_name_;
  std::map<AdapterGeneration, Entry> entries_;
  std::vector<AdapterGeneration> retired_;           // not yet taken by the engine
  std::vector<AdapterGeneration> retired_and_held_;  // held as of the last ForgetUnheld
  std::size_t forget_at_ = 16;                       // size of it at which ForgetUnheld looks again
  std::uint32_t last_generation_ = 0;
};

}  // namespace loramux
