// The server's TLS certificate and private key, read from files and reloadable.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <boost/asio/ssl/context.hpp>

#include "base/result.h"

namespace loramux {

// Paths of the files. Both empty: TLS is off.
struct TlsFiles {
  std::string certificate;  // PEM: the server's certificate, followed by its intermediate certificates
  std::string key;          // PEM: the private key, without a passphrase
  bool enabled() const { return !certificate.empty() || !key.empty(); }
};

// TLS 1.2 and later, with forward-secret AEAD ciphers only. Thread-safe.
class TlsContext {
 public:
  // Reads the files. Errors name the file: it cannot be read, does not hold a certificate or key, the key needs a
  // passphrase, or the key does not belong to the certificate.
  static Result<std::unique_ptr<TlsContext>> Load(TlsFiles files);

  // Reads the files again, for connections accepted from now on. On error the previous ones stay in use.
  Status Reload();
  // Returns the context for new connections.
  std::shared_ptr<boost::asio::ssl::context> Current() const;

 private:
  using Context = std::shared_ptr<boost::asio::ssl::context>;
  TlsContext(TlsFiles files, Context context) : files_(std::move(files)), context_(std::move(context)) {}
  static Result<Context> Read(const TlsFiles& files);

  const TlsFiles files_;
  mutable std::mutex mutex_;
  Context context_;
};

}  // namespace loramux
