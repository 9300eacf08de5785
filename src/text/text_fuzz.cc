// Fuzzes the C interface: tokenizers, ids, templates and their data. The first byte of the input selects the target;
// the rest is split at zero bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "text/bindings/loramux_text.h"
#include "text/c_interface.h"
#include "text/detokenizer.h"

namespace {

using loramux::text_internal::Buffer;
using loramux::text_internal::Bytes;
using loramux::text_internal::DecodeStreamHandle;
using loramux::text_internal::TemplateHandle;
using loramux::text_internal::TokenizerHandle;

std::string_view TakePart(std::string_view& rest) {
  const std::size_t end = rest.find('\0');
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

TokenizerHandle ParseTokenizer(std::string_view json) {
  loramux_tokenizer* raw = nullptr;
  Buffer error;
  const auto status = loramux_tokenizer_parse(Bytes(json), json.size(), &raw, error.out());
  CHECK_EQ(status == LORAMUX_TEXT_OK, raw != nullptr);
  return TokenizerHandle(raw);
}

// The pieces of a stream must form the same text as one decode.
void Decode(const loramux_tokenizer* tokenizer, const std::vector<std::int32_t>& ids, bool skip_special_tokens) {
  Buffer whole, error;
  const auto status =
      loramux_tokenizer_decode(tokenizer, ids.data(), ids.size(), skip_special_tokens, whole.out(), error.out());
  DecodeStreamHandle stream(loramux_decode_stream_new(tokenizer, skip_special_tokens));
  std::string text;
  bool failed = false;
  for (const std::int32_t id : ids) {
    Buffer piece, ignored;
    failed |= loramux_decode_stream_push(stream.get(), id, piece.out(), ignored.out()) != LORAMUX_TEXT_OK;
    text += piece.ToString();
  }
  Buffer piece, ignored;
  failed |= loramux_decode_stream_finish(stream.get(), piece.out(), ignored.out()) != LORAMUX_TEXT_OK;
  text += piece.ToString();
  if (status == LORAMUX_TEXT_OK && !failed) CHECK(text == whole.ToString());
}

void UseTokenizer(const loramux_tokenizer* tokenizer, std::string_view text, std::string_view id_bytes) {
  loramux_ids encoded{};
  Buffer error;
  if (loramux_tokenizer_encode(tokenizer, Bytes(text), text.size(), true, &encoded, error.out()) == LORAMUX_TEXT_OK) {
    Decode(tokenizer, std::vector<std::int32_t>(encoded.data, encoded.data + encoded.size), true);
    loramux_text_ids_free(encoded);
  }
  std::vector<std::int32_t> ids;
  const std::int64_t size = loramux_tokenizer_vocab_size(tokenizer);
  for (std::size_t i = 0; i + 1 < id_bytes.size(); i += 2) {
    const std::int32_t wide = static_cast<std::uint8_t>(id_bytes[i]) | static_cast<std::uint8_t>(id_bytes[i + 1]) << 8;
    ids.push_back(size > 0 ? static_cast<std::int32_t>(wide % size) : wide);
    Buffer token(loramux_tokenizer_id_to_token(tokenizer, ids.back()));
  }
  Decode(tokenizer, ids, false);
  loramux_tokenizer_token_to_id(tokenizer, Bytes(text), text.size());
}

void UseTemplate(std::string_view source, std::string_view context) {
  loramux_template* raw = nullptr;
  Buffer error;
  const std::string_view special = R"({"bos_token": "<s>"})";
  if (loramux_template_parse(Bytes(source), source.size(), Bytes(special), special.size(), &raw, error.out()) !=
      LORAMUX_TEXT_OK) {
    return;
  }
  TemplateHandle handle(raw);
  for (const std::uint32_t format : {0, 3}) {
    const loramux_render_options options = {true, format != 0, format, 1'720'170'487, 3'600};
    Buffer text, render_error;
    loramux_template_render(raw, Bytes(context), context.size(), &options, text.out(), render_error.out());
  }
}

// The matcher's result must not depend on how the text is split.
void UseMatcher(std::string_view text, std::vector<std::string> stops, std::size_t step) {
  loramux::StopStringMatcher whole(stops, false), pieces(stops, false);
  const auto expected = whole.Push(text);
  std::string sent;
  bool stopped = false;
  for (std::size_t i = 0; i < text.size() && !stopped; i += step) {
    const auto output = pieces.Push(text.substr(i, step));
    sent += output.text;
    stopped = output.stopped;
  }
  if (!stopped) sent += pieces.Finish();
  CHECK_EQ(stopped, expected.stopped);
  CHECK(sent == expected.text + (stopped ? "" : whole.Finish()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // What the library sets aside at its first call is no cost of an input.
  [[maybe_unused]] static const bool prepared = ParseTokenizer("{}") == nullptr;
  const loramux::FuzzLimits cost;
  if (size == 0 || size > 64'000) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const std::string_view json = TakePart(rest), text = TakePart(rest);
      if (const TokenizerHandle tokenizer = ParseTokenizer(json)) UseTokenizer(tokenizer.get(), text, rest);
      break;
    }
    case 1: {
      const std::string_view source = TakePart(rest);
      UseTemplate(source, rest.empty() ? "{}" : rest);
      break;
    }
    case 2: {
      static const TokenizerHandle tokenizer = ParseTokenizer(
          R"({"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<unk>": 0, "<0xE2>": 1, "<0x82>": 2,
              "<0xAC>": 3, "<0xF0>": 4, "<0x41>": 5, "a": 6, "▁b": 7, "é": 8}, "merges": [], "unk_token": "<unk>"},
              "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})");
      CHECK(tokenizer != nullptr);
      const std::string_view text = TakePart(rest);
      UseTokenizer(tokenizer.get(), text, rest);
      break;
    }
    default: {
      const std::string_view text = TakePart(rest);
      std::vector<std::string> stops;
      while (!rest.empty() && stops.size() < 8) stops.emplace_back(TakePart(rest));
      UseMatcher(text, stops, 1 + data[0] / 4 % 7);
      break;
    }
  }
  return 0;
}
