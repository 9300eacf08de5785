// Adapters at run time: load, reload, unload, pin, load on first use, and back again after a restart. What the HTTP
// routes (adapter_service.h) and the completion endpoints (AdapterFinder) call.
//
// Every change is made in this order: the new adapter is opened and validated without a name; it is pinned to the
// device if asked; the change is journalled; the name is switched. So a failure at any point leaves everything as it
// was, and what was acknowledged is on the disk.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "adapter/allowed_roots.h"
#include "adapter/journal.h"
#include "adapter/registry.h"
#include "base/clock.h"
#include "server/adapter_directory.h"
#include "server/adapter_finder.h"

namespace loramux {

// Engine::SetPinned.
using SetPinned =
    std::function<void(std::shared_ptr<const AdapterVersion> version, bool pinned, std::function<void(Status)> done)>;

// It owns directory and journal; the others must outlive it.
struct AdapterAdminParts {
  const Clock* clock = nullptr;
  AdapterRegistry* registry = nullptr;
  AllowedRoots roots;                           // with the adapter directory
  std::unique_ptr<AdapterDirectory> directory;  // null: none
  std::unique_ptr<AdapterJournal> journal;      // null: nothing survives a restart
  SetPinned set_pinned;
};

// Thread-safe. All methods but Loaded block: on the disk, on another operation on the same name, and Load on the device
// if the adapter is to be pinned. The engine must be running.
class AdapterAdmin final : public AdapterFinder {
 public:
  // Names that the registry holds now come from flags.
  explicit AdapterAdmin(AdapterAdminParts parts);

  // Loads what the journal holds, and takes away the names that it hides. An adapter that is gone, has changed or
  // cannot be read is logged as an error, listed in Failed, and stays in the journal; its name answers with the reason.
  // Where the reason may pass (the disk, memory), Find tries again, at most every two seconds.
  void Restore();

  struct LoadRequest {
    std::string name, path;
    bool replace = false;  // a loaded name is reloaded instead of refused
    bool pinned = false;
  };
  enum class LoadOutcome { kLoaded, kReloaded, kUnchanged };  // kUnchanged: same path, same content
  Result<LoadOutcome> Load(const LoadRequest& request);
  // The name is free at once; running and queued requests end as they began. A name that flags or the adapter directory
  // offer stays away until it is loaded again.
  Status Unload(const std::string& name);

  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override;
  std::vector<OfferedAdapter> Offered() override;

  // Name and path of what is registered, in order of name.
  std::map<std::string, std::string> Loaded() const;
  // Names that could not be restored, and why.
  std::map<std::string, std::string> Failed() const;

 private:
  class NameGuard;  // one operation a name at a time
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
  Status Pin(std::shared_ptr<const AdapterVersion> version, bool pinned);
  Status Journal(const AdapterVersion& version, bool pinned);
  Status PinAndJournal(const std::shared_ptr<const AdapterVersion>& version, bool pinned);
  Result<LoadOutcome> ChangePin(const std::shared_ptr<const AdapterVersion>& version, bool pinned);
  Status RestoreOne(const JournaledAdapter& adapter);
  Result<std::shared_ptr<const AdapterVersion>> RestoreAgain(const std::string& name);
  void RememberFailure(const JournaledAdapter& adapter, const Error& error);
  bool HasFailed(const std::string& name) const;
  Result<std::shared_ptr<const AdapterVersion>> Discover(const std::string& name);
  std::optional<Error> RememberedRefusal(const std::string& name);
  void RememberRefusal(const std::string& name, const Error& error);
  bool IsOffered(const std::string& name) const;
  void Forget(const std::string& name);

  AdapterAdminParts parts_;
  const std::set<std::string, std::less<>> from_flags_;

  mutable std::mutex mutex_;
  std::condition_variable name_free_;
  std::set<std::string, std::less<>> busy_;
  std::set<std::string, std::less<>> pinned_, hidden_;
  std::map<std::string, Failure, std::less<>> failed_;
  std::map<std::string, Refusal, std::less<>> refusals_;
};

}  // namespace loramux
