// Names of repositories on a model hub: ORG/NAME, with @REVISION where it is not the main one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loramux {

struct RepoName {
  std::string organisation, name;
  std::string revision = "main";  // a branch, a tag or a commit
  // "ORG/NAME".
  std::string full() const { return organisation + "/" + name; }
};

// nullopt: it is no such name. Each part has 1 to 96 letters, digits, '-', '_' and '.', and begins with none of the
// last three; so no name leaves a folder that it is joined to.
std::optional<RepoName> ParseRepoName(std::string_view text);

// True for 40 hexadecimal digits: the id of a commit.
bool IsCommit(std::string_view text);

}  // namespace loramux
