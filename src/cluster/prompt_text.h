// The text of a request whose blocks tell which beginnings of prompts a server has cached (prefix_blocks.h). Server and
// router take it from the same body by the same rule, so that their fingerprints agree.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace loramux {

// The beginning of the prompt in a request's parsed body, at most kMaxPrefixBlocks blocks of it:
// - a chat: Anthropic's `system` as a message of the role "system", then `messages`. For each, its role, the byte 0x1f,
//   the text of its content, without images and other parts, and the byte 0x1e;
// - /v1/responses: `instructions` as a message of the role "system", then `input`: its messages, or one of the user;
// - a completion: the first prompt that is a string; of TGI, its `inputs`.
// Empty if the body has none of these. Never fails: what is malformed is left out.
std::string PromptText(const nlohmann::json& body);
std::string PromptText(const nlohmann::ordered_json& body);

}  // namespace loramux
