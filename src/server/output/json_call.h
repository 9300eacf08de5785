// A call as a JSON object: {"name": ..., "arguments": {...}}, as Hermes, Qwen, Mistral and Llama write it.
#pragma once

#include <memory>
#include <string>

#include "server/output/call_parser.h"
#include "server/output/json_scanner.h"

namespace loramux {

// Reads one object. The arguments may be called `parameters`; they are passed on as the model writes them once the name
// is known, but for their last bracket: it follows when the object ends, so the arguments of a broken call are no JSON.
// They may also be a string that holds an object, null or, unless kExact, absent.
class JsonCallBody final : public CallBody {
 public:
  enum class Keys {
    kAny,    // others are ignored
    kExact,  // `type` and `id` are ignored, others mean that the object is no call
  };
  explicit JsonCallBody(Keys keys) : keys_(keys) {}
  State Step(char c, CallWriter& calls) override;

 private:
  enum class Member { kName, kArguments, kOther };

  bool StepMember(char c, bool at_value, CallWriter& calls);
  bool BeginValue(char c, CallWriter& calls);
  bool AddToValue(char c, CallWriter& calls);
  bool EndValue(CallWriter& calls);
  bool TakeName();
  bool TakeArguments();
  bool EndObject(CallWriter& calls);

  Keys keys_;
  JsonScanner scanner_;
  std::string key_;
  Member member_ = Member::kOther;
  bool in_value_ = false;
  bool number_ = false;     // the value is a number, whose end only the byte after it shows
  bool streaming_ = false;  // the value is passed on at once
  bool has_arguments_ = false;
  std::string value_;
  std::string name_;
  std::string arguments_;  // complete, and waiting for the end of the object
};

// Reads an array of such objects, from "[" to "]".
class JsonCallListBody final : public CallBody {
 public:
  explicit JsonCallListBody(JsonCallBody::Keys keys) : keys_(keys) {}
  State Step(char c, CallWriter& calls) override;

 private:
  JsonCallBody::Keys keys_;
  std::unique_ptr<JsonCallBody> item_;
  bool opened_ = false;
  bool wants_item_ = true;  // behind the bracket or a comma
};

}  // namespace loramux
