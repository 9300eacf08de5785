// The certificate and the key that the server shows its clients, read from files and read again on request.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <boost/asio/ssl/context.hpp>

#include "base/result.h"

namespace loramux {

struct TlsFiles {
  std::string certificate;  // PEM: the server's certificate, then those that it was issued with
  std::string key;          // PEM: its private key, without a passphrase
  bool enabled() const { return !certificate.empty() || !key.empty(); }
};

// TLS 1.2 and later, forward-secret AEAD ciphers only. Thread-safe.
class TlsContext {
 public:
  // Errors name the file: one that cannot be read, holds no such thing, a key that needs a passphrase or belongs to
  // another certificate.
  static Result<std::unique_ptr<TlsContext>> Load(TlsFiles files);

  // Reads the files again, for connections that come from now on. On error the old ones stay in use.
  Status Reload();
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
