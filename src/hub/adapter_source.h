// Names of adapters that are not on this machine: s3://BUCKET/PREFIX and hf://ORG/NAME[@REVISION]; and which of them a
// client may load.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/repo_name.h"

namespace loramux {

struct AdapterSource {
  enum class Kind { kS3, kHub };
  Kind kind = Kind::kS3;
  std::string text;            // the whole name, without a slash at its end: what errors and the journal show
  std::string bucket, prefix;  // kS3 alone; the files are at PREFIX/NAME, or at NAME where PREFIX is empty
  RepoName repo;               // kHub alone
};

// True for a text of the form SCHEME://..., except file://: no path of this machine.
bool IsRemoteSource(std::string_view text);

// The bucket or organisation of a source: what downloads share a server's patience by.
const std::string& OriginOf(const AdapterSource& source);

// The path of a source that begins with file://; any other text as it is.
std::string_view LocalPathOf(std::string_view text);

// Errors (kInvalidArgument, param "lora_path") say what was expected. A bucket has 1 to 63 letters, digits, '.', '_'
// and
// '-', and begins with a letter or digit. A prefix has at most 900 printable bytes, and no part of it is empty, "." or
// "..".
Result<AdapterSource> ParseAdapterSource(std::string_view text);

// The sources that clients may load from: prefixes, which count by whole parts. So s3://bucket/team allows
// s3://bucket/team/x and not s3://bucket/team-x; hf://org allows every repository of the organisation. Immutable.
class AllowedSources {
 public:
  // No prefixes: nothing is allowed.
  AllowedSources() = default;
  // Error: a prefix that is neither s3://BUCKET[/PREFIX] nor hf://ORG[/NAME[@REVISION]].
  static Result<AllowedSources> Create(const std::vector<std::string>& prefixes);
  bool empty() const { return prefixes_.empty(); }
  // Error (kInvalidArgument): no prefix allows it; the message names the flag.
  Status Check(const AdapterSource& source) const;

 private:
  std::vector<std::string> prefixes_;  // without slashes at their ends
};

}  // namespace loramux
