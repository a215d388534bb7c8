// NVTX ranges for profilers: kernels and copies that a thread enqueues while it has a Range are shown under its name.
// NVTX 3 is header-only. Without an attached tool a range costs one pointer check.
#pragma once

#include <cstdint>
#include <string>

namespace jaxring::cuda {

// A reusable name in the NVTX domain "jaxring". Never freed, since tools may read it at any time.
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

// "3" if the build found NVTX's header. "" if not; then ranges do nothing.
const char* NvtxVersion();

}  // namespace jaxring::cuda
