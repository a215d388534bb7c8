// The kernels for any CPU of the architecture for which the library is built.
#define JAXRING_ISA baseline
#define JAXRING_VECTOR_BYTES 16
#include "reduce/table.h"

namespace jaxring {

IsaTables BaselineKernels() { return {baseline::kTable, baseline::kEpilogues}; }

}  // namespace jaxring
