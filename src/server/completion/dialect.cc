#include "server/completion/dialect.h"

#include "auth/error_body.h"
#include "http/json_reader.h"

namespace loramux {

std::string WeightVersionField(const ServedModel& model) {
  if (model.weight_version.empty()) return {};
  return ",\"weight_version\":" + DumpJson(model.weight_version);
}

std::string Dialect::ErrorBody(int status, std::string_view message, std::string_view param) const {
  return loramux::ErrorBody(status, message, param);
}

// Errors begin with the field: "`stop`: expected ...". The field may be a part of the named one: "stop[2]".
Error Dialect::InOwnNames(Error error) const {
  for (const FieldName& name : names()) {
    if (!error.param.starts_with(name.internal)) continue;
    const char next = error.param.size() == name.internal.size() ? '.' : error.param[name.internal.size()];
    if (next != '.' && next != '[') continue;
    error.param.replace(0, name.internal.size(), name.own);
    if (error.message.starts_with("`" + std::string(name.internal))) {
      error.message.replace(1, name.internal.size(), name.own);
    }
    break;
  }
  return error;
}

}  // namespace loramux
