#include "hub/file_digest.h"

#include <cstdio>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <openssl/evp.h>

namespace loramux {
namespace {

struct ContextFreer {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
struct StreamCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string HexOf(const unsigned char* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string Finish(EVP_MD_CTX* context) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context, digest, &size);
  return HexOf(digest, size);
}

std::unique_ptr<EVP_MD_CTX, ContextFreer> StartSha256() {
  std::unique_ptr<EVP_MD_CTX, ContextFreer> context(EVP_MD_CTX_new());
  CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  return context;
}

}  // namespace

std::string Sha256Hex(std::string_view text) {
  const auto context = StartSha256();
  EVP_DigestUpdate(context.get(), text.data(), text.size());
  return Finish(context.get());
}

Result<std::string> Sha256HexOfFile(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, StreamCloser> input(std::fopen(path.c_str(), "rb"));
  if (input == nullptr) return IoError("cannot read " + path.string());
  const auto context = StartSha256();
  std::vector<char> block(std::size_t{1} << 20);
  while (const std::size_t size = std::fread(block.data(), 1, block.size(), input.get())) {
    EVP_DigestUpdate(context.get(), block.data(), size);
  }
  if (std::ferror(input.get()) != 0) return IoError("cannot read " + path.string());
  return Finish(context.get());
}

std::string HexOfBase64Sha256(std::string_view base64) {
  constexpr std::size_t kCharacters = 44, kBytes = 32;
  unsigned char bytes[kCharacters];
  if (base64.size() != kCharacters || base64.back() != '=') return {};
  const int size = EVP_DecodeBlock(bytes, reinterpret_cast<const unsigned char*>(base64.data()), kCharacters);
  return size == kBytes + 1 ? HexOf(bytes, kBytes) : std::string();  // one byte of padding
}

}  // namespace loramux
