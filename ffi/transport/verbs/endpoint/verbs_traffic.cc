// A connected endpoint's traffic: writes, notices, completions, and the texts of failures.
#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/verbs/endpoint/verbs_endpoint.h"

namespace jaxring::verbs {
namespace {

// A work request's id holds the queue pair and the sender's id or the receive entry.
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr int kQueuePairShift = 48;
constexpr uint64_t kNoticeOnly = (uint64_t{1} << kQueuePairShift) - 1;  // a send's id that nobody waits for
constexpr uint64_t kWriteOnly = kNoticeOnly - 1;  // a write's; its notice, the next request, has the sender's id

}  // namespace

void Endpoint::PostReceives(int queue_pair) {
  for (uint32_t slot = 0; slot < kNotices; ++slot) {
    if (!PostReceive(queue_pair, slot)) throw std::runtime_error(failure_.error);
  }
}

bool Endpoint::PostReceive(int queue_pair, uint32_t slot) {
  Sge sge{};
  ReceiveWork work{}, *bad = nullptr;
  work.id = kReceiveBit | uint64_t(queue_pair) << kQueuePairShift | slot;
  if (cm_) {
    sge = notices_->Place(queue_pair, slot);
    work.sges = &sge;
    work.sge_count = 1;
  }
  const int error = port_.context()->post_receive(qps_[queue_pair], &work, &bad);
  receives_ += error == 0;
  if (error == 0) return true;
  Fail(Place(queue_pair) + ": posting a receive failed (" + ErrnoText(error) + ")");
  return false;
}

bool Endpoint::Post(int queue_pair, SendWork* work) {
  SendWork* bad = nullptr;
  const int error = port_.context()->post_send(qps_[queue_pair], work, &bad);
  if (error == 0) return true;
  Fail(Place(queue_pair) + ": posting a write failed (" + ErrnoText(error) + ")");
  return false;
}

bool Endpoint::Write(int queue_pair, const char* data, uint32_t bytes, uint32_t notice, uint64_t id, bool signaled) {
  Sge sge{reinterpret_cast<uint64_t>(data), bytes, memory_->lkey()};
  SendWork write{};
  write.id = uint64_t(queue_pair) << kQueuePairShift | id;
  write.sges = &sge;
  write.sge_count = 1;
  write.remote_address = peer_.memory + (sge.address - offer_.memory);
  write.rkey = peer_.rkey;
  if (bytes <= max_inline_) write.flags |= kInline;
  const unsigned flags = signaled ? unsigned(kSignaled) : 0;
  if (!cm_) {
    write.opcode = kWriteWithImm;
    write.imm = htonl(notice);
    write.flags |= flags;
    return Post(queue_pair, &write);
  }
  write.opcode = kWrite;
  write.id = uint64_t(queue_pair) << kQueuePairShift | kWriteOnly;
  // The notice's completion means that the write is complete, but not on every device that its memory may be changed:
  // soft-iWARP hands an unsignaled write of a page or more to TCP by reference and completes the notice while TCP still
  // has to send or resend from there. It copies a signaled write. Inline bytes are copied already.
  if (bytes > max_inline_) write.flags |= kSignaled;
  Sge word{};
  SendWork tell{};
  PrepareNotice(&tell, &word, notice);
  tell.id = uint64_t(queue_pair) << kQueuePairShift | id;
  tell.flags |= flags;
  write.next = &tell;
  return Post(queue_pair, &write);
}

bool Endpoint::WriteDirect(int queue_pair, const DirectPiece& piece) {
  if (piece.bytes == 0) return true;
  // Never inline, since the CPU cannot read a GPU's memory.
  Sge sge{reinterpret_cast<uint64_t>(piece.from), piece.bytes, piece.key};
  SendWork write{};
  write.id = uint64_t(queue_pair) << kQueuePairShift | kNoticeOnly;
  write.sges = &sge;
  write.sge_count = 1;
  write.opcode = kWrite;
  write.remote_address = piece.to;
  write.rkey = piece.to_key;
  return Post(queue_pair, &write);
}

void Endpoint::PrepareNotice(SendWork* work, Sge* sge, uint32_t notice) {
  // A buffer is reused after kNotices others. The peer has received its notice by then, whether or not our device has
  // reported it: each notice stands for a position of the rings' 40 slots, which is not reused before the peer's
  // credit.
  *sge = notices_->Send(notice);
  work->sges = sge;
  work->sge_count = 1;
  work->opcode = kSend;
  if (max_inline_ >= sge->length) work->flags |= kInline;
}

bool Endpoint::Notify(int queue_pair, uint32_t notice) {
  Sge word{};
  SendWork work{};
  if (cm_) {
    PrepareNotice(&work, &word, notice);
  } else {
    work.opcode = kSendWithImm;
    work.imm = htonl(notice);
  }
  work.id = uint64_t(queue_pair) << kQueuePairShift | kNoticeOnly;
  work.flags |= kSignaled;
  return Post(queue_pair, &work);
}

bool Endpoint::Mark(int queue_pair, uint64_t id) {
  SendWork work{};
  work.id = uint64_t(queue_pair) << kQueuePairShift | id;
  work.opcode = kWrite;
  work.flags = kSignaled;
  work.remote_address = peer_.memory;
  work.rkey = peer_.rkey;
  return Post(queue_pair, &work);
}

bool Endpoint::Poll(std::vector<Event>* events) {
  while (failure_.error.empty() && TakeCompletions(events)) {
  }
  return failure_.error.empty();
}

bool Endpoint::TakeCompletions(std::vector<Event>* events) {
  std::array<Completion, 16> completions;
  const int n = port_.context()->poll_cq(cq_.get(), static_cast<int>(completions.size()), completions.data());
  if (n < 0) Fail(port_.words() + ": polling the completion queue failed");
  // Behind one that failed there may be others that did not.
  for (int i = 0; i < n; ++i) Take(completions[i], events);
  return n > 0;
}

void Endpoint::Take(const Completion& completion, std::vector<Event>* events) {
  const bool receive = completion.id & kReceiveBit;
  const int queue_pair = static_cast<int>((completion.id & ~kReceiveBit) >> kQueuePairShift);
  receives_ -= receive;
  if (completion.status != kSuccess) {
    if (!failure_.error.empty() || (stopped_ && completion.status == kFlushed)) return;
    failure_.closed_by_peer = completion.status == kFlushed;
    failure_.unreachable = completion.status == kFlushed || completion.status == kRetryExceeded ||
                           completion.status == kRnrRetryExceeded || !port_.IsActive();
    return Fail(Place(queue_pair) + ": " + StatusText(completion));
  }
  // Its notice's completion comes next.
  if (!receive && (completion.id & kNoticeOnly) == kWriteOnly) return;
  if (!receive) return events->push_back({false, queue_pair, completion.id & kNoticeOnly});
  const uint32_t slot = static_cast<uint32_t>(completion.id & kNoticeOnly);
  const uint32_t notice = cm_ ? notices_->Notice(queue_pair, slot) : ntohl(completion.imm);
  events->push_back({true, queue_pair, notice});
  // The entry is posted again before the sender can learn that there is room for another notice.
  if (failure_.error.empty() && !stopped_) PostReceive(queue_pair, slot);
}

void Endpoint::Stop(std::vector<Event>* events, std::chrono::milliseconds limit) {
  stopped_ = true;
  QpAttributes to{};
  to.state = kError;
  for (Qp* qp : qps_) port_.api()->modify_qp(qp, &to, kMaskState);
  // The device returns every entry, those without a notice as flushed. Once it has, no notice can arrive any more.
  const auto until = std::chrono::steady_clock::now() + limit;
  while (true) {
    if (TakeCompletions(events)) continue;
    if (receives_ == 0 || std::chrono::steady_clock::now() > until) return;
    std::this_thread::yield();
  }
}

void Endpoint::TakeEvents() {
  Cq* cq;
  void* user;
  while (port_.api()->get_cq_event(channel_.get(), &cq, &user) == 0) port_.api()->ack_cq_events(cq, 1);
}

bool Endpoint::Arm() {
  TakeEvents();
  if (port_.context()->request_notify(cq_.get(), 0) == 0) return true;
  Fail(port_.words() + ": asking for completion events failed");
  return false;
}

void Endpoint::Fail(const std::string& what) {
  if (failure_.error.empty()) failure_.error = what;
}

void Endpoint::FailForPort() {
  Fail(Place(0) + ": the port is down, and what was sent has not arrived for longer than JAXRING_IB_TIMEOUT and " +
       "JAXRING_IB_RETRY_CNT allow; look at the link (`rdma link`, `ip link`)");
}

std::string Endpoint::StatusText(const Completion& completion) const {
  std::string text = std::string(port_.api()->wc_status_str(completion.status)) + " (status " +
                     std::to_string(completion.status) + ", vendor error " + std::to_string(completion.vendor_error) +
                     ")";
  if (!port_.IsActive()) return text + ": the port is down; look at the link (`rdma link`, `ip link`)";
  switch (completion.status) {
    case kRetryExceeded:
      return text + ": the peer's device does not answer; look at its link and process, or raise JAXRING_IB_TIMEOUT " +
             "and JAXRING_IB_RETRY_CNT";
    case kRnrRetryExceeded:
      return text + ": the peer's receive queue was full, which credits should prevent; this is a fault of jaxring";
    case kFlushed:
      return text + ": the connection was closed";
    default:
      return text + ": look at both hosts' kernel logs for the device";
  }
}

std::string Endpoint::Describe() const {
  static constexpr int kSmallestMtu = 128;
  std::string numbers;
  for (int i = 0; i < queue_pairs(); ++i) {
    numbers += (i == 0 ? "" : ", ") + std::to_string(qps_[i]->number);
    if (!cm_) numbers += " to " + std::to_string(peer_.qpn[i]);
  }
  const std::string peer = cm_              ? std::string("the peer")
                           : offer_.has_gid ? "GID " + GidText(peer_.gid)
                                            : "LID " + std::to_string(peer_.lid);
  return port_.words() + " to " + peer + ", MTU " + std::to_string(kSmallestMtu << std::min(offer_.mtu, peer_.mtu)) +
         ", queue pairs " + numbers;
}

}  // namespace jaxring::verbs
