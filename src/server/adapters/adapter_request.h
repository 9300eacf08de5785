// Request and response bodies of the routes that load and unload adapters, in the formats of vLLM and SGLang.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/adapters/adapter_admin.h"

namespace loramux {

// Parse the body of a request to load or unload an adapter. A missing name or path is kInvalidArgument with param
// "lora_name". Unknown fields are ignored.
Result<AdapterAdmin::LoadRequest> ParseLoadRequest(std::string_view body);
Result<std::string> ParseUnloadRequest(std::string_view body);

// Returns {"error":{...}} for an operation that failed. As in vLLM, the type is `InvalidUserInput` if the error is
// about the adapter's name.
std::string AdapterErrorBody(const Error& error);
// Returns {"success","error_message","loaded_adapters"}. `error` null: success. `loaded` maps names to paths.
std::string SglangBody(const Error* error, const std::map<std::string, std::string>& loaded);

}  // namespace loramux
