// The functions of OpenSSL 1.1.1 and 3 that jaxring uses, declared as in the manual pages and loaded from the system's
// library at run time.
#pragma once

#include <cstddef>
#include <string>

namespace jaxring::openssl {

struct Ssl;
struct Context;
struct Bio;
struct BioMethod;

constexpr int kMinProtocol = 123, kTls13 = 0x0304;             // SSL_CTX_ctrl
constexpr int kErrorRead = 2, kErrorWrite = 3, kErrorEnd = 6;  // SSL_get_error
constexpr int kVerifyPeer = 1;                                 // SSL_set_verify
constexpr int kBioRead = 1, kBioWrite = 2, kBioRetry = 8;      // BIO_set_flags
constexpr int kBioSourceSink = 0x0400, kBioFlush = 11;         // BIO_meth_new, its ctrl

using PskClient = unsigned (*)(Ssl*, const char*, char*, unsigned, unsigned char*, unsigned);
using PskServer = unsigned (*)(Ssl*, const char*, unsigned char*, unsigned);

struct ContextApi {
  const void* (*TLS_method)();
  Context* (*SSL_CTX_new)(const void*);
  long (*SSL_CTX_ctrl)(Context*, int, long, void*);
  int (*SSL_CTX_set_num_tickets)(Context*, size_t);
  int (*SSL_CTX_set_ciphersuites)(Context*, const char*);
  void (*SSL_CTX_set_psk_client_callback)(Context*, PskClient);
  void (*SSL_CTX_set_psk_server_callback)(Context*, PskServer);
};

struct ConnectionApi {
  Ssl* (*SSL_new)(Context*);
  void (*SSL_free)(Ssl*);
  void (*SSL_set_bio)(Ssl*, Bio*, Bio*);
  void (*SSL_set_verify)(Ssl*, int, void*);
  int (*SSL_set_ex_data)(Ssl*, int, void*);
  void* (*SSL_get_ex_data)(const Ssl*, int);
  void (*SSL_set_connect_state)(Ssl*);
  void (*SSL_set_accept_state)(Ssl*);
  int (*SSL_do_handshake)(Ssl*);
  int (*SSL_session_reused)(const Ssl*);
  int (*SSL_read)(Ssl*, void*, int);
  int (*SSL_write)(Ssl*, const void*, int);
  int (*SSL_get_error)(const Ssl*, int);
  int (*SSL_key_update)(Ssl*, int);
};

struct BioApi {
  int (*BIO_get_new_index)();
  BioMethod* (*BIO_meth_new)(int, const char*);
  int (*BIO_meth_set_read)(BioMethod*, int (*)(Bio*, char*, int));
  int (*BIO_meth_set_write)(BioMethod*, int (*)(Bio*, const char*, int));
  int (*BIO_meth_set_ctrl)(BioMethod*, long (*)(Bio*, int, long, void*));
  Bio* (*BIO_new)(const BioMethod*);
  void (*BIO_set_data)(Bio*, void*);
  void* (*BIO_get_data)(Bio*);
  void (*BIO_set_init)(Bio*, int);
  void (*BIO_set_flags)(Bio*, int);
  void (*BIO_clear_flags)(Bio*, int);
};

struct ErrorApi {
  unsigned long (*ERR_get_error)();
  void (*ERR_clear_error)();
  const char* (*ERR_reason_error_string)(unsigned long);
};

struct Api : ContextApi, ConnectionApi, BioApi, ErrorApi {
  const char* (*OpenSSL_version)(int);
};

// Opens the library. Throws std::runtime_error if there is none of a supported version.
Api Open();

}  // namespace jaxring::openssl
