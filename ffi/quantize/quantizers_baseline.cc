// The quantizers for any CPU of the architecture for which the library is built.
#define JAXRING_ISA baseline
#define JAXRING_VECTOR_BYTES 16
#include "quantize/block_sums.h"

namespace jaxring {

const QuantizerTable& BaselineQuantizers() { return baseline::kQuantizers; }

}  // namespace jaxring
