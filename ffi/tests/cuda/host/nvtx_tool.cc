// A tool that NVTX loads from NVTX_INJECTION64_PATH: it records which ranges were opened and closed.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <set>
#include <string>

namespace {

std::mutex mutex;
std::string seen;

// Handles point into this set, whose elements do not move.
const std::string* Keep(const char* text) {
  static std::set<std::string> kept;
  return &*kept.insert(text).first;
}

nvtxDomainHandle_t NVTX_API DomainCreate(const char* name) {
  std::lock_guard lock(mutex);
  return reinterpret_cast<nvtxDomainHandle_t>(const_cast<std::string*>(Keep(name)));
}

nvtxStringHandle_t NVTX_API RegisterString(nvtxDomainHandle_t, const char* text) {
  std::lock_guard lock(mutex);
  return reinterpret_cast<nvtxStringHandle_t>(const_cast<std::string*>(Keep(text)));
}

int NVTX_API Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* what) {
  std::lock_guard lock(mutex);
  const bool registered = what->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  seen += *reinterpret_cast<const std::string*>(domain) + ": " +
          (registered ? *reinterpret_cast<const std::string*>(what->message.registered) : "?") + " " +
          std::to_string(what->payload.ullValue) + "\n";
  return 0;
}

int NVTX_API Pop(nvtxDomainHandle_t domain) {
  std::lock_guard lock(mutex);
  seen += *reinterpret_cast<const std::string*>(domain) + ": pop\n";
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table;
  unsigned int size;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(DomainCreate);
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = reinterpret_cast<NvtxFunctionPointer>(RegisterString);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(Push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}

// The ranges recorded so far, one a line.
extern "C" __attribute__((visibility("default"))) const char* NvtxToolSaw() {
  std::lock_guard lock(mutex);
  return seen.c_str();
}
