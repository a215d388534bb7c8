#include "cuda/host/ranges.h"

#if defined(JAXRING_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace jaxring::cuda {

#if defined(JAXRING_NVTX)
namespace {

nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("jaxring");
  return domain;
}

}  // namespace

RangeName::RangeName(const std::string& text) : handle_(nvtxDomainRegisterStringA(Domain(), text.c_str())) {}

Range::Range(const RangeName& name, uint64_t bytes) {
  nvtxEventAttributes_t what{};
  what.version = NVTX_VERSION;
  what.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  what.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  what.message.registered = static_cast<nvtxStringHandle_t>(name.handle_);
  what.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  what.payload.ullValue = bytes;
  nvtxDomainRangePushEx(Domain(), &what);
}

Range::~Range() { nvtxDomainRangePop(Domain()); }

const char* NvtxVersion() { return "3"; }
#else
RangeName::RangeName(const std::string&) {}
Range::Range(const RangeName&, uint64_t) {}
Range::~Range() {}
const char* NvtxVersion() { return ""; }
#endif

}  // namespace jaxring::cuda
