// The registry of adapters: names, immutable generations and files. It knows nothing of memory (see
// residency/adapter_residency.h).
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
#include <utility>
#include <vector>

#include "adapter/layout.h"
#include "base/ids.h"
#include "base/result.h"
#include "formats/adapter_config.h"

namespace loramux {

struct AdapterText;  // what an adapter's folder says of prompts and answers; a room above defines it

// One immutable version of an adapter. Shared ownership: requests in flight keep it and its open file alive after its
// name is gone.
struct AdapterVersion {
  AdapterGeneration generation;
  std::string name;
  std::filesystem::path path;  // as the operator gave it
  AdapterFile file;
  AdapterLayout layout;  // where its rows lie in pages
  std::int64_t created_unix_seconds = 0;
  std::optional<RoundingError> rounding;    // error of rows in 8 bits; nullopt: they are not, or it is a composite
  std::string warning;                      // what may be wrong with it, for the operator; empty: nothing
  std::shared_ptr<const void> held;         // what must live as long as its files are used; may be null
  std::shared_ptr<const AdapterText> text;  // null: nothing is of its own
  std::string text_digest;                  // digest of the files that `text` was read from; empty: there are none
  // In a composite (AdapterRegistry::Compose): the adapters that it adds up. Otherwise empty.
  std::vector<std::shared_ptr<const AdapterVersion>> parts;

  // The name of the adapter that its use is counted for: of a composite, the first part's.
  const std::string& account() const { return parts.empty() ? name : parts.front()->name; }
};

// Returns "GENERATION:DIGEST", by which answers name the weights that computed them. The generation counts this
// process's loads; the digest is the same wherever the content is.
std::string WeightVersionOf(const AdapterVersion& version);

// One of the adapters of a composite.
struct WeightedAdapter {
  std::shared_ptr<const AdapterVersion> version;
  double weight = 1;  // factor of its products
};

// Where an adapter comes from whose files are not where the operator said, because it was downloaded.
struct AdapterOrigin {
  std::string source;                // AdapterVersion::path; empty: the path itself
  std::shared_ptr<const void> held;  // AdapterVersion::held
};

// Maps names to adapter generations. Thread-safe. Generations are assigned in ascending order and never reused.
//
// A name stands for one generation at a time. Publish and Remove change this atomically and retire the generation that
// loses the name. Requests that resolved the name before continue with the retired generation; no other request gets
// it. The registry itself owns only generations that have a name, so the last request that holds a retired generation
// frees its file and layout.
class AdapterRegistry {
 public:
  // Completes a version that was opened in `directory`: its text and warning. Refuses it by an error. `check` is asked
  // about each file. Must be thread-safe.
  using Complete = std::function<Status(const ModelConfig& model, AdapterVersion& version,
                                        const std::filesystem::path& directory, const OpenedFileCheck& check)>;

  // Settings for all adapters of the registry.
  struct Options {
    std::size_t page_bytes = 0;         // page size of the pools for the adapters
    DType base_dtype = DType::kBF16;    // type of the base model's weights
    std::optional<DType> forced_dtype;  // --lora-dtype; if unset, ChooseAdapterDType decides
    std::int64_t max_rank = 4096;       // --max-lora-rank
    ModelPart part;                     // part of the model, and so of its adapters, that this process computes
    // Names of the base model besides base_names, such as its path (NamesOfModel). Adapters that were trained on a
    // model of another name get a warning. Empty: their base models are not compared.
    std::vector<std::string> model_names;
    // Compares an opened adapter with the base model's weights, and computes what depends on them
    // (AdapterFile::vectors); may be empty. Must be thread-safe.
    std::function<Status(AdapterFile&)> meet_base;
    Complete complete;  // may be empty
    // Called after a version got its name, on the thread that published it; may be empty. It may be retired by then.
    std::function<void(const std::shared_ptr<const AdapterVersion>&)> on_publish;
    // Called after a generation was retired, on the thread that retired it; may be empty.
    std::function<void()> on_retire;
  };
  // `base_names` are the names of the base model; adapters may not use them.
  AdapterRegistry(ModelConfig model, std::vector<std::string> base_names, Options options);
  std::int64_t max_rank() const { return options_.max_rank; }

  // Prepare, then Publish under a name that must be free.
  Result<std::shared_ptr<const AdapterVersion>> Register(const std::string& name, const std::filesystem::path& path,
                                                         std::int64_t now_unix_seconds);

  // Opens and validates the adapter in `path`. Assigns a generation, but does not give it the name yet. May block on
  // the disk, so call it off the engine thread. `opened` checks each file before it is read. Errors: a name that is
  // empty, contains a comma or a control character, exceeds 256 bytes or belongs to the base model; any error of
  // OpenAdapter; a rank above max_rank; a row that does not fit in a page.
  Result<std::shared_ptr<const AdapterVersion>> Prepare(const std::string& name, const std::filesystem::path& path,
                                                        std::int64_t now_unix_seconds,
                                                        const OpenedFileCheck& opened = {}, AdapterOrigin origin = {});

  // Checks the adapter in `path` as Prepare does, but without reading its weights: milliseconds. Returns how many
  // classes its head has; 0: it has none. Errors: as Prepare.
  Result<std::int64_t> Check(const std::string& name, const std::filesystem::path& path,
                             const OpenedFileCheck& opened = {}) const;

  // Makes the version's name stand for this version. If the name is taken, `replace` retires its previous generation;
  // without `replace` a taken name is an error. REQUIRES: the version was made by Prepare and is not retired.
  Result<std::shared_ptr<const AdapterVersion>> Publish(std::shared_ptr<const AdapterVersion> version, bool replace);
  // Publishes a version that Prepare did not make: checks its name and assigns a generation. (The simulator's versions
  // have a layout but no file.)
  Result<std::shared_ptr<const AdapterVersion>> Commit(std::shared_ptr<AdapterVersion> version, bool replace = false);
  // Removes the name and retires its generation, which is returned. Error: kNotFound.
  Result<std::shared_ptr<const AdapterVersion>> Remove(std::string_view name);
  // Retires a prepared version that will not be published.
  void Discard(const AdapterVersion& version);

  // Several adapters in one request are a composite: an adapter of its own generation, digest and pages, which adds
  // what they do (JoinAdapters). It has no name in the registry; its text is that of the first part that has any. The
  // registry keeps the kMaxComposites that were used last. A part that is retired retires its composites.
  static constexpr std::size_t kMaxComposites = 32, kMaxWeightedAdapters = 8;
  // Makes the composite of the parts, in their order, unless there is one. Reads all their weights; one composite is
  // made at a time. Errors: a part is retired (kUnavailable: resolve its name again); JoinAdapters; as Prepare for
  // ranks and rows.
  Result<std::shared_ptr<const AdapterVersion>> Compose(const std::vector<WeightedAdapter>& parts,
                                                        std::int64_t now_unix_seconds);
  // The composite of these parts; null: there is none yet.
  std::shared_ptr<const AdapterVersion> FindComposite(const std::vector<WeightedAdapter>& parts) const;

  // For the engine: appends the generations that were retired since the last call.
  void TakeRetired(std::vector<AdapterGeneration>& retired);
  // Whether the generation is retired; also true for generations that have been freed.
  bool IsRetired(AdapterGeneration generation) const;

  // The version that `name` stands for. A name of the base model gives a null pointer in an ok Result; an unknown name
  // gives kNotFound.
  Result<std::shared_ptr<const AdapterVersion>> Resolve(std::string_view name) const;
  // The version of this generation; null if it has been freed.
  std::shared_ptr<const AdapterVersion> Find(AdapterGeneration generation) const;
  // All named versions, ordered by name.
  std::vector<std::shared_ptr<const AdapterVersion>> List() const;

  const std::vector<std::string>& base_names() const { return base_names_; }
  const ModelConfig& model() const { return model_; }

  // Error: not a valid name for an adapter (see Prepare).
  Status CheckName(const std::string& name) const;
  // The number of generations not yet freed, for tests.
  std::size_t held_generations() const;

 private:
  // A generation; its version is not owned.
  struct Entry {
    std::weak_ptr<const AdapterVersion> version;
    bool retired = false;
  };
  // A composite with what it was made of.
  struct Composite {
    std::vector<std::pair<AdapterGeneration, double>> parts;
    std::shared_ptr<const AdapterVersion> version;
  };
  static Error NameTaken(const std::string& name);
  // Opens and checks the adapter; the result has no generation yet.
  Result<std::shared_ptr<AdapterVersion>> Open(const std::string& name, const std::filesystem::path& path,
                                               const OpenedFileCheck& opened) const;
  Result<AdapterLayout> LayOut(const std::string& name, const std::filesystem::path& path,
                               const AdapterFile& file) const;
  bool IsBaseName(std::string_view name) const;
  bool IsOfAnotherModel(std::string_view trained_on) const;
  std::string BaseModel() const;
  Error Explain(Error error, const std::filesystem::path& path, const OpenedFileCheck& opened) const;
  // The following REQUIRE mutex_.
  void Enter(const std::shared_ptr<AdapterVersion>& version);
  void Retire(AdapterGeneration generation);
  void RetireOne(AdapterGeneration generation);
  void ForgetUnheld();

  const ModelConfig model_;
  const std::vector<std::string> base_names_;
  const Options options_;
  std::mutex composing_;  // held while one is made; taken before mutex_
  mutable std::mutex mutex_;
  mutable std::vector<Composite> composites_;  // the last used at the end
  std::map<std::string, std::shared_ptr<const AdapterVersion>, std::less<>> by_name_;
  std::map<AdapterGeneration, Entry> entries_;
  std::vector<AdapterGeneration> retired_;           // not yet taken by the engine
  std::vector<AdapterGeneration> retired_and_held_;  // as of the last ForgetUnheld
  std::size_t forget_at_ = 16;                       // size of retired_and_held_ that triggers ForgetUnheld
  std::uint32_t last_generation_ = 0;
};

}  // namespace loramux
