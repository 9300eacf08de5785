#include "server/adapters/adapter_request.h"

#include <limits>

#include "auth/error_body.h"
#include "http/error_status.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr JsonLimits kLimits = {.max_depth = 8, .max_values = 256};

Result<Json> ParseObject(std::string_view body) {
  ASSIGN_OR_RETURN(Json json, ParseJson(body, kLimits));
  if (!json.is_object())
    return InvalidArgument("The request body: expected a JSON object, found " + DescribeJson(json));
  return json;
}

}  // namespace

Result<AdapterAdmin::LoadRequest> ParseLoadRequest(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  FieldReader fields(json, "");
  AdapterAdmin::LoadRequest request;
  fields.String("lora_name", request.name);
  fields.String("lora_path", request.path);
  fields.Boolean("load_inplace", request.replace);
  fields.Boolean("pinned", request.pinned);
  fields.String("lora_digest", request.digest);
  bool fused_experts = false;  // the tensors tell
  fields.Boolean("is_3d_lora_weight", fused_experts);
  if (!fields.ok()) return fields.error();
  if (request.name.empty() || request.path.empty()) {
    return InvalidArgument("Both 'lora_name' and 'lora_path' must be provided.", "lora_name");
  }
  RETURN_IF_ERROR(CheckDigestText(request.digest));
  return request;
}

Result<AdapterAdmin::LoadRequest> ParseSageMakerRequest(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  FieldReader fields(json, "");
  AdapterAdmin::LoadRequest request;
  bool preload = true;
  fields.String("name", request.name);
  fields.String("src", request.path);
  fields.Boolean("preload", preload);
  fields.Boolean("pin", request.pinned);
  if (!fields.ok()) return fields.error();
  if (request.name.empty() || request.path.empty()) {
    return InvalidArgument("expected `name` and `src`, found only one of them or none", "name");
  }
  return request;
}

Status CheckDigestText(std::string_view digest) {
  constexpr std::size_t kDigestDigits = 64;
  const bool hexadecimal = digest.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (digest.empty() || (digest.size() == kDigestDigits && hexadecimal)) return Ok{};
  return InvalidArgument("lora_digest: expected 64 hexadecimal digits in lower case, found " +
                             std::to_string(digest.size()) + " characters",
                         "lora_digest");
}

std::vector<std::pair<std::string, std::string>> VersionHeaders(const AdapterVersion& version) {
  return {{kAdapterDigestHeader, version.file.digest}, {kWeightVersionHeader, WeightVersionOf(version)}};
}

Result<std::string> ParseUnloadRequest(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  FieldReader fields(json, "");
  std::string name;
  std::int64_t id = 0;
  fields.String("lora_name", name);
  const bool has_id = fields.Integer("lora_int_id", 0, std::numeric_limits<std::int64_t>::max(), id);
  if (!fields.ok()) return fields.error();
  if (name.empty() && has_id) {
    return InvalidArgument("lora_int_id: adapters have names here and no numbers; send 'lora_name'", "lora_name");
  }
  if (name.empty()) return InvalidArgument("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name");
  return name;
}

std::string AdapterErrorBody(const Error& error) {
  const int status = HttpStatus(error);
  if (status != 400 || error.param != "lora_name") return ErrorBody(status, error.message, error.param);
  return DumpJson(
      {{"error",
        {{"message", error.message}, {"type", "InvalidUserInput"}, {"param", error.param}, {"code", status}}}});
}

std::string SglangBody(const Error* error, const std::map<std::string, std::string>& loaded) {
  Json adapters = Json::object();
  for (const auto& [name, path] : loaded) adapters[name] = path;
  return DumpJson({{"success", error == nullptr},
                   {"error_message", error == nullptr ? "" : error->message},
                   {"loaded_adapters", std::move(adapters)}});
}

}  // namespace loramux
