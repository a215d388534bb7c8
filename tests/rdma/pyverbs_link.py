"""One direction of our verbs transport, made with pyverbs: rings, offers, notices and credits as they are documented.

What is written down here a second time, on purpose: the offer (ffi/transport/verbs/endpoint/verbs_offer.h), the rings
(ring.h and link.cc in ffi/transport/core), and the notices (verbs.h).
"""

from __future__ import annotations

import ipaddress
import socket
import struct

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

OFFER = struct.Struct("<I4B16s16sQQQII16IHH48s4x")
HEADER = struct.Struct("<QIIHHIII")  # behind the flag
FLAG_BYTES = 8
NOTICES = 64
CREDIT, PROTOCOL_SHIFT = 1 << 31, 30
POSITIONS = (1 << PROTOCOL_SHIFT) - 1
SLOT_BYTES = 8192
PORT, GID_INDEX = 1, 1


class Ring:
    """One of a link's two rings: where its slots are, and how far it has got."""

    def __init__(self, begin: int, slots: int, payload_offset: int, payload_bytes: int) -> None:
        self.slots, self.payload_offset, self.payload_bytes = slots, payload_offset, payload_bytes
        self.stride = -(-(payload_offset + payload_bytes) // 64) * 64
        self.begin = begin + 128  # head and the sender's wish, a line each
        self.end = self.begin + slots * self.stride
        self.next = self.credited = 0
        self.taken: set[int] = set()

    def slot(self, position: int) -> int:
        return self.begin + position % self.slots * self.stride


class Link:
    """One direction's queue pairs and memory, at this end."""

    def __init__(self, context: Context, theirs: tuple, psn: int) -> None:
        _, _, self.mtu, self.count, _, _, gid, self.address, size, _, self.rkey, self.their_psn, *rest = theirs
        self.their_qpns, self.their_gid = rest[: self.count], ipaddress.IPv6Address(gid)
        self.psn = psn
        first = Ring(0, 32, FLAG_BYTES + HEADER.size, 4096)
        self.rings = (first, Ring(-(-first.end // 4096) * 4096, 8, 64, SLOT_BYTES))
        assert -(-self.rings[1].end // 4096) * 4096 == size, "the rings are laid out as we think"
        self.context, self.pd = context, PD(context)
        self.memory = MR(self.pd, size, enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE)
        self.cq = CQ(context, 1024)
        self.qps = []
        for _ in range(self.count):
            init = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(192, NOTICES, 1, 1))
            qp = QP(self.pd, init)
            qp.to_init(self.attributes())
            self.qps.append(qp)
            for _ in range(NOTICES):
                self.receive(len(self.qps) - 1)

    def attributes(self) -> QPAttr:
        attributes = QPAttr(port_num=PORT)
        attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_WRITE
        return attributes

    def offer(self, theirs: tuple) -> str:
        """As theirs, but for what is our own."""
        gid = ipaddress.IPv6Address(str(self.context.query_gid(PORT, GID_INDEX).gid)).packed
        qpns = [qp.qp_num for qp in self.qps] + [0] * (16 - self.count)
        ours = (self.memory.buf, self.memory.length, 0, self.memory.rkey, self.psn, *qpns, 0, 0, b"")
        return OFFER.pack(*theirs[:6], gid, *ours).hex()

    def connect(self) -> None:
        for qp, number in zip(self.qps, self.their_qpns, strict=True):
            attributes = self.attributes()
            attributes.path_mtu = self.mtu
            attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = number, self.their_psn, self.psn
            attributes.min_rnr_timer, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 12, 14, 7, 6
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 0
            route = GlobalRoute(dgid=GID(self.their_gid.exploded), sgid_index=GID_INDEX)
            route.hop_limit = 64
            attributes.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route)
            qp.to_rts(attributes)

    def nothing(self) -> list[SGE]:
        """pyverbs wants a piece of memory for every request, if only an empty one."""
        return [SGE(self.memory.buf, 0, self.memory.lkey)]

    def receive(self, index: int) -> None:
        self.qps[index].post_recv(RecvWR(wr_id=index, num_sge=1, sg=self.nothing()))

    def post(self, index: int, opcode: int, sges: list[SGE], notice: int, address: int = 0) -> None:
        work = SendWR(
            wr_id=index,
            opcode=opcode,
            num_sge=len(sges),
            sg=sges,
            send_flags=enums.IBV_SEND_SIGNALED,
            imm_data=socket.htonl(notice),
        )
        if address:
            work.set_wr_rdma(self.rkey, address)
        self.qps[index].post_send(work)

    def write(self, protocol: int, operation: int, payload: bytes, index: int) -> None:
        """The next message of a ring, header and payload, into the slot of the same place, and the notice of it."""
        ring = self.rings[protocol]
        position, ring.next = ring.next, ring.next + 1
        begin = ring.slot(position) + FLAG_BYTES
        self.memory.write(HEADER.pack(operation, 1, 2, 3, 4, len(payload), 77, 0), HEADER.size, begin)
        if payload:
            self.memory.write(payload, len(payload), ring.slot(position) + ring.payload_offset)
        size = ring.payload_offset - FLAG_BYTES + len(payload)
        sge = SGE(self.memory.buf + begin, size, self.memory.lkey)
        notice = protocol << PROTOCOL_SHIFT | position & POSITIONS
        self.post(index, enums.IBV_WR_RDMA_WRITE_WITH_IMM, [sge], notice, self.address + begin)

    def notify(self, notice: int) -> None:
        self.post(0, enums.IBV_WR_SEND_WITH_IMM, self.nothing(), notice)

    def poll(self) -> list[int]:
        """The notices that have come."""
        notices = []
        count, completions = self.cq.poll(16)
        for completion in completions[:count]:
            assert completion.status == enums.IBV_WC_SUCCESS, f"status {completion.status}"
            if completion.opcode & enums.IBV_WC_RECV:
                notices.append(socket.ntohl(completion.imm_data))
                self.receive(completion.wr_id)
        return notices

    def may_write(self, protocol: int) -> bool:
        ring = self.rings[protocol]
        return ring.next - ring.credited < ring.slots

    def take(self, notice: int) -> tuple[int, tuple, bytes]:
        """The message that a notice speaks of: protocol, header and payload; with credits for its sender as needed."""
        assert not notice & CREDIT, hex(notice)
        protocol = notice >> PROTOCOL_SHIFT
        ring = self.rings[protocol]
        slot = ring.slot(notice & POSITIONS)
        header = HEADER.unpack(self.memory.read(HEADER.size, slot + FLAG_BYTES))
        size = header[5]
        payload = self.memory.read(size, slot + ring.payload_offset) if size else b""
        # Up to where everything has been taken: several queue pairs keep no order among each other.
        ring.taken.add(notice & POSITIONS)
        while ring.next in ring.taken:
            ring.taken.remove(ring.next)
            ring.next += 1
        if ring.next - ring.credited >= ring.slots // 2:
            ring.credited = ring.next
            self.notify(CREDIT | protocol << PROTOCOL_SHIFT | ring.next & POSITIONS)
        return protocol, header, payload
