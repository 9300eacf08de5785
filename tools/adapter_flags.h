// The flags of adapters at run time, and what serves them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/runtime.h"
#include "server/adapters/adapter_admin.h"
#include "tools/command_line/command_line.h"
#include "tools/runtime_flags.h"

namespace loramux {

struct AdapterFlags {
  bool enable_runtime_lora = false;
  std::vector<std::string> allowed_roots, allowed_sources;
  bool sources_on_request = false;
  std::string admin_key_file;
  bool insecure_no_admin_key = false;
  std::string state_dir;
  std::string on_reload = "finish";
  bool adapter_dir_eager = false;
};

void AddAdapterFlags(CommandLine& line, AdapterFlags& flags);

// The flags for StartRuntime: without --adapter-dir, whose adapters are opened when they are first asked for, unless
// --adapter-dir-eager is given.
RuntimeFlags EagerAdapters(const RuntimeFlags& runtime, const AdapterFlags& flags);

// The admin key; nullopt if runtime loading is off, empty with --insecure-no-admin-key. Errors: runtime loading without
// a key on a host that is not this machine alone, or without a directory to load from; a bad key file.
Result<std::optional<std::string>> AdminKey(const AdapterFlags& flags, const RuntimeFlags& runtime,
                                            const std::string& host);

// Opens the directory and the journal. The engine must run before Restore. `runtime` must outlive the result.
Result<std::unique_ptr<AdapterAdmin>> OpenAdapterAdmin(const AdapterFlags& flags, const RuntimeFlags& runtime_flags,
                                                       Runtime& runtime);

}  // namespace loramux
