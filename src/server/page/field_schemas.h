// The JSON types of the served fields of the table in api/openai/request_fields.h, for openapi.json.
#pragma once

#include <span>
#include <string_view>

#include "server/api/openai/request_fields.h"

namespace loramux {

// The type of a served field, where the endpoints do not differ.
struct FieldSchema {
  std::string_view name;
  std::string_view schema;  // a JSON schema
  FieldEndpoints endpoints = kAllBodies;
};

// Returns all of them. Every served field of RequestFields has exactly one for each of its endpoints.
std::span<const FieldSchema> FieldSchemas();
// Returns the schema of a served field at one endpoint; empty if there is none.
std::string_view SchemaOf(std::string_view field, FieldEndpoints endpoint);

}  // namespace loramux
