// A network between engines of one thread, in virtual time.
#pragma once

#include <memory>
#include <vector>

#include "network/network.h"
#include "tests/simulation/fake_connections.h"
#include "tests/simulation/fake_doorbell.h"

namespace jaxring::test {

class FakeNetwork final : public Network {
 public:
  FakeNetwork(VirtualTime* time, int self, uint32_t slot_bytes, NetworkClient* client)
      : Network(std::make_unique<FakeDoorbell>(time), slot_bytes, {}, client),
        time_(time),
        self_(self),
        client_(client) {}
  void Start() override {
    time_->After(static_cast<int64_t>(time_->Random(50000)), [this] { Tick(true); });
  }
  void Stop() override { stopped_ = true; }  // nothing reaches this process any more, nor comes from it
  void Kick() override {
    time_->After(time_->Delay(), [this] { Tick(false); });
  }
  std::unique_ptr<Doorbell> MakeDoorbell() const override { return std::make_unique<FakeDoorbell>(time_); }
  void SayGoodbyes() override {
    for (const FakeWay& way : ways_) way.SayGoodbye();
  }

  // Puts links and a control connection to another process into service. With `blocks` of this process the links are of
  // shared memory.
  void Connect(FakeNetwork* to, int channels, const std::shared_ptr<SharedBlockPool>& blocks) {
    const auto arrives = [=, this, drops = to->drops_](const ControlFrame* frame) {
      if (to->stopped_ || to->drops_ != drops) return;
      frame != nullptr ? to->OnFrame(self_, *frame) : to->ControlEnded(self_, kClosed, Ending::kNoGoodbye);
    };
    FakeWay& way = ways_.emplace_back(FakeWay{to->self_, std::make_shared<FakeControl>(time_, arrives)});
    for (int channel = 0; channel < channels; ++channel) {
      way.wires.push_back(std::make_unique<FakeWire>(time_, links().slot_bytes(), &doorbell(), &to->doorbell(),
                                                     LinkEnded(to->self_), to->LinkEnded(self_), blocks));
      links().AddSend(to->self_, channel, way.wires.back()->send);
      to->links().AddRecv(self_, channel, way.wires.back()->recv);
    }
    peers().Add(to->self_, way.control, self_ < to->self_);
    SendMissed(to->self_, *way.control);
  }
  const std::vector<FakeWay>& ways() const { return ways_; }

 private:
  void Tick(bool again) {
    if (!stopped_) client_->OnTick();
    if (again) time_->After(50000, [this] { Tick(true); });
  }
  void EndConnections() override {
    ++drops_;
    for (const FakeWay& way : ways_) way.End(time_);
  }

  VirtualTime* const time_;
  const int self_;
  NetworkClient* const client_;
  bool stopped_ = false;
  int drops_ = 0;  // of all connections: what was sent on those before does not arrive
  std::vector<FakeWay> ways_;
};

}  // namespace jaxring::test
