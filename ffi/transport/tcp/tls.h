// TLS 1.3 by the system's OpenSSL, which is loaded at first use. Both sides hold a pre-shared key for this connection,
// so there are no certificates: a peer without the key can neither read nor send.
#pragma once

#include <memory>
#include <string>

#include "base/descriptor.h"
#include "transport/core/stream.h"

namespace jaxring {

// Opens the library once and returns its version. Throws std::runtime_error if there is none of a supported version.
std::string LoadTls();

// Encrypts a connection after a handshake with the peer, which calls this, too; exactly one of them has `dialled`. Owns
// `fd`, even if it throws. Throws std::runtime_error if the peer has another key, is gone or does not answer in time.
std::unique_ptr<Stream> MakeTlsStream(int fd, const std::string& key, bool dialled, double timeout_s);
// The same where there is a key; without one the plain connection.
std::unique_ptr<Stream> MakeStream(Descriptor socket, const std::string& key, bool dialled, double timeout_s);

}  // namespace jaxring
