// The kernels for any processor of the architecture the build is for.
#define JAXRING_ISA baseline
#define JAXRING_VECTOR_BYTES 16
#include "reduce/table.h"

namespace jaxring {

const KernelTable& BaselineKernels() { return baseline::kTable; }

}  // namespace jaxring
