// What every function of a GPU's interfaces throws.
#pragma once

#include <stdexcept>

namespace jaxring::cuda {

class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace jaxring::cuda
