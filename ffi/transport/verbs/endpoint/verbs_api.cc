#include "transport/verbs/endpoint/verbs_api.h"

#include <dlfcn.h>

namespace jaxring::verbs {
namespace {

// The library stays loaded, because its threads and those of its drivers would not survive an unload.
class Library {
 public:
  explicit Library(const char* file) : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) why_ = dlerror();
  }
  template <class F>
  void Find(const char* name, F** function) {
    if (!why_.empty()) return;
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) why_ = std::string("it has no ") + name;
    *function = reinterpret_cast<F*>(symbol);
  }
  template <class F>
  void FindIfThere(const char* name, F** function) {
    if (why_.empty()) *function = reinterpret_cast<F*>(dlsym(handle_, name));
  }
  const std::string& why() const { return why_; }

 private:
  void* handle_;
  std::string why_;
};

template <class T>
struct Loaded {
  T api{};
  std::string why;
};

Loaded<Api> Load() {
  Loaded<Api> result;
  Library library("libibverbs.so.1");
  Api& a = result.api;
  library.Find("ibv_get_device_list", &a.get_device_list);
  library.Find("ibv_free_device_list", &a.free_device_list);
  library.Find("ibv_open_device", &a.open_device);
  library.Find("ibv_close_device", &a.close_device);
  library.Find("ibv_query_port", &a.query_port);
  library.Find("ibv_query_gid", &a.query_gid);
  library.Find("ibv_alloc_pd", &a.alloc_pd);
  library.Find("ibv_dealloc_pd", &a.dealloc_pd);
  library.Find("ibv_reg_mr", &a.reg_mr);
  library.FindIfThere("ibv_reg_dmabuf_mr", &a.reg_dmabuf_mr);
  library.Find("ibv_dereg_mr", &a.dereg_mr);
  library.Find("ibv_create_comp_channel", &a.create_comp_channel);
  library.Find("ibv_destroy_comp_channel", &a.destroy_comp_channel);
  library.Find("ibv_create_cq", &a.create_cq);
  library.Find("ibv_destroy_cq", &a.destroy_cq);
  library.Find("ibv_get_cq_event", &a.get_cq_event);
  library.Find("ibv_ack_cq_events", &a.ack_cq_events);
  library.Find("ibv_create_qp", &a.create_qp);
  library.Find("ibv_modify_qp", &a.modify_qp);
  library.Find("ibv_destroy_qp", &a.destroy_qp);
  library.Find("ibv_wc_status_str", &a.wc_status_str);
  if (!library.why().empty()) {
    result.why = "libibverbs cannot be used (" + library.why() +
                 "): install rdma-core (Debian: libibverbs1 and ibverbs-providers)";
  }
  return result;
}

Loaded<CmApi> LoadCm() {
  Loaded<CmApi> result;
  Library library("librdmacm.so.1");
  CmApi& a = result.api;
  library.Find("rdma_create_event_channel", &a.create_event_channel);
  library.Find("rdma_destroy_event_channel", &a.destroy_event_channel);
  library.Find("rdma_create_id", &a.create_id);
  library.Find("rdma_destroy_id", &a.destroy_id);
  library.Find("rdma_bind_addr", &a.bind_addr);
  library.Find("rdma_listen", &a.listen);
  library.Find("rdma_get_src_port", &a.get_src_port);
  library.Find("rdma_resolve_addr", &a.resolve_addr);
  library.Find("rdma_resolve_route", &a.resolve_route);
  library.Find("rdma_connect", &a.connect);
  library.Find("rdma_accept", &a.accept);
  library.Find("rdma_reject", &a.reject);
  library.Find("rdma_disconnect", &a.disconnect);
  library.Find("rdma_create_qp", &a.create_qp);
  library.Find("rdma_destroy_qp", &a.destroy_qp);
  library.Find("rdma_get_cm_event", &a.get_cm_event);
  library.Find("rdma_ack_cm_event", &a.ack_cm_event);
  if (!library.why().empty()) {
    result.why =
        "librdmacm, which iWARP needs, cannot be used (" + library.why() + "): install it (Debian: librdmacm1)";
  }
  return result;
}

template <class T>
const T* Give(const Loaded<T>& loaded, std::string* why) {
  if (loaded.why.empty()) return &loaded.api;
  *why = loaded.why;
  return nullptr;
}

}  // namespace

const Api* LoadApi(std::string* why) {
  static const Loaded<Api> loaded = Load();
  return Give(loaded, why);
}

const CmApi* LoadCmApi(std::string* why) {
  static const Loaded<CmApi> loaded = LoadCm();
  return Give(loaded, why);
}

}  // namespace jaxring::verbs
