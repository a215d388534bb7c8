// The kernels for any CPU of the architecture for which the library is built.
#define JAXRING_ISA baseline
#define JAXRING_VECTOR_BYTES 16
#include "reduce/table.h"

namespace jaxring {

namespace {
constexpr IsaTables kTables{baseline::kTable, baseline::kEpilogues};
}

const IsaTables& BaselineKernels() { return kTables; }

}  // namespace jaxring
