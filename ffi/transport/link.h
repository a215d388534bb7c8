// A link: one direction of traffic on one channel, from a process (or rank) to another. It owns the memory of two
// rings, LL and Simple, whichever transport moves their bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "transport/bell.h"
#include "transport/direct.h"
#include "transport/faults.h"
#include "transport/ring.h"
#include "transport/stream.h"

namespace jaxring {

// What a link's memory throws where the system gives none; in Python a MemoryError.
class OutOfMemory final : public std::bad_alloc {
 public:
  // `what` failed, and errno says why.
  explicit OutOfMemory(const std::string& what);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Zero-filled pages for a pair of rings: anonymous, or a memfd that a peer can map.
class LinkMemory {
 public:
  static LinkMemory Anonymous(uint32_t simple_slot_bytes);
  static LinkMemory Shared(uint32_t simple_slot_bytes);
  // Maps a peer's; the size must be what our own settings give, so ranks with different BUFFSIZE are told.
  static LinkMemory Open(const std::string& path, uint32_t simple_slot_bytes);
  // The same memory without owning it.
  LinkMemory View() const { return {base_, -1, simple_.payload_bytes, false}; }
  LinkMemory(LinkMemory&& other) noexcept;
  LinkMemory& operator=(LinkMemory&&) = delete;
  ~LinkMemory();

  RingMemory ring(Protocol protocol) const;
  int fd() const { return fd_; }
  // All of it, for a device that is to know it.
  char* data() const { return static_cast<char*>(base_); }
  size_t bytes() const;

 private:
  LinkMemory(void* base, int fd, uint32_t simple_slot_bytes, bool owned = true);
  void* base_;
  int fd_;
  bool owned_;
  RingShape ll_, simple_;
};

// Why a link ended; set once, before `closed`.
struct LinkEnd {
  std::atomic<bool> closed{false};
  std::string reason;
  Ending ending = Ending::kNoWord;
  void Close(std::string why, Ending how = Ending::kNoWord) {
    if (closing_.exchange(true)) return;
    reason = std::move(why);
    ending = how;
    closed.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> closing_{false};
};

struct SendLink {
  SendLink(std::string transport_name, LinkMemory link_memory, Notifier* on_publish)
      : transport(std::move(transport_name)),
        memory(std::move(link_memory)),
        ll(memory.ring(Protocol::kLL), on_publish),
        simple(memory.ring(Protocol::kSimple), on_publish) {}
  RingSender& ring(Protocol protocol) { return protocol == Protocol::kLL ? ll : simple; }

  std::string transport;
  LinkMemory memory;
  RingSender ll, simple;
  LinkEnd end;
  std::unique_ptr<Notifier> notifier;  // kept alive with the link: the peer's bell or a pump
  const Bell* bell = nullptr;          // the same, if it is one
  std::unique_ptr<Faults> faults;      // what its rings' messages suffer, if anything
  std::weak_ptr<DirectSend> direct;    // set where bytes can go past the slots, which both ends then know
};

struct RecvLink {
  RecvLink(std::string transport_name, LinkMemory link_memory, Notifier* on_release)
      : transport(std::move(transport_name)),
        memory(std::move(link_memory)),
        ll(memory.ring(Protocol::kLL), on_release),
        simple(memory.ring(Protocol::kSimple), on_release) {}
  RingReceiver& ring(Protocol protocol) { return protocol == Protocol::kLL ? ll : simple; }

  std::string transport;
  LinkMemory memory;
  RingReceiver ll, simple;
  LinkEnd end;
  std::unique_ptr<Notifier> notifier;
  bool must_look = false;  // what comes is seen sooner by `notifier->Look()`
  std::weak_ptr<DirectMemory> direct;
};

// A link that both ends have made, to be put into service. One of the two is set; `description` is for people.
struct JoinedLink {
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  std::string description;
  std::function<void()> say_goodbye;
};

}  // namespace jaxring
