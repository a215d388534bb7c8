// Reads and writes messages in protobuf's wire format. XLA hands over a module with thousands of them in each
// compilation, of which a few fields are asked for.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxring {

void BindProtobuf(nanobind::module_& m);

}  // namespace jaxring
