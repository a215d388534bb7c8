// TLS 1.3 by the system's OpenSSL, which is opened when it is asked for. Both sides hold a key of this connection, so
// there are no certificates: who does not hold it can neither read nor take part.
#pragma once

#include <memory>
#include <string>

#include "transport/core/stream.h"

namespace jaxring {

// Opens the library, once; returns its version. Throws std::runtime_error where there is none that will do.
std::string LoadTls();

// The connection as an encrypted one, after a handshake with the other side, which calls this too; one of both has
// `dialled`. Takes `fd`, also when it throws std::runtime_error: the other side has another key, is gone or is late.
std::unique_ptr<Stream> MakeTlsStream(int fd, const std::string& key, bool dialled, double timeout_s);

}  // namespace jaxring
