// The content of a Tokenizer, for the other sources of this directory.
#pragma once

#include "text/c_interface.h"
#include "text/tokenizer.h"

namespace loramux {

struct Tokenizer::Impl {
  text_internal::TokenizerHandle handle;
};

}  // namespace loramux
