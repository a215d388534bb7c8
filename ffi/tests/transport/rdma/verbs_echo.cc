// Sends back the messages that it receives: our verbs endpoint, for a peer that does not use our code
// (tests/rdma/verbs_peer.py).
//
//   verbs_echo SLOT_BYTES RECV_FD SEND_FD
//
// The descriptors are the control connections of the link by which it receives and of the one by which it sends. It
// prints its offers as "recv HEX" and "send HEX", reads the peer's two in the same order, one a line, and prints
// "ready". When a link ends it prints "recv ended: WHY" or "send ended: WHY". It exits when its standard input ends.
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>

#include "tests/support/check.h"
#include "tests/support/verbs_wire.h"

namespace jaxring::test {
namespace {

// Moves one message from a receiving ring to the sending ring of the same protocol, if there is one and there is room.
bool Echo(RingReceiver& from, RingSender& to) {
  uint64_t position, place;
  MessageId id;
  Message message;
  const char* payload;
  if (!from.FindNext(&position, &id, &payload, &message)) return false;
  if (!to.Reserve(&place)) {
    from.Unclaim(position);
    return false;
  }
  std::memcpy(to.payload(place), payload, message.bytes);
  from.Release(position);
  to.Publish(place, id, message);
  return true;
}

void Report(const char* which, const LinkEnd& end, bool* said) {
  if (*said || !end.closed) return;
  *said = true;
  std::cout << which << " ended: " << end.reason << std::endl;
}

void Run(uint32_t slot_bytes, int recv_fd, int send_fd) {
  ProcessEngine engine(EngineOptions{1, slot_bytes, 20});
  SystemNetwork& network = engine.network();
  const Connector::Place device = PlaceOf(VerbsDevices().at(0));
  const LinkName from{1, 0, false}, to{1, 0, true};
  std::cout << "recv " << network.connectors().Offer("verbs", from, device) << std::endl;
  std::cout << "send " << network.connectors().Offer("verbs", to, device) << std::endl;
  std::string sender, receiver;
  CHECK(std::getline(std::cin, sender) && std::getline(std::cin, receiver));
  network.connectors().Prepare(from, sender);
  network.connectors().Prepare(to, receiver);
  network.AddLink(from, Descriptor(recv_fd), 30);
  network.AddLink(to, Descriptor(send_fd), 30);
  std::cout << "ready" << std::endl;
  const auto recv = engine.network().links().Recv(1, 0);
  const auto send = engine.network().links().Send(1, 0);
  bool recv_said = false, send_said = false;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, 0) == 0) {
    bool moved = false;
    for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      moved |= Echo(recv->ring(protocol), send->ring(protocol));
    }
    Report("recv", recv->end, &recv_said);
    Report("send", send->end, &send_said);
    if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace
}  // namespace jaxring::test

int main(int argc, char** argv) {
  CHECK_EQ(argc, 4);
  alarm(200);  // ends this process if the peer does not
  jaxring::test::Run(static_cast<uint32_t>(std::atoi(argv[1])), std::atoi(argv[2]), std::atoi(argv[3]));
}
