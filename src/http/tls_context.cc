#include "http/tls_context.h"

#include <string_view>

#include <openssl/ssl.h>

namespace loramux {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

constexpr const char* kTls12Ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";  // all cipher suites of TLS 1.3 are of this kind
constexpr const unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

// Selects HTTP/1.1 by ALPN. A client that offers only other protocols continues without ALPN.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                   unsigned int offered_size, void*) {
  unsigned char* chosen = nullptr;
  const int result = SSL_select_next_proto(&chosen, out_size, kHttp11, sizeof kHttp11, offered, offered_size);
  *out = chosen;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

Status Configure(ssl::context& context) {
  SSL_CTX* native = context.native_handle();
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections keep no buffers
  SSL_CTX_set_alpn_select_cb(native, SelectProtocol, nullptr);
  if (SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(native, kTls12Ciphers) != 1) {
    return Internal("OpenSSL refuses this server's TLS versions or ciphers");
  }
  return Ok{};
}

Error Refused(std::string_view what, const std::string& file, const error_code& error) {
  return InvalidArgument("cannot use " + std::string(what) + " in '" + file + "': " + error.message(), file);
}

}  // namespace

Result<TlsContext::Context> TlsContext::Read(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return InvalidArgument("TLS needs a certificate and its key: expected both --tls-cert and --tls-key, found one",
                           files.certificate.empty() ? "tls-cert" : "tls-key");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  RETURN_IF_ERROR(Configure(*context));
  bool asked = false;
  error_code error;
  context->set_password_callback(
      [&asked](std::size_t, ssl::context::password_purpose) {
        asked = true;  // the server cannot ask for a passphrase
        return std::string();
      },
      error);
  if (context->use_certificate_chain_file(files.certificate, error)) {
    return Refused("the certificate (PEM)", files.certificate, error);
  }
  context->use_private_key_file(files.key, ssl::context::pem, error);
  if (asked)
    return InvalidArgument("the key in '" + files.key + "' needs a passphrase: expected a key without one", files.key);
  if (error)
    return Refused("the private key (PEM) with the certificate of '" + files.certificate + "'", files.key, error);
  if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
    return InvalidArgument(
        "the key in '" + files.key + "' does not belong to the certificate in '" + files.certificate + "'", files.key);
  }
  context->set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); }, error);
  return context;
}

Result<std::unique_ptr<TlsContext>> TlsContext::Load(TlsFiles files) {
  ASSIGN_OR_RETURN(Context context, Read(files));
  return std::unique_ptr<TlsContext>(new TlsContext(std::move(files), std::move(context)));
}

Status TlsContext::Reload() {
  ASSIGN_OR_RETURN(Context context, Read(files_));
  const std::lock_guard lock(mutex_);
  context_ = std::move(context);
  return Ok{};
}

std::shared_ptr<ssl::context> TlsContext::Current() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

}  // namespace loramux
