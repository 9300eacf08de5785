// The flags that `serve`, `generate` and `profile` share, and the start of a runtime from them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "hub/remote_adapters.h"
#include "hub/snapshot.h"
#include "runtime/runtime.h"
#include "tools/command_line/command_line.h"
#include "tools/model_flags.h"
#include "tools/remote_flags.h"
#include "tools/system_flags.h"

namespace loramux {

// The largest --adapter-tokens. Commands that look at one adapter take as many.
inline constexpr std::int64_t kMostAdapterTokens = 1 << 16;

struct RuntimeFlags {
  std::string model_dir;   // folder of the base model
  std::string model_name;  // the model as it was asked for, where model_dir became a folder of the cache
  std::string tokenizer;   // directory of the tokenizer; empty: the model's
  // Each a file or the template itself, for all models, or NAME=FILE for one; empty: the tokenizer's, and adapters'
  // own.
  std::vector<std::string> chat_templates;
  std::string content_format = "auto";  // form of the content of messages: "auto", "string" or "openai"
  std::string dtype = "auto";
  SnapshotOptions hub;   // where models come from that are named and not given as a folder; cache empty: Hugging Face's
  std::string revision;  // revision of the base model; empty: what its name says, or main
  // What flags set as it is, and the device of --device after OpenDeviceOf. RuntimeOptionsOf adds the rest.
  RuntimeOptions options;
  std::vector<std::string> given;  // CommandLine::TellGiven
  std::vector<std::string> served_model_names;
  std::vector<std::string> lora_modules;  // name=path, or {"name": ..., "path": ...}
  std::string adapter_dir;
  RemoteAdapterOptions remote;                      // its directory may be empty: the user's cache
  std::shared_ptr<RemoteAdapters> remote_adapters;  // after OpenRemoteAdapters; null: no source was named
  std::string device = "auto";                      // only of commands with AddDeviceFlag
  bool batch_invariant = false;                     // only of commands with AddDeviceFlag
  std::string device_memory = "auto";
  std::string host_memory = "auto";
  std::string weights = "auto", embedding_weights = "auto";
  std::string kv_dtype = "auto", lora_dtype = "auto";
  std::int64_t adapter_tokens = 256;
  std::string preset;     // FindPreset; empty: none
  SettingFlags settings;  // beside the preset
  std::string lora_variant = "mbgmv";
  std::string length_proxy;                 // directory of the model for --length-predictor proxy; of serve
  std::string profile;                      // file of `loramux profile`, of serve; empty: none
  std::vector<std::string> tenant_weights;  // name=weight; of serve
  std::int64_t max_cpu_loras = 0;
  int assist_cores = 0;
  std::string log_level = "info", log_format = "text";

  // Where the tokenizer and the chat template are.
  const std::string& text_directory() const { return tokenizer.empty() ? model_dir : tokenizer; }
};

// Adds the flags to a subcommand.
void AddRuntimeFlags(CommandLine& line, RuntimeFlags& flags);
// Adds the flags that say who is served first.
void AddScheduleFlags(CommandLine& line, RuntimeFlags& flags);
// Adds --device, for commands that call OpenDeviceOf.
void AddDeviceFlag(CommandLine& line, RuntimeFlags& flags);

// Opens the device that --device names. First of all, so that a missing one costs no time. Error: says what is missing.
Status OpenDeviceOf(RuntimeFlags& flags);

// How the weights are kept in memory. Error: a device keeps them in floats.
Result<WeightOptions> WeightOptionsOf(const RuntimeFlags& flags);

// The options that the flags stand for. Errors name the flag.
Result<RuntimeOptions> RuntimeOptionsOf(const RuntimeFlags& flags);

struct NamedPath {
  std::string name, path;
};
// The adapters that --lora-modules and --adapter-dir name, in order; a directory entry counts if it holds an
// adapter_config.json. Errors name the flag.
Result<std::vector<NamedPath>> AdaptersOf(const RuntimeFlags& flags);

// Puts folders in place of names as ORG/NAME: of the model, its tokenizer and --lora-modules. Downloads what is
// missing. Sources (s3://, hf://) stay what they are; for them it opens the cache.
Status FetchNamed(RuntimeFlags& flags);

// The names of the base model.
std::vector<std::string> BaseNamesOf(const RuntimeFlags& flags);

// Loads the model with a progress bar on stderr, then registers every adapter. REQUIRES: InitLogging was called.
// `complete` and `recorder`: of RuntimeOptions. Errors name the flag or the file.
Result<std::unique_ptr<Runtime>> StartRuntime(const RuntimeFlags& flags, AdapterRegistry::Complete complete = {},
                                              FlightRecorder* recorder = nullptr);

}  // namespace loramux
