// The cache of models as Hugging Face's libraries keep it, so that each file is on the disk once:
//   models--ORG--NAME/refs/REVISION           the id of a commit
//   models--ORG--NAME/snapshots/COMMIT/FILE   a link to the blob
//   models--ORG--NAME/blobs/DIGEST            a file's content; DIGEST.incomplete while it is downloaded
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "hub/repo_files.h"
#include "hub/repo_name.h"

namespace loramux {

class HubCache {
 public:
  // `root` need not exist.
  explicit HubCache(std::filesystem::path root) : root_(std::move(root)) {}

  // The folder of the snapshot that the revision names, if all that serving needs is there. nullopt: it is not.
  std::optional<std::filesystem::path> Find(const RepoName& repo) const;
  // Where the content of a file is, or is to be. Makes the folder.
  Result<std::filesystem::path> BlobPath(const RepoName& repo, const RepoFile& file) const;
  // Links the files, which are there, into the snapshot, and then lets the revision name it. Returns its folder.
  Result<std::filesystem::path> Publish(const RepoName& repo, const RepoFiles& files) const;

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path FolderOf(const RepoName& repo) const;

  const std::filesystem::path root_;
};

// Whether a folder holds a model or an adapter with all parts of its weights.
bool IsCompleteSnapshot(const std::filesystem::path& folder);

}  // namespace loramux
