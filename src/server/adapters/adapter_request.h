// Request and response bodies of the routes that load and unload adapters, in the formats of vLLM, SGLang and
// SageMaker.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "server/adapters/adapter_admin.h"

namespace loramux {

// Parse the body of a request to load or unload an adapter. A missing name or path is kInvalidArgument with param
// "lora_name". Unknown fields are ignored.
Result<AdapterAdmin::LoadRequest> ParseLoadRequest(std::string_view body);
Result<std::string> ParseUnloadRequest(std::string_view body);
// The same for SageMaker's {"name", "src", "preload", "pin"}, which is here a load without `replace`.
Result<AdapterAdmin::LoadRequest> ParseSageMakerRequest(std::string_view body);
// Error: the digest is neither empty nor 64 hexadecimal digits in lower case.
Status CheckDigestText(std::string_view digest);

// Headers of responses to requests and to loads: the content that the answer comes from (AdapterFile::digest), and the
// version that it begins with (WeightVersionOf). Absent for the base model.
inline constexpr const char* kAdapterDigestHeader = "X-Loramux-Adapter-Digest";
inline constexpr const char* kWeightVersionHeader = "X-Loramux-Weight-Version";
// Both, for a version.
std::vector<std::pair<std::string, std::string>> VersionHeaders(const AdapterVersion& version);

// Returns {"error":{...}} for an operation that failed. As in vLLM, the type is `InvalidUserInput` if the error is
// about the adapter's name.
std::string AdapterErrorBody(const Error& error);
// Returns {"success","error_message","loaded_adapters"}. `error` null: success. `loaded` maps names to paths.
std::string SglangBody(const Error* error, const std::map<std::string, std::string>& loaded);

}  // namespace loramux
