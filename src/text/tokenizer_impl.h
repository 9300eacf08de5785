// What a Tokenizer holds, for the other sources of this room.
#pragma once

#include "text/c_interface.h"
#include "text/tokenizer.h"

namespace loramux {

struct Tokenizer::Impl {
  text_internal::TokenizerHandle handle;
};

}  // namespace loramux
