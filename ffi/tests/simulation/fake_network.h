// A network between engines of one thread, in virtual time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
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
    time_->After(static_cast<int64_t>(time_->Random(kTick)), [this] { TickOn(); });
  }
  void Stop() override { stopped_ = true; }  // nothing reaches this process any more, nor comes from it
  void Kick() override {
    time_->After(time_->Delay(), [this] { Tick(); });
  }
  std::unique_ptr<Doorbell> MakeDoorbell() const override { return std::make_unique<FakeDoorbell>(time_); }
  void SayGoodbyes() override {
    for (Way& way : ways_) {
      for (auto& wire : way.wires) wire->SayGoodbye();
    }
  }
  bool Settled() const override { return true; }
  void EndPaths() override {}
  std::pair<int, int> CountPaths() const override { return {0, 0}; }

  // Puts a link and a control connection to another process into service.
  void Connect(FakeNetwork* to, int channels) {
    const auto hears = [to, drops = to->drops_] { return !to->stopped_ && to->drops_ == drops; };
    const auto arrives = [=, this](const ControlFrame& frame) { hears() ? to->OnFrame(self_, frame) : void(); };
    Way& way = ways_.emplace_back(Way{to, hears, std::make_shared<FakeControl>(time_, arrives), {}});
    for (int channel = 0; channel < channels; ++channel) {
      auto wire = std::make_unique<FakeWire>(time_, links().slot_bytes(), &doorbell(), &to->doorbell(),
                                             LinkEnded(to->self_), to->LinkEnded(self_));
      links().AddSend(to->self_, channel, wire->send);
      to->links().AddRecv(self_, channel, wire->recv);
      way.wires.push_back(std::move(wire));
    }
    peers().Add(to->self_, way.control, self_ < to->self_);
    SendMissed(to->self_, *way.control);
  }
  // All that leads to a process ends, or to any if it is null; both sides find that in their own time.
  void Cut(const FakeNetwork* to) {
    for (Way& way : ways_) {
      if (to != nullptr && to != way.to) continue;
      for (auto& wire : way.wires) time_->After(time_->Delay(), [wire = wire.get()] { wire->End(); });
      way.control->Close([=, this, there = way.to, hears = way.hears] {
        if (hears()) there->ControlEnded(self_, "the peer closed the connection", Ending::kNoGoodbye);
      });
    }
  }
  // Messages that have not arrived, and credits that are not back.
  int Left() const {
    int left = 0;
    for (const Way& way : ways_) {
      for (const auto& wire : way.wires) left += wire->Left();
    }
    return left;
  }

 private:
  static constexpr int64_t kTick = 50000;
  void TickOn() {
    Tick();
    time_->After(kTick, [this] { TickOn(); });
  }
  void Tick() { stopped_ ? void() : client_->OnTick(); }
  void CheckConnections(Time) override {}
  void EndConnections() override { ++drops_, Cut(nullptr); }

  struct Way {  // to another process
    FakeNetwork* to;
    std::function<bool()> hears;
    std::shared_ptr<FakeControl> control;
    std::vector<std::unique_ptr<FakeWire>> wires;
  };
  VirtualTime* const time_;
  const int self_;
  NetworkClient* const client_;
  bool stopped_ = false;
  int drops_ = 0;  // of all connections: what was sent on those before is not heard
  std::vector<Way> ways_;
};

}  // namespace jaxring::test
