#include "tools/adapter_flags.h"

#include <algorithm>

#include "auth/bearer_key.h"
#include "tools/listen_flags.h"

namespace loramux {

namespace {

// What the journal does not name was not acknowledged, or is no longer loaded.
Result<std::unique_ptr<UploadStore>> OpenUploads(const std::filesystem::path& state_dir,
                                                 const AdapterJournal& journal) {
  std::set<std::filesystem::path> keep;
  for (const auto& [name, adapter] : journal.Adapters()) keep.insert(std::filesystem::path(adapter.path).filename());
  return UploadStore::Open(&OsFileSystem(), state_dir / "uploads", keep);
}

}  // namespace

void AddAdapterFlags(CommandLine& line, AdapterFlags& flags) {
  const std::string group = "Adapters at run time";
  line.Add({.names = "--enable-runtime-lora",
            .target = &flags.enable_runtime_lora,
            .group = group,
            .help = "Serve /v1/load_lora_adapter and /v1/unload_lora_adapter, and SGLang's forms of them",
            .common = true});
  line.Add({.names = "--allowed-adapter-root",
            .target = &flags.allowed_roots,
            .unit = "DIR",
            .group = group,
            .help = "Allow loading adapters from DIR and below. Repeatable; --adapter-dir is always allowed"});
  line.Add(
      {.names = "--allowed-adapter-sources",
       .target = &flags.allowed_sources,
       .unit = "PREFIX",
       .group = group,
       .help = "Allow loading adapters from sources that begin with PREFIX, as in s3://BUCKET/adapters or hf://ORG",
       .comma_list = true});
  line.Add({.names = "--sources-on-request",
            .target = &flags.sources_on_request,
            .group = group,
            .help = "Let requests name an allowed source as their model, which the first one fetches; at most 256"});
  line.Add({.names = "--admin-key-file",
            .target = &flags.admin_key_file,
            .unit = "FILE",
            .group = group,
            .help = "File whose first line is the key that the load and unload routes require",
            .common = true});
  line.Add({.names = "--insecure-no-admin-key",
            .target = &flags.insecure_no_admin_key,
            .group = group,
            .help = "Let the load and unload routes work without a key; only if --host is a loopback address"});
  line.Add({.names = "--state-dir",
            .target = &flags.state_dir,
            .unit = "DIR",
            .group = group,
            .help = "Directory that keeps adapters loaded at run time, uploaded ones with their files, and learned "
                    "output lengths, over restarts"});
  line.Add({.names = "--on-reload",
            .target = &flags.on_reload,
            .unit = "MODE",
            .group = group,
            .help =
                "What becomes of requests on an adapter that is loaded anew under its name: finish on their version, "
                "abort, or continue on the new one from their tokens",
            .choices = {"finish", "abort", "continue"}});
  line.Add({.names = "--adapter-dir-eager",
            .target = &flags.adapter_dir_eager,
            .group = group,
            .help = "Check every adapter of --adapter-dir at the start, and refuse to start if one is broken"});
}

RuntimeFlags EagerAdapters(const RuntimeFlags& runtime, const AdapterFlags& flags) {
  RuntimeFlags eager = runtime;
  if (!flags.adapter_dir_eager) eager.adapter_dir.clear();
  return eager;
}

Result<std::optional<std::string>> AdminKey(const AdapterFlags& flags, const RuntimeFlags& runtime,
                                            const std::string& host) {
  if (!flags.enable_runtime_lora) return std::optional<std::string>();
  if (flags.allowed_roots.empty() && flags.allowed_sources.empty() && runtime.adapter_dir.empty() &&
      flags.state_dir.empty()) {
    return InvalidArgument(
        "--enable-runtime-lora: nothing can be loaded without --allowed-adapter-root DIR (or "
        "--allowed-adapter-sources PREFIX, --adapter-dir, or --state-dir for uploads)",
        "--allowed-adapter-root");
  }
  if (!flags.admin_key_file.empty()) {
    ASSIGN_OR_RETURN(std::string key, ReadKeyFile(flags.admin_key_file, "--admin-key-file"));
    return std::optional(std::move(key));
  }
  if (!flags.insecure_no_admin_key) {
    return InvalidArgument(
        "--enable-runtime-lora: give --admin-key-file FILE, or --insecure-no-admin-key on a machine that only "
        "you use",
        "--admin-key-file");
  }
  if (!IsLoopback(host)) {
    return InvalidArgument("--insecure-no-admin-key: refused with --host " + host +
                               ", which other machines can reach; give "
                               "--admin-key-file FILE",
                           "--insecure-no-admin-key");
  }
  return std::optional(std::string());
}

Result<std::unique_ptr<AdapterAdmin>> OpenAdapterAdmin(const AdapterFlags& flags, const RuntimeFlags& runtime_flags,
                                                       Runtime& runtime) {
  AdapterAdminParts parts;
  parts.clock = &runtime.clock();
  parts.registry = &runtime.registry();
  std::vector<std::filesystem::path> roots(flags.allowed_roots.begin(), flags.allowed_roots.end());
  if (!runtime_flags.adapter_dir.empty()) {
    ASSIGN_OR_RETURN(parts.directory, AdapterDirectory::Open(runtime_flags.adapter_dir, &runtime.clock()));
    roots.emplace_back(runtime_flags.adapter_dir);
  }
  if (!flags.state_dir.empty()) {
    ASSIGN_OR_RETURN(parts.journal, AdapterJournal::Open(&OsFileSystem(), flags.state_dir));
    ASSIGN_OR_RETURN(parts.uploads, OpenUploads(flags.state_dir, *parts.journal));
    roots.push_back(parts.uploads->directory());
  }
  ASSIGN_OR_RETURN(parts.roots, AllowedRoots::Create(roots));
  ASSIGN_OR_RETURN(parts.sources, AllowedSources::Create(flags.allowed_sources));
  parts.sources_on_request = flags.sources_on_request;
  parts.remote = runtime_flags.remote_adapters.get();
  parts.set_pinned = [engine = &runtime.engine()](std::shared_ptr<const AdapterVersion> version, bool pinned,
                                                  std::function<void(Status)> done) {
    engine->SetPinned(std::move(version), pinned, std::move(done));
  };
  if (flags.on_reload != "finish") {
    parts.retarget = [engine = &runtime.engine(), moves = flags.on_reload == "continue"](
                         const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next) {
      engine->Retarget(old, moves ? next : nullptr);
    };
  }
  return std::make_unique<AdapterAdmin>(std::move(parts));
}

}  // namespace loramux
