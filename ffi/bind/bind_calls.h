// Collectives on host buffers that Python passes itself, without XLA: sites whose participants arrive by a call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bind/bind_links.h"
#include "engine/site.h"

namespace jaxring {

// Holds a contiguous buffer of a Python object for the duration of a call.
class HeldBuffer {
 public:
  HeldBuffer(nanobind::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      throw nanobind::python_error();
    }
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  void* data() const { return view_.buf; }
  uint64_t bytes() const { return static_cast<uint64_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// One rank's side of a collective that is called repeatedly, by one thread at a time.
class BufferCall {
 public:
  BufferCall(const std::string& spec, const std::vector<int32_t>& ranks, int rank, int device, double timeout_s)
      : rank_(rank),
        device_(device),
        site_(Site::Make(&Running(), SiteSpec{{spec}, ranks, static_cast<int>(ranks.size()), timeout_s, {0}})) {}

  // The side of another rank of this process. Both sides are called equally often.
  BufferCall Beside(int rank, int device) const {
    BufferCall other = *this;
    other.rank_ = rank;
    other.device_ = device;
    other.run_ = 0;
    return other;
  }

  // Returns when this rank's part is done and nothing touches the buffers any more.
  void Run(nanobind::handle in, nanobind::handle out) {
    HeldBuffer from(in, false), to(out, true);
    Run(from.data(), from.bytes(), to.data(), to.bytes());
  }
  // The caller holds references to the objects that own the buffers.
  void Run(const void* in, uint64_t in_bytes, void* out, uint64_t out_bytes);

 private:
  int rank_, device_;
  int64_t run_ = 0;
  std::shared_ptr<Site> site_;
};

// Executes a plan whose ranks all belong to this process. `blocks` has those of each rank for a ragged collective.
void ExecuteOnce(std::shared_ptr<const Plan> plan, const nanobind::list& operands, const nanobind::list& results,
                 const nanobind::list& blocks);

void BindCalls(nanobind::module_& m);

}  // namespace jaxring
