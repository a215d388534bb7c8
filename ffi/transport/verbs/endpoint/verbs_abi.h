// The part of libibverbs' binary interface that we use, declared by ourselves: a build needs no RDMA headers, and a
// program no RDMA libraries. The layouts are those of symbol version IBVERBS_1.1, which every libibverbs since 2006
// has. verbs_abi_test compares them with the real header where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring::verbs {

struct alignas(8) Gid {
  uint8_t raw[16];
};

enum Transport : int { kTransportIb = 0, kTransportIwarp = 1 };
enum LinkLayer : uint8_t { kLinkInfiniband = 1, kLinkEthernet = 2 };
enum PortState : int { kPortActive = 4 };
enum QpType : int { kQpReliable = 2 };
enum QpState : int { kInit = 1, kReadyToReceive = 2, kReadyToSend = 3, kError = 6 };
enum Access : int { kAccessLocalWrite = 1, kAccessRemoteWrite = 2 };
enum SendOpcode : int { kWrite = 0, kWriteWithImm = 1, kSend = 2, kSendWithImm = 3 };
enum SendFlag : unsigned { kSignaled = 2, kInline = 8 };
enum WcStatus : int { kSuccess = 0, kFlushed = 5, kRetryExceeded = 12, kRnrRetryExceeded = 13 };
enum WcOpcode : int { kWcReceive = 128, kWcReceiveImm = 129 };

// Which attributes a ModifyQp sets.
enum QpMask : int {
  kMaskState = 1 << 0,
  kMaskAccess = 1 << 3,
  kMaskPkeyIndex = 1 << 4,
  kMaskPort = 1 << 5,
  kMaskAddress = 1 << 7,
  kMaskPathMtu = 1 << 8,
  kMaskTimeout = 1 << 9,
  kMaskRetryCount = 1 << 10,
  kMaskRnrRetry = 1 << 11,
  kMaskReceivePsn = 1 << 12,
  kMaskReadAtomics = 1 << 13,
  kMaskMinRnrTimer = 1 << 15,
  kMaskSendPsn = 1 << 16,
  kMaskDestReadAtomics = 1 << 17,
  kMaskDestQpn = 1 << 20,
};

struct Device {
  void* reserved[2];
  int node_type;
  int transport;
  char name[64];
  char uverbs_name[64];
  char uverbs_path[256];
  char path[256];  // in sysfs
};

struct Qp;
struct Cq;
struct SendWork;
struct ReceiveWork;
struct Completion;

struct Context {
  Device* device;
  void* unused0[11];
  int (*poll_cq)(Cq*, int, Completion*);
  int (*request_notify)(Cq*, int solicited_only);
  void* unused1[12];
  int (*post_send)(Qp*, SendWork*, SendWork** bad);
  int (*post_receive)(Qp*, ReceiveWork*, ReceiveWork** bad);
  void* unused2[5];
  int command_fd;
  int async_fd;
};

struct PortAttributes {
  int state;
  int max_mtu;
  int active_mtu;  // 1: 256 bytes, and twice as many for each more
  int gid_table_length;
  uint32_t capabilities;
  uint32_t max_message_bytes;
  uint32_t bad_pkeys, bad_qkeys;
  uint16_t pkey_table_length;
  uint16_t lid;
  uint16_t sm_lid;
  uint8_t lmc, max_vls, sm_sl, subnet_timeout, init_reply;
  uint8_t active_width;
  uint8_t active_speed;
  uint8_t physical_state;
  uint8_t link_layer;
  uint8_t flags;
  uint16_t capabilities2;
  uint8_t later[64];  // what newer libraries may add
};

struct Pd {
  Context* context;
};

struct Mr {
  Context* context;
  Pd* pd;
  void* address;
  size_t length;
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct CompletionChannel {
  Context* context;
  int fd;
};

struct Cq {
  Context* context;
};

struct Qp {
  Context* context;
  void* user;
  Pd* pd;
  Cq *send_cq, *receive_cq;
  void* srq;
  uint32_t handle;
  uint32_t number;
};

struct QpCapabilities {
  uint32_t max_send_work, max_receive_work, max_send_sges, max_receive_sges, max_inline;
};

struct QpInit {
  void* user;
  Cq *send_cq, *receive_cq;
  void* srq;
  QpCapabilities capabilities;
  int type;
  int signal_all;
};

struct AddressVector {
  Gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
  uint16_t dlid;
  uint8_t sl;
  uint8_t source_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port;
};

struct QpAttributes {
  int state, current_state;
  int path_mtu;
  int migration;
  uint32_t qkey;
  uint32_t receive_psn, send_psn;
  uint32_t dest_qpn;
  unsigned access;
  QpCapabilities capabilities;
  AddressVector address, alternate;
  uint16_t pkey_index, alternate_pkey_index;
  uint8_t drain_notify, draining;
  uint8_t read_atomics, dest_read_atomics;
  uint8_t min_rnr_timer;
  uint8_t port;
  uint8_t timeout;
  uint8_t retry_count;
  uint8_t rnr_retry;
  uint8_t alternate_port, alternate_timeout;
  uint32_t rate_limit;
};

struct Sge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};

struct SendWork {
  uint64_t id;
  SendWork* next;
  Sge* sges;
  int sge_count;
  int opcode;
  unsigned flags;
  uint32_t imm;  // big endian
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t other_opcodes[5];
  uint32_t shared_receive_queue[2];
  uint64_t memory_windows[6];
};

struct ReceiveWork {
  uint64_t id;
  ReceiveWork* next;
  Sge* sges;
  int sge_count;
};

struct Completion {
  uint64_t id;
  int status;
  int opcode;
  uint32_t vendor_error;
  uint32_t bytes;
  uint32_t imm;  // big endian
  uint32_t qpn;
  uint32_t source_qpn;
  unsigned flags;
  uint16_t pkey_index;
  uint16_t slid;
  uint8_t sl;
  uint8_t dlid_path_bits;
};

// librdmacm, which iWARP needs to connect a queue pair.
struct CmChannel {
  int fd;
};

struct CmId {
  Context* context;
  CmChannel* channel;
  void* user;
  Qp* qp;
};

enum CmPortSpace : int { kCmTcp = 0x0106 };
enum CmEventType : int {
  kCmAddressResolved = 0,
  kCmRouteResolved = 2,
  kCmConnectRequest = 4,
  kCmEstablished = 9,
};

struct CmParameters {
  const void* data;
  uint8_t data_bytes;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  uint32_t qpn;
};

struct CmEvent {
  CmId* id;
  CmId* listener;
  int type;
  int status;
  CmParameters parameters;
};

}  // namespace jaxring::verbs
