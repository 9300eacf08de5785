#include "server/output/json_call.h"

#include <utility>

#include "http/json_reader.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxKeyBytes = 256;

// The text of an object without the white space around it.
std::string Trimmed(const std::string& object) {
  const std::size_t first = object.find('{');
  return object.substr(first, object.rfind('}') + 1 - first);
}

}  // namespace

CallBody::State JsonCallBody::Step(char c, CallWriter& calls) {
  if (scanner_.depth() == 0) {
    if (IsJsonSpace(c)) return State::kMore;
    if (c != '{') return State::kBroken;
  }
  const bool at_value = scanner_.depth() == 1 && scanner_.expects_value() && !IsJsonSpace(c);
  const bool was_key = scanner_.in_key();
  const JsonScanner::Result result = scanner_.Step(c);
  if (result == JsonScanner::Result::kError) return State::kBroken;
  if (!in_value_ && scanner_.in_key()) {
    if (!was_key) key_.clear();
    if (was_key) key_ += c;
    if (key_.size() > kMaxKeyBytes) return State::kBroken;
  }
  if (!StepMember(c, at_value, calls)) return State::kBroken;
  if (result == JsonScanner::Result::kMore) return State::kMore;
  return EndObject(calls) ? State::kDone : State::kBroken;
}

bool JsonCallBody::StepMember(char c, bool at_value, CallWriter& calls) {
  if (at_value && !BeginValue(c, calls)) return false;
  if (!in_value_) return true;
  const bool number_over = number_ && !scanner_.in_number();
  if (!number_over && !AddToValue(c, calls)) return false;
  if (!number_over && !(scanner_.depth() == 1 && scanner_.after_value())) return true;
  return EndValue(calls);
}

bool JsonCallBody::BeginValue(char c, CallWriter& calls) {
  in_value_ = true;
  number_ = scanner_.in_number();
  value_.clear();
  streaming_ = false;
  member_ = key_ == "name"                                ? Member::kName
            : key_ == "arguments" || key_ == "parameters" ? Member::kArguments
                                                          : Member::kOther;
  if (member_ == Member::kOther) return keys_ == Keys::kAny || key_ == "type" || key_ == "id";
  if (member_ == Member::kName) return c == '"' && name_.empty();
  if (has_arguments_) return false;
  streaming_ = c == '{' && !name_.empty();
  if (streaming_) calls.Start(name_);
  return c == '{' || c == '"' || c == 'n';
}

bool JsonCallBody::AddToValue(char c, CallWriter& calls) {
  if (member_ == Member::kOther) return true;
  if (streaming_) {
    const bool last = scanner_.depth() == 1 && scanner_.after_value();
    if (!last) calls.Arguments({&c, 1});
    return true;
  }
  value_ += c;
  return member_ != Member::kName || value_.size() <= kMaxFunctionNameBytes;
}

bool JsonCallBody::EndValue(CallWriter& calls) {
  in_value_ = false;
  if (member_ == Member::kName && !TakeName()) return false;
  if (member_ == Member::kArguments && !TakeArguments()) return false;
  return true;
}

bool JsonCallBody::TakeName() {
  const auto name = ParseJson(value_);
  if (!name.ok() || !name->is_string()) return false;
  name_ = name->get<std::string>();
  return !name_.empty();
}

bool JsonCallBody::TakeArguments() {
  has_arguments_ = true;
  if (streaming_) {
    arguments_ = "}";
    return true;
  }
  if (value_ == "null") value_ = "{}";
  if (value_.front() == '"') {
    const auto text = ParseJson(value_);
    const auto object = text.ok() ? ParseJson(text->get_ref<const std::string&>()) : text;
    if (!object.ok() || !object->is_object()) return false;
    value_ = Trimmed(text->get_ref<const std::string&>());
  }
  arguments_ = std::exchange(value_, {});
  return true;
}

bool JsonCallBody::EndObject(CallWriter& calls) {
  if (name_.empty() || (!has_arguments_ && keys_ == Keys::kExact)) return false;
  if (!has_arguments_) arguments_ = "{}";
  if (!calls.open()) calls.Start(name_);
  calls.Arguments(arguments_);
  calls.End();
  return true;
}

CallBody::State JsonCallListBody::Step(char c, CallWriter& calls) {
  if (item_ != nullptr) {
    const State state = item_->Step(c, calls);
    if (state == State::kDone) item_.reset();
    return state == State::kDone ? State::kMore : state;
  }
  if (IsJsonSpace(c)) return State::kMore;
  if (!opened_) {
    opened_ = true;
    return c == '[' ? State::kMore : State::kBroken;
  }
  if (c == ']' && !wants_item_) return State::kDone;
  if (c == ',' && !wants_item_) {
    wants_item_ = true;
    return State::kMore;
  }
  if (!wants_item_) return State::kBroken;
  wants_item_ = false;
  item_ = std::make_unique<JsonCallBody>(keys_);
  return item_->Step(c, calls);
}

}  // namespace loramux
