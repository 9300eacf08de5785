// The bodies of the routes that load and unload adapters, and their replies, in vLLM's and in SGLang's shapes.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/adapter_admin.h"

namespace loramux {

// Both tell missing fields by kInvalidArgument with the param "lora_name". Unknown fields are ignored.
Result<AdapterAdmin::LoadRequest> ParseLoadRequest(std::string_view body);
Result<std::string> ParseUnloadRequest(std::string_view body);

// {"error":{...}} for an operation that failed; `InvalidUserInput` where the name is at fault, as vLLM has it.
std::string AdapterErrorBody(const Error& error);
// {"success","error_message","loaded_adapters"}; `error` null: success.
std::string SglangBody(const Error* error, const std::map<std::string, std::string>& loaded);

}  // namespace loramux
