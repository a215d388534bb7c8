// What a FakeNetwork is made of: one direction of a link, one of a control connection, and what they are together. What
// is sent arrives when virtual time and its random numbers say, in its order.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "network/peers/control_frames.h"
#include "network/peers/frame_sender.h"
#include "tests/simulation/virtual_time.h"
#include "transport/core/link.h"
#include "transport/shm/shm_connector.h"
#include "transport/tcp/tcp_connector.h"

namespace jaxring::test {

// Why a connection ends, where a process does.
inline constexpr const char* kClosed = "the peer closed the connection";

// One direction of a link. It carries messages from the rings of `send` to those of `recv`, and credits back, as the
// two pumps of a TCP connection do. With `blocks`, the sender's, the two are ends of shared memory instead, which
// carries nothing and ends with the control connection.
class FakeWire final : public Notifier {
 public:
  FakeWire(VirtualTime* time, uint32_t slot_bytes, Doorbell* sender, Doorbell* receiver, OnEnd sender_ends,
           OnEnd receiver_ends, std::shared_ptr<SharedBlockPool> blocks)
      : send(blocks ? std::make_shared<SendLink>(kShm, LinkMemory::Anonymous(slot_bytes), receiver)
                    : std::make_shared<SendLink>(kTcp, LinkMemory::Anonymous(slot_bytes), this)),
        recv(blocks ? Share(send, sender, blocks)
                    : std::make_shared<RecvLink>(kTcp, LinkMemory::Anonymous(slot_bytes), this)),
        blocks_(std::move(blocks)),
        time_(time),
        doorbells_{sender, receiver},
        ends_{std::move(sender_ends), std::move(receiver_ends)},
        taken_{{send->memory.ring(Protocol::kLL), sender}, {send->memory.ring(Protocol::kSimple), sender}},
        put_{{recv->memory.ring(Protocol::kLL), receiver}, {recv->memory.ring(Protocol::kSimple), receiver}} {}

  // There is a message, or room for one that waits.
  void Notify() override {
    time_->After(time_->Delay(), [this] { Carry(); });
  }
  // No more messages follow.
  void SayGoodbye() {
    goodbye_ = true;
    if (!blocks_) Notify();
  }
  // What has not arrived is lost.
  void End() {
    if (blocks_ || std::exchange(cut_, true)) return;
    send->end.Close(kClosed);
    recv->end.Close(kClosed);
    for (int side : {0, 1}) {
      doorbells_[side]->Notify();
      ends_[side](kClosed, Ending::kNoGoodbye);
    }
  }
  // Messages that have not arrived, and credits that are not back.
  int Left() const { return left_; }

  const std::shared_ptr<SendLink> send;
  const std::shared_ptr<RecvLink> recv;

 private:
  void Carry() {
    bool idle = true;
    for (int i = 0; i < 2 && !cut_; ++i) {
      uint64_t from, to;
      MessageId id;
      Message message;
      const char* payload;
      if (!taken_[i].FindNext(&from, &id, &payload, &message)) continue;
      idle = false;
      if (!put_[i].Reserve(&to)) {
        taken_[i].Unclaim(from);  // the release of a slot will notify this
        continue;
      }
      std::memcpy(put_[i].payload(to), payload, message.bytes);
      put_[i].Publish(to, id, message);
      ++left_;
      Notify();  // for the one behind it
      if (time_->Loses(Loss::kCredit)) continue;
      time_->After(time_->Delay(), [this, i, from] {
        taken_[i].Release(from);
        --left_;
      });
    }
    if (idle && goodbye_ && !cut_) recv->end.complete = true;
  }

  static std::shared_ptr<RecvLink> Share(const std::shared_ptr<SendLink>& send, Doorbell* sender,
                                         const std::shared_ptr<SharedBlockPool>& blocks) {
    auto* const recv = new RecvLink(kShm, send->memory.View(), sender);
    recv->Map(blocks->View());
    send->shared_blocks = blocks;
    return {recv, [send, blocks](RecvLink* link) { delete link; }};
  }

  const std::shared_ptr<SharedBlockPool> blocks_;
  VirtualTime* const time_;
  Doorbell* const doorbells_[2];
  const OnEnd ends_[2];
  bool cut_ = false, goodbye_ = false;
  int left_ = 0;
  RingReceiver taken_[2];
  RingSender put_[2];
};

class FakeControl final : public FrameSender {
 public:
  // Called with each frame, and with null where the connection ends.
  using Arrives = std::function<void(const ControlFrame* frame)>;
  FakeControl(VirtualTime* time, Arrives arrives) : time_(time), arrives_(std::move(arrives)) {}

  bool Send(const std::string& bytes, bool /*dispensable*/) override {
    if (closed_) return false;
    Behind([this, bytes] {
      FrameReader reader;
      ControlFrame frame;
      reader.Feed(bytes.data(), bytes.size());
      if (reader.Next(&frame) != FrameReader::Result::kFrame) return;
      if (frame.kind == ControlFrame::Kind::kFailed && time_->Loses(Loss::kNotice)) return;
      arrives_(&frame);
    });
    return true;
  }
  // Nothing more is sent; the end arrives behind the last frame.
  void Close() {
    if (!std::exchange(closed_, true)) Behind([this] { arrives_(nullptr); });
  }

 private:
  void Behind(VirtualTime::Event event) {
    last_ = std::max(last_, time_->now() + time_->Delay());
    time_->At(last_, std::move(event));
  }

  VirtualTime* const time_;
  const Arrives arrives_;
  bool closed_ = false;
  int64_t last_ = 0;
};

// All that leads from one process to another one.
struct FakeWay {
  void SayGoodbye() const {
    for (const auto& wire : wires) wire->SayGoodbye();
  }
  // It ends, and both sides find that in their own time.
  void End(VirtualTime* time) const {
    for (const auto& wire : wires) time->After(time->Delay(), [wire = wire.get()] { wire->End(); });
    control->Close();
  }
  int Left() const {
    int left = 0;
    for (const auto& wire : wires) left += wire->Left();
    return left;
  }

  int to = 0;
  std::shared_ptr<FakeControl> control;
  std::vector<std::unique_ptr<FakeWire>> wires{};
};

}  // namespace jaxring::test
