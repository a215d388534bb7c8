// Measures when the source of an RDMA write may be filled again, with libibverbs and librdmacm alone and none of our
// code.
//
//   write_source FROM TO BYTES ROUNDS own|later
//
// FROM and TO are the addresses of two RDMA devices of this host. In every round the sender writes BYTES into the
// receiver's memory, sends a word after them on the same queue pair, waits for a completion and fills the source with
// other bytes. The receiver compares its memory when the word has arrived. With `own` the completion is the write's.
// With `later` the write is unsignaled and the completion is the word's, which by the rules of verbs proves the same.
// Prints in how many rounds the receiver found changed bytes. Exits with 1 if there were any, with 2 if anything else
// failed.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint16_t kPort = 7471;
constexpr int kResolveMs = 5000;
constexpr uint64_t kWord = 1, kWrite = 2;  // work requests' ids
constexpr char kOther = 101;               // a value that no round writes

void Must(bool good, const char* what) {
  if (good) return;
  std::cerr << what << " failed: " << std::strerror(errno) << std::endl;
  std::_Exit(2);
}

// Where the receiver's memory is. It is the private data of its acceptance.
struct Target {
  uint64_t address;
  uint32_t key;
};

sockaddr_in Address(const char* text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  Must(inet_pton(AF_INET, text, &address.sin_addr) == 1, "reading an IP address");
  return address;
}

class End {
 public:
  explicit End(size_t bytes) : memory_(bytes + sizeof(uint32_t)), channel_(rdma_create_event_channel()) {
    Must(channel_ != nullptr, "opening /dev/infiniband/rdma_cm");
    Must(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  }
  char* data() { return memory_.data(); }
  size_t bytes() const { return memory_.size() - sizeof(uint32_t); }

  void Bind(const char* address, uint16_t port) {
    sockaddr_in own = Address(address, port);
    Must(rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&own)) == 0, "rdma_bind_addr");
  }
  void Listen(const char* address) {
    Bind(address, kPort);
    Must(rdma_listen(id_, 1) == 0, "rdma_listen");
  }
  void Accept() {
    rdma_cm_event* event = Await(RDMA_CM_EVENT_CONNECT_REQUEST);
    id_ = event->id;
    rdma_ack_cm_event(event);
    MakeQueuePair();
    PostReceive();
    const Target target{reinterpret_cast<uint64_t>(data()), region_->rkey};
    rdma_conn_param parameters{};
    parameters.private_data = &target;
    parameters.private_data_len = sizeof target;
    Must(rdma_accept(id_, &parameters) == 0, "rdma_accept");
    rdma_ack_cm_event(Await(RDMA_CM_EVENT_ESTABLISHED));
  }
  Target Connect(const char* from, const char* to) {
    Bind(from, 0);
    sockaddr_in peer = Address(to, kPort);
    Must(rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&peer), kResolveMs) == 0, "rdma_resolve_addr");
    rdma_ack_cm_event(Await(RDMA_CM_EVENT_ADDR_RESOLVED));
    Must(rdma_resolve_route(id_, kResolveMs) == 0, "rdma_resolve_route");
    rdma_ack_cm_event(Await(RDMA_CM_EVENT_ROUTE_RESOLVED));
    MakeQueuePair();
    rdma_conn_param parameters{};
    parameters.retry_count = parameters.rnr_retry_count = 7;
    Must(rdma_connect(id_, &parameters) == 0, "rdma_connect");
    rdma_cm_event* event = Await(RDMA_CM_EVENT_ESTABLISHED);
    Target target;
    std::memcpy(&target, event->param.conn.private_data, sizeof target);
    rdma_ack_cm_event(event);
    return target;
  }
  void PostReceive() {
    ibv_sge word = Word();
    ibv_recv_wr work{}, *bad;
    work.sg_list = &word;
    work.num_sge = 1;
    Must(ibv_post_recv(id_->qp, &work, &bad) == 0, "ibv_post_recv");
  }
  void WriteAndTell(const Target& target, bool signal_write) {
    ibv_sge source{reinterpret_cast<uint64_t>(data()), static_cast<uint32_t>(bytes()), region_->lkey}, word = Word();
    ibv_send_wr write{}, tell{}, *bad;
    write.wr_id = kWrite;
    write.sg_list = &source;
    write.num_sge = tell.num_sge = 1;
    write.opcode = IBV_WR_RDMA_WRITE;
    write.send_flags = signal_write ? unsigned{IBV_SEND_SIGNALED} : 0;
    write.wr.rdma = {target.address, target.key};
    write.next = &tell;
    tell.wr_id = kWord;
    tell.sg_list = &word;
    tell.opcode = IBV_WR_SEND;
    tell.send_flags = IBV_SEND_SIGNALED;
    Must(ibv_post_send(id_->qp, &write, &bad) == 0, "ibv_post_send");
  }
  // Waits for the next completion and returns its request.
  uint64_t Complete() {
    ibv_wc completion;
    int count;
    while ((count = ibv_poll_cq(queue_, 1, &completion)) == 0) std::this_thread::yield();
    Must(count == 1 && completion.status == IBV_WC_SUCCESS, "a work request");
    return completion.wr_id;
  }

 private:
  rdma_cm_event* Await(rdma_cm_event_type type) {
    rdma_cm_event* event;
    Must(rdma_get_cm_event(channel_, &event) == 0 && event->event == type, rdma_event_str(type));
    return event;
  }
  ibv_sge Word() { return {reinterpret_cast<uint64_t>(data() + bytes()), sizeof(uint32_t), region_->lkey}; }
  void MakeQueuePair() {
    ibv_pd* domain = ibv_alloc_pd(id_->verbs);
    Must(domain != nullptr, "ibv_alloc_pd");
    region_ = ibv_reg_mr(domain, data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    Must(region_ != nullptr, "ibv_reg_mr");
    queue_ = ibv_create_cq(id_->verbs, 16, nullptr, nullptr, 0);
    Must(queue_ != nullptr, "ibv_create_cq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = queue_;
    init.cap = {4, 4, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    Must(rdma_create_qp(id_, domain, &init) == 0, "rdma_create_qp");
  }

  std::vector<char> memory_;
  rdma_event_channel* channel_;
  rdma_cm_id* id_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq* queue_ = nullptr;
};

char Byte(int round) { return static_cast<char>(round % kOther); }

}  // namespace

int main(int argc, char** argv) {
  errno = EINVAL;
  Must(argc == 6, "write_source FROM TO BYTES ROUNDS own|later");
  const size_t bytes = std::strtoul(argv[3], nullptr, 10);
  const int rounds = std::atoi(argv[4]);
  const bool own = std::string(argv[5]) == "own";
  End receiver(bytes), sender(bytes);
  receiver.Listen(argv[2]);
  std::atomic<int> looked{0};
  int changed = 0;
  std::thread receiving([&] {
    receiver.Accept();
    for (int round = 1; round <= rounds; ++round) {
      receiver.Complete();
      bool same = true;
      for (size_t i = 0; i < bytes; ++i) same &= receiver.data()[i] == Byte(round);
      changed += !same;
      receiver.PostReceive();
      looked = round;
    }
  });
  const Target target = sender.Connect(argv[1], argv[2]);
  for (int round = 1; round <= rounds; ++round) {
    std::memset(sender.data(), Byte(round), bytes);
    sender.WriteAndTell(target, own);
    while (sender.Complete() != (own ? kWrite : kWord)) continue;
    std::memset(sender.data(), kOther, bytes);
    // One write at a time, so that only a source that was filled too early can cause changed bytes.
    while (looked != round) std::this_thread::yield();
    if (own) Must(sender.Complete() == kWord, "the word's completion");
  }
  receiving.join();
  std::cout << argv[1] << " to " << argv[2] << ", " << bytes << " bytes, filled again after "
            << (own ? "the write's own completion" : "a later request's completion") << ": " << changed << " of "
            << rounds << " writes arrived changed" << std::endl;
  std::_Exit(changed != 0);  // the kernel takes the connection down
}
