// A link: one direction of traffic on one channel, from one process (or rank) to another. It owns the memory of two
// rings, LL and Simple, whichever transport moves their bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transport/core/direct_memory.h"
#include "transport/core/doorbell.h"
#include "transport/core/faults.h"
#include "transport/core/movable.h"
#include "transport/core/ring.h"
#include "transport/core/shared_block_pool.h"
#include "transport/core/shared_memory.h"
#include "transport/core/stream.h"
#include "transport/core/transport.h"

namespace jaxring {

// Zero-filled pages for a pair of rings: anonymous, or a memfd that a peer can map.
class LinkMemory {
 public:
  static LinkMemory Anonymous(uint32_t simple_slot_bytes);
  static LinkMemory Shared(uint32_t simple_slot_bytes);
  // Maps a peer's. Throws if the size is not the one that this process's settings give, which means that the ranks'
  // BUFFSIZE differ.
  static LinkMemory Open(const std::string& path, uint32_t simple_slot_bytes);
  // The same memory, not owned.
  LinkMemory View() const { return {memory_.View(), simple_.payload_bytes}; }

  RingMemory ring(Protocol protocol) const;
  int fd() const { return memory_.fd(); }
  // The whole memory, to be registered with a NIC.
  char* data() const { return memory_.data(); }
  size_t bytes() const { return memory_.bytes(); }

 private:
  LinkMemory(SharedMemory memory, uint32_t simple_slot_bytes)
      : memory_(std::move(memory)), ll_(LLShape()), simple_(SimpleShape(simple_slot_bytes)) {}
  SharedMemory memory_;
  RingShape ll_, simple_;
};

// Called when a link's connection ends.
using OnEnd = std::function<void(const std::string& why, Ending ending)>;

// Why a link ended. `reason` and `ending` are set once, before `closed`.
struct LinkEnd {
  std::atomic<bool> closed{false};
  // The peer has said goodbye: it ends in good order and sends nothing more on this link.
  std::atomic<bool> complete{false};
  std::string reason;
  Ending ending = Ending::kNoGoodbye;
  void Close(std::string why, Ending how = Ending::kNoGoodbye) {
    if (closing_.exchange(true)) return;
    reason = std::move(why);
    ending = how;
    closed.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> closing_{false};
};

struct SendLink {
  SendLink(const Transport& link_transport, LinkMemory link_memory, Notifier* on_publish)
      : transport(link_transport),
        memory(std::move(link_memory)),
        ll(memory.ring(Protocol::kLL), on_publish),
        simple(memory.ring(Protocol::kSimple), on_publish) {}
  RingSender& ring(Protocol protocol) { return protocol == Protocol::kLL ? ll : simple; }

  const Transport& transport;
  LinkMemory memory;
  RingSender ll, simple;
  LinkEnd end;
  std::unique_ptr<Notifier> notifier;              // the peer's doorbell or a pump; kept alive with the link
  const Doorbell* doorbell = nullptr;              // the same, if it is one
  std::unique_ptr<Faults> faults;                  // what its rings' messages suffer, if anything
  std::shared_ptr<SharedBlockPool> shared_blocks;  // this process's, where the peer has mapped them
  std::weak_ptr<DirectSend> direct;                // set where bytes can go past the slots, which both ends then know
};

struct RecvLink {
  RecvLink(const Transport& link_transport, LinkMemory link_memory, Notifier* on_release)
      : transport(link_transport),
        memory(std::move(link_memory)),
        ll(memory.ring(Protocol::kLL), on_release),
        simple(memory.ring(Protocol::kSimple), on_release) {}
  RingReceiver& ring(Protocol protocol) { return protocol == Protocol::kLL ? ll : simple; }
  // Sets the sender's blocks; before the first message.
  void Map(SharedBlockPool pool) {
    shared_blocks = std::make_unique<SharedBlockPool>(std::move(pool));
    simple.set_shared_blocks(shared_blocks.get());
  }

  const Transport& transport;
  LinkMemory memory;
  RingReceiver ll, simple;
  LinkEnd end;
  std::unique_ptr<Notifier> notifier;
  std::unique_ptr<SharedBlockPool> shared_blocks;
  bool must_poll = false;  // a waiting thread calls `notifier->Poll()`, which is sooner than the I/O thread
  std::weak_ptr<DirectMemory> direct;
};

// A link that both ends have made and that is to be put into service. Either `send` or `recv` is set; `description` is
// for logs and reports.
struct JoinedLink {
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  std::string description;
  std::function<void()> say_goodbye;
  std::shared_ptr<MovableLink> movable;  // set where it can go on over other ports
};

}  // namespace jaxring
