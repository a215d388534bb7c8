// A libibverbs for tests, without devices: a write of a queue pair copies memory within this process, completes at once
// and brings its notice. It has the functions that transport/verbs calls, and the layouts of verbs_abi.h.
#include "tests/transport/verbs/fake_ibverbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "transport/verbs/endpoint/verbs_abi.h"

namespace {

using namespace jaxring::verbs;
using jaxring::test::FakeVerbs;

struct FakeContext : Context {
  int index = 0;
};

struct FakeChannel : CompletionChannel {
  Cq* cq = nullptr;
};

struct FakeCq : Cq {
  FakeChannel* channel = nullptr;
  bool armed = false;
  std::deque<Completion> completions;
};

struct FakeQp : Qp {
  int state = 0;
  uint32_t peer = 0;
  std::deque<uint64_t> receives, unanswered;  // ids
};

// All devices share these.
std::mutex mutex;
std::map<uint32_t, FakeQp*> queue_pairs;
uint32_t numbers = 0;
FakeVerbs fake;
std::array<Device, 2> devices;

void Complete(Cq* queue, uint64_t id, int status, int opcode = 0, uint32_t imm = 0) {
  auto* cq = static_cast<FakeCq*>(queue);
  Completion completion{};
  completion.id = id;
  completion.status = status;
  completion.opcode = opcode;
  completion.imm = imm;
  cq->completions.push_back(completion);
  if (!std::exchange(cq->armed, false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(cq->channel->fd, &one, sizeof one);
}

void Flush(FakeQp* qp) {
  qp->state = kError;
  for (auto* ids : {&qp->unanswered, &qp->receives}) {
    for (const uint64_t id : *ids) Complete(qp->send_cq, id, kFlushed);
    ids->clear();
  }
}

void Send(FakeQp* qp, const SendWork& work) {
  const int device = static_cast<FakeContext*>(qp->context)->index;
  const auto peer = queue_pairs.find(qp->peer);
  fake.posted += work.opcode == kWrite || work.opcode == kWriteWithImm;
  if (qp->state == kError) return Complete(qp->send_cq, work.id, kFlushed);
  if (fake.silent[device] || peer == queue_pairs.end() || peer->second->state == kError) {
    return qp->unanswered.push_back(work.id);
  }
  if (work.sge_count == 1 && work.opcode != kSendWithImm) {
    std::memcpy(reinterpret_cast<char*>(work.remote_address), reinterpret_cast<const char*>(work.sges->address),
                work.sges->length);
  }
  if (work.opcode == kWriteWithImm || work.opcode == kSendWithImm) {
    auto& receives = peer->second->receives;
    Complete(peer->second->receive_cq, receives.front(), kSuccess, kWcReceiveImm, work.imm);
    receives.pop_front();
  }
  if (work.flags & kSignaled) Complete(qp->send_cq, work.id, kSuccess);
}

int PollCq(Cq* queue, int most, Completion* completions) {
  std::lock_guard lock(mutex);
  auto& all = static_cast<FakeCq*>(queue)->completions;
  const int n = std::min(most, static_cast<int>(all.size()));
  std::copy_n(all.begin(), n, completions);
  all.erase(all.begin(), all.begin() + n);
  return n;
}

int RequestNotify(Cq* cq, int) {
  std::lock_guard lock(mutex);
  static_cast<FakeCq*>(cq)->armed = true;
  return 0;
}

int PostSend(Qp* qp, SendWork* work, SendWork**) {
  std::lock_guard lock(mutex);
  for (; work != nullptr; work = work->next) Send(static_cast<FakeQp*>(qp), *work);
  return 0;
}

int PostReceive(Qp* qp, ReceiveWork* work, ReceiveWork**) {
  std::lock_guard lock(mutex);
  static_cast<FakeQp*>(qp)->receives.push_back(work->id);
  return 0;
}

void FailNewest() {
  std::lock_guard lock(mutex);
  FakeQp* qp = queue_pairs.rbegin()->second;
  Complete(qp->send_cq, 0, kRetryExceeded);
  Flush(qp);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

FakeVerbs* fake_verbs() {
  fake.fail_newest = FailNewest;
  return &fake;
}

Device** ibv_get_device_list(int* count) {
  auto** list = new Device*[devices.size()];
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string name = "fake" + std::to_string(i);
    std::memcpy(devices[i].name, name.c_str(), name.size() + 1);
    list[i] = &devices[i];
  }
  *count = static_cast<int>(devices.size());
  return list;
}

void ibv_free_device_list(Device** list) { delete[] list; }

Context* ibv_open_device(Device* device) {
  auto* context = new FakeContext{};
  context->device = device;
  context->index = static_cast<int>(device - devices.data());
  context->poll_cq = PollCq;
  context->request_notify = RequestNotify;
  context->post_send = PostSend;
  context->post_receive = PostReceive;
  return context;
}

int ibv_close_device(Context* context) {
  delete static_cast<FakeContext*>(context);
  return 0;
}

int ibv_query_port(Context*, uint8_t, PortAttributes* port) {
  port->state = kPortActive;
  port->active_mtu = 5;
  port->link_layer = kLinkEthernet;
  return 0;
}

int ibv_query_gid(Context*, uint8_t, int, Gid* gid) {
  *gid = {};
  gid->raw[0] = 0xfe;
  return 0;
}

Pd* ibv_alloc_pd(Context* context) { return new Pd{context}; }

int ibv_dealloc_pd(Pd* pd) {
  delete pd;
  return 0;
}

Mr* ibv_reg_mr(Pd* pd, void* memory, size_t bytes, int) {
  if (fake.no_memory[static_cast<FakeContext*>(pd->context)->index]) {
    errno = ENOMEM;
    return nullptr;
  }
  std::lock_guard lock(mutex);
  const uint32_t key = ++numbers;
  return new Mr{pd->context, pd, memory, bytes, 0, key, key};
}

int ibv_dereg_mr(Mr* memory) {
  delete memory;
  return 0;
}

CompletionChannel* ibv_create_comp_channel(Context* context) {
  auto* channel = new FakeChannel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC);
  return channel;
}

int ibv_destroy_comp_channel(CompletionChannel* channel) {
  close(channel->fd);
  delete static_cast<FakeChannel*>(channel);
  return 0;
}

Cq* ibv_create_cq(Context* context, int, void*, CompletionChannel* channel, int) {
  auto* cq = new FakeCq{};
  cq->context = context;
  cq->channel = static_cast<FakeChannel*>(channel);
  cq->channel->cq = cq;
  return cq;
}

int ibv_destroy_cq(Cq* cq) {
  delete static_cast<FakeCq*>(cq);
  return 0;
}

int ibv_get_cq_event(CompletionChannel* channel, Cq** cq, void**) {
  uint64_t events;
  *cq = static_cast<FakeChannel*>(channel)->cq;
  return read(channel->fd, &events, sizeof events) == sizeof events ? 0 : -1;
}

void ibv_ack_cq_events(Cq*, unsigned) {}

Qp* ibv_create_qp(Pd* pd, QpInit* init) {
  std::lock_guard lock(mutex);
  auto* qp = new FakeQp{};
  qp->context = pd->context;
  qp->send_cq = init->send_cq;
  qp->receive_cq = init->receive_cq;
  qp->number = ++numbers;
  queue_pairs[qp->number] = qp;
  return qp;
}

int ibv_modify_qp(Qp* queue_pair, QpAttributes* to, int mask) {
  std::lock_guard lock(mutex);
  auto* qp = static_cast<FakeQp*>(queue_pair);
  if (mask & kMaskDestQpn) qp->peer = to->dest_qpn;
  qp->state = to->state;
  if (qp->state == kError) Flush(qp);
  return 0;
}

int ibv_destroy_qp(Qp* qp) {
  if (fake.on_destroy) fake.on_destroy();
  std::lock_guard lock(mutex);
  queue_pairs.erase(qp->number);
  delete static_cast<FakeQp*>(qp);
  return 0;
}

const char* ibv_wc_status_str(int) { return "a status"; }

}  // extern "C"
#pragma GCC visibility pop
