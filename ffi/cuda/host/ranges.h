// What a profiler shows: while a Range lives, kernels and copies that its thread enqueues belong to the range's name.
// NVTX 3 is a header: where no tool is attached a range costs a look at a pointer, and nothing is linked for it.
#pragma once

#include <cstdint>
#include <string>

namespace jaxring::cuda {

// A name that is used again and again, in the domain "jaxring". Never given back: tools may look at it at any time.
class RangeName {
 public:
  explicit RangeName(const std::string& text);

 private:
  friend class Range;
  void* handle_ = nullptr;
};

class Range {
 public:
  // `bytes`: shown as the range's payload.
  Range(const RangeName& name, uint64_t bytes);
  ~Range();
  Range(const Range&) = delete;
};

// "3" where the build found NVTX's header, else "": then ranges do nothing.
const char* NvtxVersion();

}  // namespace jaxring::cuda
