// Management of adapters at run time: load, reload, unload, pin, load on first use, and restore after a restart. The
// HTTP routes (adapter_service.h) and the completion endpoints (through AdapterFinder) call it.
//
// Every change takes these steps, in this order: open and validate the new adapter without publishing its name; pin it
// to the device if the request says so; write the change to the journal; switch the name, and say so to the requests on
// the version before. A failure at any step leaves everything as it was, and an acknowledged change is on disk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "adapter/allowed_roots.h"
#include "adapter/journal.h"
#include "adapter/registry.h"
#include "auth/fair_work_queue.h"
#include "base/clock.h"
#include "hub/remote_adapters.h"
#include "server/adapters/adapter_checks.h"
#include "server/adapters/adapter_directory.h"
#include "server/adapters/adapter_finder.h"
#include "server/adapters/upload_store.h"

namespace loramux {

// Pins `version` to the device or unpins it, and calls `done` with the outcome; see Engine::SetPinned.
using SetPinned =
    std::function<void(std::shared_ptr<const AdapterVersion> version, bool pinned, std::function<void(Status)> done)>;

// Says to the engine that `next` has taken the name of `old`; see Engine::Retarget.
using Retarget = std::function<void(const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next)>;

// What an AdapterAdmin works with. It owns `directory`, `journal` and `uploads`; what is a plain pointer must outlive
// it.
struct AdapterAdminParts {
  const Clock* clock = nullptr;
  AdapterRegistry* registry = nullptr;
  AllowedRoots roots;  // directories that adapters may be loaded from; includes the adapter directory
  std::unique_ptr<AdapterDirectory> directory;  // --adapter-dir; null: none
  std::unique_ptr<AdapterJournal> journal;      // the journal in --state-dir; null: changes do not survive a restart
  std::unique_ptr<UploadStore> uploads;         // in --state-dir; null: nothing can be uploaded
  RemoteAdapters* remote = nullptr;             // outlives the admin; null: sources are refused
  AllowedSources sources;                       // what may be loaded from `remote`
  bool sources_on_request = false;              // --sources-on-request: requests may name them too
  SetPinned set_pinned;
  Retarget retarget;  // --on-reload; empty: requests end on the version on which they began
};

// Thread-safe. Every method except Loaded and Failed may block: on the disk and on another operation on the same name.
// Load, Restore and Find also wait for the device where they pin an adapter. Load alone waits for the network: of a
// source (hub/adapter_source.h), and before it holds the name. The engine must be running.
class AdapterAdmin final : public AdapterFinder {
 public:
  // REQUIRES: the registry holds exactly the adapters that the command line's flags name.
  explicit AdapterAdmin(AdapterAdminParts parts);
  // Ends downloads.
  ~AdapterAdmin() override;

  // Loads the adapters in the journal, and removes the names that the journal hides. An adapter that is missing, has
  // changed or cannot be read is logged as an error, listed in Failed(), and stays in the journal; requests for its
  // name get the reason. Where the cause may be temporary (an I/O error, lack of memory), Find tries again, at most
  // every two seconds. What has to be downloaded again comes later, on threads of its own.
  void Restore();

  // A request to load the adapter at `path`, a folder, one of uploads() or a source, as `name`.
  struct LoadRequest {
    std::string name, path;
    bool replace = false;  // true: reload a name that is loaded; false: refuse the request
    // Keep the adapter on the device until it is unloaded
    bool pinned = false;
    std::string digest;   // digest that the content must have (AdapterFile::digest); empty: any
    bool journal = true;  // false: the journal does not keep it, because its owner does
  };
  enum class LoadOutcome { kLoaded, kReloaded, kUnchanged };  // kUnchanged: same path and content as loaded
  struct LoadResult {
    LoadOutcome outcome;
    std::shared_ptr<const AdapterVersion> version;  // that the name stands for
  };
  // Loads or reloads an adapter and, if asked, pins it. Errors: a name that is invalid, or loaded already while
  // `replace` is false; a path outside the allowed roots or sources; an adapter that is not valid or has another
  // digest; what RemoteAdapters::Use says; a pin or a journal write that fails. With unchanged content only the pin
  // changes.
  Result<LoadResult> Load(const LoadRequest& request);
  // Removes the name. It is free at once; running and queued requests finish with the version that they began with. A
  // name that comes from flags or from the adapter directory, or that is a permitted source, stays hidden until it is
  // loaded again, also after a restart. Error: kNotFound, if the name is unknown.
  Status Unload(const std::string& name);

  // AdapterFinder. Find also retries adapters that could not be restored, and remembers a failure for two seconds. A
  // name that is a permitted source is fetched on a thread of its own and registered under that name: until then the
  // error is kRateLimited. At most 256 are registered in this way, and 32 fetches of one origin wait or run.
  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override;
  // Offered leaves out adapters of the directory whose files are broken, as far as their headers tell; Broken has them,
  // and those of Failed.
  std::vector<OfferedAdapter> Offered() override;
  std::vector<BrokenAdapter> Broken() override;
  Result<std::shared_ptr<const AdapterVersion>> Compose(const std::vector<WeightedAdapter>& parts) override;

  UploadStore* uploads() const { return parts_.uploads.get(); }

  // Returns name and path of every registered adapter, sorted by name.
  std::map<std::string, std::string> Loaded() const;
  // Returns the names that could not be restored, each with the reason.
  std::map<std::string, std::string> Failed() const;

 private:
  class NameGuard;  // holds a name for one operation at a time
  struct Refusal {
    Error error;
    TimeNs until = 0;
  };
  struct Failure {
    JournaledAdapter adapter;
    Error error;
    TimeNs tried_at = 0;
  };

  Result<std::shared_ptr<const AdapterVersion>> Open(const std::string& name, const std::string& path);
  bool IsSame(const AdapterVersion& old, const AdapterVersion& version) const;
  Result<std::shared_ptr<const AdapterVersion>> OpenRemote(const std::string& name, const std::string& path,
                                                           const std::string& digest, AskSource ask);
  Result<std::shared_ptr<const AdapterVersion>> OpenForLoad(const LoadRequest& request);
  Status Pin(std::shared_ptr<const AdapterVersion> version, bool pinned);
  Status Journal(const AdapterVersion& version, bool pinned);
  Status PinAndJournal(const std::shared_ptr<const AdapterVersion>& version, const LoadRequest& request);
  void Publish(const std::shared_ptr<const AdapterVersion>& version);
  Result<LoadResult> ChangePin(const std::shared_ptr<const AdapterVersion>& version, const LoadRequest& request);
  Status RestoreOne(const JournaledAdapter& adapter);
  Status PublishRestored(const JournaledAdapter& adapter, const std::shared_ptr<const AdapterVersion>& version);
  void FetchLater(const JournaledAdapter& adapter);
  void FetchAndRestore(const JournaledAdapter& adapter);
  void RenewDigest(const JournaledAdapter& adapter, const AdapterVersion& version);
  Result<std::shared_ptr<const AdapterVersion>> RestoreAgain(const std::string& name);
  void RememberFailure(const JournaledAdapter& adapter, const Error& error);
  bool HasFailed(const std::string& name) const;
  Result<std::shared_ptr<const AdapterVersion>> Discover(const std::string& name);
  std::optional<Error> RememberedRefusal(const std::string& name);
  void RememberRefusal(const std::string& name, const Error& error);
  bool IsOffered(const std::string& name) const;
  Result<std::shared_ptr<const AdapterVersion>> FindSource(const std::string& name);
  Status CheckSource(const std::string& name) const;
  void FetchBeside(const std::string& name, const std::string& path, std::function<void()> fetch);
  void FetchAndPublish(const std::string& name);
  std::vector<OfferedAdapter> InDirectory();
  Result<std::int64_t> CheckFiles(const std::string& name, const std::filesystem::path& path) const;
  void Forget(const std::string& name);

  AdapterAdminParts parts_;
  const std::set<std::string, std::less<>> from_flags_;
  AdapterChecks checks_;

  mutable std::mutex mutex_;
  std::condition_variable name_free_;
  std::set<std::string, std::less<>> busy_;
  std::set<std::string, std::less<>> pinned_, hidden_;
  std::set<std::string, std::less<>> fetched_;  // names of sources that requests brought
  std::map<std::string, Failure, std::less<>> failed_;
  std::map<std::string, Refusal, std::less<>> refusals_;
  std::map<std::string, std::string, std::less<>> fetching_;  // names whose fetch waits or runs, and from which origin
  std::atomic<bool> ending_ = false;
  std::optional<FairWorkQueue> downloads_;  // by origin; without parts_.remote none. Last: it ends first
};

}  // namespace loramux
