// What goes by the protocol Simple.
#include "cuda/kernels/mail.h"
#include "cuda/sim/shim/shim_kernels.h"
#include "cuda/sim/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableSimple(const Args& args, Shared& shared) { PlayWidth<Simple>(args, shared); }

void PlayMail(const Mail& mail, const Args& args, Shared& shared) { cuda::PlayMail(mail, args, shared); }

}  // namespace jaxring::cuda::shim
