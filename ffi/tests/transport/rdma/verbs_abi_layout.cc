// Checks while it is compiled that our declarations of libibverbs' and librdmacm's binary interface match the real
// headers.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "transport/verbs/endpoint/verbs_abi.h"

namespace {

namespace ours = jaxring::verbs;

#define SAME(type, field, theirs, their_field)                                  \
  static_assert(offsetof(ours::type, field) == offsetof(theirs, their_field) && \
                sizeof(ours::type::field) == sizeof(theirs::their_field))
#define SIZE(type, theirs) static_assert(sizeof(ours::type) == sizeof(theirs))
#define VALUE(name, theirs) static_assert(static_cast<long>(ours::name) == static_cast<long>(theirs))

SIZE(Gid, ibv_gid);
static_assert(alignof(ours::Gid) == alignof(ibv_gid));
SIZE(Device, ibv_device);
SAME(Device, transport, ibv_device, transport_type);
SAME(Device, name, ibv_device, name);
SAME(Device, path, ibv_device, ibdev_path);
SAME(Context, device, ibv_context, device);
SAME(Context, poll_cq, ibv_context, ops.poll_cq);
SAME(Context, request_notify, ibv_context, ops.req_notify_cq);
SAME(Context, post_send, ibv_context, ops.post_send);
SAME(Context, post_receive, ibv_context, ops.post_recv);
SAME(Context, async_fd, ibv_context, async_fd);
static_assert(sizeof(ours::PortAttributes) >= sizeof(ibv_port_attr));
SAME(PortAttributes, state, ibv_port_attr, state);
SAME(PortAttributes, active_mtu, ibv_port_attr, active_mtu);
SAME(PortAttributes, gid_table_length, ibv_port_attr, gid_tbl_len);
SAME(PortAttributes, lid, ibv_port_attr, lid);
SAME(PortAttributes, active_width, ibv_port_attr, active_width);
SAME(PortAttributes, active_speed, ibv_port_attr, active_speed);
SAME(PortAttributes, link_layer, ibv_port_attr, link_layer);
SAME(Mr, lkey, ibv_mr, lkey);
SAME(Mr, rkey, ibv_mr, rkey);
SAME(CompletionChannel, fd, ibv_comp_channel, fd);
SAME(Qp, number, ibv_qp, qp_num);
SIZE(QpInit, ibv_qp_init_attr);
SAME(QpInit, send_cq, ibv_qp_init_attr, send_cq);
SAME(QpInit, capabilities, ibv_qp_init_attr, cap);
SAME(QpInit, type, ibv_qp_init_attr, qp_type);
SAME(QpCapabilities, max_inline, ibv_qp_cap, max_inline_data);
SIZE(AddressVector, ibv_ah_attr);
SAME(AddressVector, dgid, ibv_ah_attr, grh.dgid);
SAME(AddressVector, sgid_index, ibv_ah_attr, grh.sgid_index);
SAME(AddressVector, hop_limit, ibv_ah_attr, grh.hop_limit);
SAME(AddressVector, dlid, ibv_ah_attr, dlid);
SAME(AddressVector, is_global, ibv_ah_attr, is_global);
SAME(AddressVector, port, ibv_ah_attr, port_num);
SIZE(QpAttributes, ibv_qp_attr);
SAME(QpAttributes, path_mtu, ibv_qp_attr, path_mtu);
SAME(QpAttributes, receive_psn, ibv_qp_attr, rq_psn);
SAME(QpAttributes, send_psn, ibv_qp_attr, sq_psn);
SAME(QpAttributes, dest_qpn, ibv_qp_attr, dest_qp_num);
SAME(QpAttributes, access, ibv_qp_attr, qp_access_flags);
SAME(QpAttributes, address, ibv_qp_attr, ah_attr);
SAME(QpAttributes, pkey_index, ibv_qp_attr, pkey_index);
SAME(QpAttributes, read_atomics, ibv_qp_attr, max_rd_atomic);
SAME(QpAttributes, min_rnr_timer, ibv_qp_attr, min_rnr_timer);
SAME(QpAttributes, port, ibv_qp_attr, port_num);
SAME(QpAttributes, timeout, ibv_qp_attr, timeout);
SAME(QpAttributes, retry_count, ibv_qp_attr, retry_cnt);
SAME(QpAttributes, rnr_retry, ibv_qp_attr, rnr_retry);
SIZE(Sge, ibv_sge);
SAME(Sge, length, ibv_sge, length);
SAME(Sge, lkey, ibv_sge, lkey);
SIZE(SendWork, ibv_send_wr);
SAME(SendWork, next, ibv_send_wr, next);
SAME(SendWork, sges, ibv_send_wr, sg_list);
SAME(SendWork, sge_count, ibv_send_wr, num_sge);
SAME(SendWork, opcode, ibv_send_wr, opcode);
SAME(SendWork, flags, ibv_send_wr, send_flags);
SAME(SendWork, imm, ibv_send_wr, imm_data);
SAME(SendWork, remote_address, ibv_send_wr, wr.rdma.remote_addr);
SAME(SendWork, rkey, ibv_send_wr, wr.rdma.rkey);
SIZE(ReceiveWork, ibv_recv_wr);
SAME(ReceiveWork, sges, ibv_recv_wr, sg_list);
SIZE(Completion, ibv_wc);
SAME(Completion, status, ibv_wc, status);
SAME(Completion, opcode, ibv_wc, opcode);
SAME(Completion, vendor_error, ibv_wc, vendor_err);
SAME(Completion, imm, ibv_wc, imm_data);
SAME(Completion, qpn, ibv_wc, qp_num);
SAME(CmChannel, fd, rdma_event_channel, fd);
SAME(CmId, context, rdma_cm_id, verbs);
SAME(CmId, qp, rdma_cm_id, qp);
SIZE(CmParameters, rdma_conn_param);
SAME(CmParameters, data_bytes, rdma_conn_param, private_data_len);
SAME(CmEvent, id, rdma_cm_event, id);
SAME(CmEvent, type, rdma_cm_event, event);
SAME(CmEvent, status, rdma_cm_event, status);
SAME(CmEvent, parameters, rdma_cm_event, param.conn);

VALUE(kTransportIwarp, IBV_TRANSPORT_IWARP);
VALUE(kLinkEthernet, IBV_LINK_LAYER_ETHERNET);
VALUE(kPortActive, IBV_PORT_ACTIVE);
VALUE(kQpReliable, IBV_QPT_RC);
VALUE(kInit, IBV_QPS_INIT);
VALUE(kReadyToReceive, IBV_QPS_RTR);
VALUE(kReadyToSend, IBV_QPS_RTS);
VALUE(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
VALUE(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
VALUE(kWrite, IBV_WR_RDMA_WRITE);
VALUE(kWriteWithImm, IBV_WR_RDMA_WRITE_WITH_IMM);
VALUE(kSend, IBV_WR_SEND);
VALUE(kSendWithImm, IBV_WR_SEND_WITH_IMM);
VALUE(kSignaled, IBV_SEND_SIGNALED);
VALUE(kInline, IBV_SEND_INLINE);
VALUE(kFlushed, IBV_WC_WR_FLUSH_ERR);
VALUE(kRetryExceeded, IBV_WC_RETRY_EXC_ERR);
VALUE(kRnrRetryExceeded, IBV_WC_RNR_RETRY_EXC_ERR);
VALUE(kMaskState, IBV_QP_STATE);
VALUE(kMaskAccess, IBV_QP_ACCESS_FLAGS);
VALUE(kMaskPkeyIndex, IBV_QP_PKEY_INDEX);
VALUE(kMaskPort, IBV_QP_PORT);
VALUE(kMaskAddress, IBV_QP_AV);
VALUE(kMaskPathMtu, IBV_QP_PATH_MTU);
VALUE(kMaskTimeout, IBV_QP_TIMEOUT);
VALUE(kMaskRetryCount, IBV_QP_RETRY_CNT);
VALUE(kMaskRnrRetry, IBV_QP_RNR_RETRY);
VALUE(kMaskReceivePsn, IBV_QP_RQ_PSN);
VALUE(kMaskReadAtomics, IBV_QP_MAX_QP_RD_ATOMIC);
VALUE(kMaskMinRnrTimer, IBV_QP_MIN_RNR_TIMER);
VALUE(kMaskSendPsn, IBV_QP_SQ_PSN);
VALUE(kMaskDestReadAtomics, IBV_QP_MAX_DEST_RD_ATOMIC);
VALUE(kMaskDestQpn, IBV_QP_DEST_QPN);
VALUE(kCmTcp, RDMA_PS_TCP);
VALUE(kCmAddressResolved, RDMA_CM_EVENT_ADDR_RESOLVED);
VALUE(kCmRouteResolved, RDMA_CM_EVENT_ROUTE_RESOLVED);
VALUE(kCmConnectRequest, RDMA_CM_EVENT_CONNECT_REQUEST);
VALUE(kCmEstablished, RDMA_CM_EVENT_ESTABLISHED);

}  // namespace
