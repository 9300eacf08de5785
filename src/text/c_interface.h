// Owning C++ types for the C interface in src/text/bindings. Internal to this directory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "text/bindings/loramux_text.h"

namespace loramux::text_internal {

// Owns a buffer of the library; frees it on destruction.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(loramux_buffer raw) : raw_(raw) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { loramux_text_buffer_free(raw_); }

  // For functions that fill a buffer. REQUIRES: not filled before.
  loramux_buffer* out() { return &raw_; }
  std::string ToString() const { return std::string(reinterpret_cast<const char*>(raw_.data), raw_.size); }

 private:
  loramux_buffer raw_{};
};

// Deleter for std::unique_ptr that calls `Free`.
template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* handle) const {
    Free(handle);
  }
};

// Owning handles of the library's objects.
using TokenizerHandle = std::unique_ptr<loramux_tokenizer, Deleter<loramux_tokenizer_free>>;
using DecodeStreamHandle = std::unique_ptr<loramux_decode_stream, Deleter<loramux_decode_stream_free>>;
using TemplateHandle = std::unique_ptr<loramux_template, Deleter<loramux_template_free>>;

// The text as the pointer type of the C interface.
inline const std::uint8_t* Bytes(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

// Converts the library's status and message to an Error. `where` (may be empty) is prepended to the message.
Error ToError(loramux_text_status status, const Buffer& message, std::string_view where);

// Most bytes of a file of the tokenizer; the largest tokenizer.json in use is about 35 MB.
inline constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

}  // namespace loramux::text_internal
