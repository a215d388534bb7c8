// What goes by the protocol Simple.
#include "ffi/cuda/mail.h"
#include "ffi/cuda/shim/kernels.h"
#include "ffi/cuda/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableSimple(const Args& args, Shared& shared) { PlayWidth<Simple>(args, shared); }

void PlayMail(const Mail& mail, const Args& args, Shared& shared) { cuda::PlayMail(mail, args, shared); }

}  // namespace jaxring::cuda::shim
