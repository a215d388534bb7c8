// libibverbs and librdmacm, loaded when first asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/verbs/endpoint/verbs_abi.h"

struct sockaddr;

namespace jaxring::verbs {

// The functions of libibverbs, under its names without their prefix.
struct DeviceApi {
  Device** (*get_device_list)(int* count);
  void (*free_device_list)(Device**);
  Context* (*open_device)(Device*);
  int (*close_device)(Context*);
  int (*query_port)(Context*, uint8_t port, PortAttributes*);
  int (*query_gid)(Context*, uint8_t port, int index, Gid*);
};

struct MemoryApi {
  Pd* (*alloc_pd)(Context*);
  int (*dealloc_pd)(Pd*);
  Mr* (*reg_mr)(Pd*, void*, size_t, int access);
  // nullptr where the library is older than rdma-core 34.
  Mr* (*reg_dmabuf_mr)(Pd*, uint64_t offset, size_t, uint64_t iova, int fd, int access);
  int (*dereg_mr)(Mr*);
};

struct CompletionApi {
  CompletionChannel* (*create_comp_channel)(Context*);
  int (*destroy_comp_channel)(CompletionChannel*);
  Cq* (*create_cq)(Context*, int entries, void* user, CompletionChannel*, int vector);
  int (*destroy_cq)(Cq*);
  int (*get_cq_event)(CompletionChannel*, Cq**, void** user);
  void (*ack_cq_events)(Cq*, unsigned count);
  const char* (*wc_status_str)(int status);
};

struct QueuePairApi {
  Qp* (*create_qp)(Pd*, QpInit*);
  int (*modify_qp)(Qp*, QpAttributes*, int mask);
  int (*destroy_qp)(Qp*);
};

struct Api : DeviceApi, MemoryApi, CompletionApi, QueuePairApi {};

// The functions of librdmacm, likewise.
struct CmApi {
  CmChannel* (*create_event_channel)();
  void (*destroy_event_channel)(CmChannel*);
  int (*create_id)(CmChannel*, CmId**, void* user, int port_space);
  int (*destroy_id)(CmId*);
  int (*bind_addr)(CmId*, sockaddr*);
  int (*listen)(CmId*, int backlog);
  uint16_t (*get_src_port)(CmId*);
  int (*resolve_addr)(CmId*, sockaddr* from, sockaddr* to, int timeout_ms);
  int (*resolve_route)(CmId*, int timeout_ms);
  int (*connect)(CmId*, CmParameters*);
  int (*accept)(CmId*, CmParameters*);
  int (*reject)(CmId*, const void*, uint8_t);
  int (*disconnect)(CmId*);
  int (*create_qp)(CmId*, Pd*, QpInit*);
  void (*destroy_qp)(CmId*);
  int (*get_cm_event)(CmChannel*, CmEvent**);
  int (*ack_cm_event)(CmEvent*);
};

// nullptr where the library is not there or lacks a function; `why` then says which, and how to get it.
const Api* LoadApi(std::string* why);
const CmApi* LoadCmApi(std::string* why);

}  // namespace jaxring::verbs
