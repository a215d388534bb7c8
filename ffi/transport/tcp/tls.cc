#include "transport/tcp/tls.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/mutex.h"
#include "transport/tcp/openssl.h"

namespace jaxring {
namespace {

using namespace openssl;

// The longest record. Keys are renewed long before AES-GCM's limit of 2^24.5 records.
constexpr size_t kRecord = 16384;
constexpr uint64_t kRecordsOfKey = uint64_t{1} << 22;
constexpr const char* kIdentity = "jaxring";

// The library, and the objects that all connections of this process share.
struct Library final : Api {
  Context* context = nullptr;
  BioMethod* method = nullptr;
};

class TlsStream final : public Stream {
 public:
  TlsStream(int fd, std::string key) : Stream(fd), key_(std::move(key)) {}
  ~TlsStream() override {
    if (ssl_ != nullptr) api_->SSL_free(ssl_);  // and its BIO
    explicit_bzero(key_.data(), key_.size());
  }
  void Shake(bool dialled, double timeout_s);
  using Stream::Write;
  ssize_t Write(const iovec* parts, int count) override;
  ssize_t Read(void* to, size_t bytes) override;
  bool holds_bytes() const override { return true; }  // the rest of a record
  std::string Why() const override {
    MutexLock lock(mutex_);
    return WhyLocked();
  }
  unsigned Key(unsigned char* to, unsigned room) const {
    if (key_.size() > room) return 0;
    std::memcpy(to, key_.data(), key_.size());
    return static_cast<unsigned>(key_.size());
  }
  // OpenSSL's BIO calls these to use the socket.
  int Send(Bio* bio, const char* data, int bytes);
  int Receive(Bio* bio, char* to, int bytes);

 private:
  // Returns -1 and sets errno from SSL_get_error for `result`, or 0 if the peer has closed the connection.
  ssize_t Failed(int result) JAXRING_REQUIRES(mutex_);
  std::string WhyLocked() const JAXRING_REQUIRES(mutex_) { return why_.empty() ? Stream::Why() : why_; }

  const Library* api_ = nullptr;
  std::string key_;
  Ssl* ssl_ JAXRING_PT_GUARDED_BY(mutex_) = nullptr;
  mutable Mutex mutex_;  // an SSL object may be used by one thread at a time
  // The record being written: SSL_write must be repeated with the same bytes
  std::vector<char> staged_ JAXRING_GUARDED_BY(mutex_);
  uint64_t records_ JAXRING_GUARDED_BY(mutex_) = 0;
  int error_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool ended_ JAXRING_GUARDED_BY(mutex_) = false;
  std::string why_ JAXRING_GUARDED_BY(mutex_);
};

TlsStream* Of(const Library& api, const Ssl* ssl) { return static_cast<TlsStream*>(api.SSL_get_ex_data(ssl, 0)); }

Library* Begin() {
  static Library api;
  static_cast<Api&>(api) = Open();
  api.method = api.BIO_meth_new(api.BIO_get_new_index() | kBioSourceSink, "jaxring");
  api.context = api.SSL_CTX_new(api.TLS_method());
  if (api.method == nullptr || api.context == nullptr) throw std::runtime_error("OpenSSL does not start");
  api.BIO_meth_set_write(api.method, [](Bio* bio, const char* data, int bytes) {
    return static_cast<TlsStream*>(api.BIO_get_data(bio))->Send(bio, data, bytes);
  });
  api.BIO_meth_set_read(api.method, [](Bio* bio, char* to, int bytes) {
    return static_cast<TlsStream*>(api.BIO_get_data(bio))->Receive(bio, to, bytes);
  });
  api.BIO_meth_set_ctrl(api.method, [](Bio*, int command, long, void*) -> long { return command == kBioFlush; });
  if (api.SSL_CTX_ctrl(api.context, kMinProtocol, kTls13, nullptr) != 1 ||
      api.SSL_CTX_set_ciphersuites(api.context, "TLS_AES_128_GCM_SHA256") != 1 ||
      api.SSL_CTX_set_num_tickets(api.context, 0) != 1) {
    throw std::runtime_error("OpenSSL here does not offer TLS 1.3 with AES-GCM");
  }
  api.SSL_CTX_set_psk_client_callback(
      api.context, [](Ssl* ssl, const char*, char* identity, unsigned room, unsigned char* key, unsigned key_room) {
        if (room <= std::strlen(kIdentity)) return 0u;
        std::strcpy(identity, kIdentity);
        return Of(api, ssl)->Key(key, key_room);
      });
  api.SSL_CTX_set_psk_server_callback(
      api.context, [](Ssl* ssl, const char* identity, unsigned char* key, unsigned room) {
        return identity != nullptr && std::strcmp(identity, kIdentity) == 0 ? Of(api, ssl)->Key(key, room) : 0u;
      });
  return &api;
}

const Library& Loaded() {
  static const Library* const api = Begin();  // C++ calls it again after an exception
  return *api;
}

void TlsStream::Shake(bool dialled, double timeout_s) {
  using std::chrono::steady_clock;
  MutexLock lock(mutex_);
  const auto deadline = steady_clock::now() +
                        std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(timeout_s));
  api_ = &Loaded();
  ssl_ = api_->SSL_new(api_->context);
  Bio* bio = ssl_ == nullptr ? nullptr : api_->BIO_new(api_->method);
  if (bio == nullptr) throw std::runtime_error("OpenSSL has no memory for a connection");
  api_->BIO_set_data(bio, this);
  api_->BIO_set_init(bio, 1);
  api_->SSL_set_bio(ssl_, bio, bio);
  api_->SSL_set_ex_data(ssl_, 0, this);
  // A peer without the key might present a certificate instead. None is trusted.
  if (dialled) api_->SSL_set_verify(ssl_, kVerifyPeer, nullptr);
  dialled ? api_->SSL_set_connect_state(ssl_) : api_->SSL_set_accept_state(ssl_);
  while (true) {
    api_->ERR_clear_error();
    const int result = api_->SSL_do_handshake(ssl_);
    if (result == 1) break;
    const int error = api_->SSL_get_error(ssl_, result);
    if (error != kErrorRead && error != kErrorWrite) {
      Failed(result);
      throw std::runtime_error("the TLS handshake failed: " +
                               (ended_ ? "the peer closed the connection" : WhyLocked()));
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd waits{fd(), static_cast<int16_t>(error == kErrorRead ? POLLIN : POLLOUT), 0};
    if (left <= 0 || poll(&waits, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) == 0) {
      throw std::runtime_error("the TLS handshake was not finished in time");
    }
  }
  if (api_->SSL_session_reused(ssl_) != 1) throw std::runtime_error("the TLS handshake was made without the key");
}

int TlsStream::Send(Bio* bio, const char* data, int bytes) {
  mutex_.AssertHeld();  // by the function that has called OpenSSL; so below
  api_->BIO_clear_flags(bio, kBioRead | kBioWrite | kBioRetry);
  const ssize_t n = send(fd(), data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    error_ = errno;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) api_->BIO_set_flags(bio, kBioWrite | kBioRetry);
  }
  return static_cast<int>(n);
}

int TlsStream::Receive(Bio* bio, char* to, int bytes) {
  mutex_.AssertHeld();
  api_->BIO_clear_flags(bio, kBioRead | kBioWrite | kBioRetry);
  const ssize_t n = recv(fd(), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (n == 0) ended_ = true;
  if (n < 0) {
    error_ = errno;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) api_->BIO_set_flags(bio, kBioRead | kBioRetry);
  }
  return static_cast<int>(n);
}

ssize_t TlsStream::Failed(int result) {
  const int error = api_->SSL_get_error(ssl_, result);
  if (error == kErrorRead || error == kErrorWrite) {
    errno = EAGAIN;
    return -1;
  }
  if (ended_ || error == kErrorEnd) return 0;
  if (const unsigned long code = api_->ERR_get_error()) {
    const char* reason = api_->ERR_reason_error_string(code);
    why_ = std::string(kAltered) + " (TLS: " + (reason == nullptr ? "unknown" : reason) + ")";
    errno = EPROTO;
  } else {
    errno = error_ == 0 ? EPROTO : error_;
  }
  return -1;
}

ssize_t TlsStream::Write(const iovec* parts, int count) {
  MutexLock lock(mutex_);
  if (staged_.empty()) {
    for (int i = 0; i < count && staged_.size() < kRecord; ++i) {
      const char* data = static_cast<const char*>(parts[i].iov_base);
      staged_.insert(staged_.end(), data, data + std::min(parts[i].iov_len, kRecord - staged_.size()));
    }
    if (staged_.empty()) return 0;
    if (++records_ % kRecordsOfKey == 0) api_->SSL_key_update(ssl_, 0);
  }
  api_->ERR_clear_error();
  const int n = api_->SSL_write(ssl_, staged_.data(), static_cast<int>(staged_.size()));
  if (n > 0) {
    staged_.clear();
    return n;
  }
  const ssize_t failed = Failed(n);
  if (failed == 0) errno = EPIPE;
  return -1;
}

ssize_t TlsStream::Read(void* to, size_t bytes) {
  MutexLock lock(mutex_);
  api_->ERR_clear_error();
  const int n = api_->SSL_read(ssl_, to, static_cast<int>(std::min<size_t>(bytes, 1 << 30)));
  return n > 0 ? n : Failed(n);
}

}  // namespace

std::string LoadTls() { return Loaded().OpenSSL_version(0); }

std::unique_ptr<Stream> MakeTlsStream(int fd, const std::string& key, bool dialled, double timeout_s) {
  auto stream = std::make_unique<TlsStream>(fd, key);
  stream->Shake(dialled, timeout_s);
  return stream;
}

std::unique_ptr<Stream> MakeStream(Descriptor socket, const std::string& key, bool dialled, double timeout_s) {
  if (key.empty()) return std::make_unique<Stream>(socket.Release());
  return MakeTlsStream(socket.Release(), key, dialled, timeout_s);
}

}  // namespace jaxring
