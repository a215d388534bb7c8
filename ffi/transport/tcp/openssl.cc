#include "transport/tcp/openssl.h"

#include <dlfcn.h>

#include <stdexcept>

namespace jaxring::openssl {

Api Open() {
  void* library = nullptr;
  for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw std::runtime_error("there is no libssl.so.3 or libssl.so.1.1 here: install OpenSSL's libraries (libssl3)");
  }
  Api api;
  auto get = [library](auto* to, const char* name) {
    *reinterpret_cast<void**>(to) = dlsym(library, name);
    if (*to == nullptr) throw std::runtime_error(std::string("OpenSSL's library here has no ") + name);
  };
#define JAXRING_GET(name) get(&api.name, #name)
  JAXRING_GET(TLS_method);
  JAXRING_GET(SSL_CTX_new);
  JAXRING_GET(SSL_CTX_ctrl);
  JAXRING_GET(SSL_CTX_set_num_tickets);
  JAXRING_GET(SSL_CTX_set_ciphersuites);
  JAXRING_GET(SSL_CTX_set_psk_client_callback);
  JAXRING_GET(SSL_CTX_set_psk_server_callback);
  JAXRING_GET(SSL_new);
  JAXRING_GET(SSL_free);
  JAXRING_GET(SSL_set_bio);
  JAXRING_GET(SSL_set_verify);
  JAXRING_GET(SSL_set_ex_data);
  JAXRING_GET(SSL_get_ex_data);
  JAXRING_GET(SSL_set_connect_state);
  JAXRING_GET(SSL_set_accept_state);
  JAXRING_GET(SSL_do_handshake);
  JAXRING_GET(SSL_session_reused);
  JAXRING_GET(SSL_read);
  JAXRING_GET(SSL_write);
  JAXRING_GET(SSL_get_error);
  JAXRING_GET(SSL_key_update);
  JAXRING_GET(BIO_get_new_index);
  JAXRING_GET(BIO_meth_new);
  JAXRING_GET(BIO_meth_set_read);
  JAXRING_GET(BIO_meth_set_write);
  JAXRING_GET(BIO_meth_set_ctrl);
  JAXRING_GET(BIO_new);
  JAXRING_GET(BIO_set_data);
  JAXRING_GET(BIO_get_data);
  JAXRING_GET(BIO_set_init);
  JAXRING_GET(BIO_set_flags);
  JAXRING_GET(BIO_clear_flags);
  JAXRING_GET(ERR_get_error);
  JAXRING_GET(ERR_clear_error);
  JAXRING_GET(ERR_reason_error_string);
  JAXRING_GET(OpenSSL_version);
#undef JAXRING_GET
  return api;
}

}  // namespace jaxring::openssl
