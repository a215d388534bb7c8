"""A transport is a folder and one line for the engine: a copy of it with one more passes a message by that."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests import ROOT

# What links are made of, and nothing of the engine.
FOLDERS = ("base", "network", "transport")
LISTED, LINE = "  EACH(MakeTcpConnector)         \\\n", "  EACH(MakeTrayConnector)        \\\n"

# Another shared memory: both ends map the sender's rings, and each rings the other's doorbell.
TRAY = r"""
#include <unistd.h>

#include <sstream>

#include "transport/core/connector.h"

namespace jaxring {
namespace {

constexpr Transport kTray{.name = "tray", .shares_memory = true};

std::string PathOf(int fd) { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd); }

class Offered final : public OfferedLink {
 public:
  Offered(const ConnectorOptions& options, bool sending) : slot_bytes_(options.slot_bytes) {
    offer_ = PathOf(options.own_doorbell->fd());
    if (!sending) return;
    joined_.send = std::make_shared<SendLink>(kTray, LinkMemory::Shared(slot_bytes_), nullptr);
    offer_ += " " + PathOf(joined_.send->memory.fd());
  }
  void Prepare(const std::string& peer_offer) override {
    std::string doorbell, rings;
    std::istringstream(peer_offer) >> doorbell >> rings;
    doorbell_ = Doorbell::Open(doorbell);
    if (joined_.send) return;
    joined_.recv = std::make_shared<RecvLink>(kTray, LinkMemory::Open(rings, slot_bytes_), doorbell_.get());
  }
  JoinedLink Finish(Agreed) override {
    if (joined_.send) {
      joined_.send->ll.set_on_publish(doorbell_.get());
      joined_.send->simple.set_on_publish(doorbell_.get());
      joined_.send->notifier = std::move(doorbell_);
    } else {
      joined_.recv->notifier = std::move(doorbell_);
    }
    return std::move(joined_);
  }

 private:
  const uint32_t slot_bytes_;
  JoinedLink joined_;
  std::unique_ptr<Doorbell> doorbell_;
};

class TrayConnector final : public Connector {
 public:
  explicit TrayConnector(const ConnectorOptions& options) : options_(options) {}
  const Transport& transport() const override { return kTray; }
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place&) override {
    return std::make_unique<Offered>(options_, link.sending);
  }

 private:
  const ConnectorOptions options_;
};

}  // namespace

std::unique_ptr<Connector> MakeTrayConnector(const ConnectorOptions& options) {
  return std::make_unique<TrayConnector>(options);
}

}  // namespace jaxring
"""

# Two processes' networks in one: a message by that transport, and the ends of its links, which are those of memory that
# is shared. Links whose messages are to suffer faults have them in their rings.
PASS = r"""
#include <cstring>
#include <iostream>

#include "network/system_network.h"

using namespace jaxring;

struct Client final : NetworkClient {
  void OnTick() override {}
  void OnFailure(uint64_t, const Status&) override {}
  void OnHalted(int, const std::string&) override {}
  void OnMessage(int, const std::string&) override {}
  void OnClock(int, const ClockOffset&) override {}
  std::optional<std::pair<LaunchTime, uint64_t>> FindLaunch(uint64_t, uint64_t) override { return std::nullopt; }
};

void Join(SystemNetwork& here, SystemNetwork& there, int channel) {
  const LinkName sends{1, channel, true}, receives{0, channel, false};
  const std::string ours = here.connectors().Offer("tray", sends, {});
  here.connectors().Prepare(sends, there.connectors().Offer("tray", receives, {}));
  here.AddLink(sends, Descriptor(), 60);
  there.connectors().Prepare(receives, ours);
  there.AddLink(receives, Descriptor(), 60);
}

int main() try {
  Client client;
  FaultPlan faults;
  faults.drop = 1;
  SystemNetwork here({4096, 60, {}}, &client), there({4096, 60, {}}, &client), faulty({4096, 60, faults}, &client);
  for (SystemNetwork* each : {&here, &there, &faulty}) each->Start();
  Join(here, there, 0);
  const MessageId id{7, 0, 1, 0, 0};
  const auto send = here.links().Send(1, 0);
  uint64_t position = 0;
  if (!send->ll.Reserve(&position)) return 2;
  std::memcpy(send->ll.payload(position), "passed", 6);
  send->ll.Publish(position, id, {6, 0, 0});
  const auto recv = there.links().Recv(0, 0);
  const char* data = nullptr;
  Message message;
  if (!recv->ll.Find(id, &position, &data, &message)) return 3;
  std::cout << std::string(data, message.bytes);
  recv->ll.Release(position);
  std::cout << " may_bring=" << there.links().MayBring(0);
  here.links().CloseLeft(1, "it has left");
  std::cout << " left=" << send->end.closed;
  there.links().CloseShared(0, "it is gone", Ending::kNoGoodbye);
  std::cout << " gone=" << recv->end.closed;
  Join(faulty, there, 1);
  std::cout << " faults=" << (send->faults != nullptr) << (faulty.links().Send(1, 1)->faults != nullptr) << "\n";
  for (SystemNetwork* each : {&here, &there, &faulty}) each->Stop();
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
"""


class Tree:
    """A copy of the engine's links in ``folder``, with one more transport, and its compiled parts."""

    def __init__(self, folder: pathlib.Path, compiler: str) -> None:
        self.folder, self.compiler = folder, compiler
        for name in FOLDERS:
            shutil.copytree(ROOT / "ffi" / name, folder / "ffi" / name)
        tray = folder / "ffi" / "transport" / "tray" / "tray_connector.cc"
        tray.parent.mkdir()
        tray.write_text(TRAY)
        (folder / "pass.cc").write_text(PASS)
        self.connectors = folder / "ffi" / "network" / "connectors.cc"
        sources = sorted(set(folder.rglob("*.cc")) - {self.connectors})
        # One unit for each folder: nearly all of the time goes to headers.
        units: dict[pathlib.Path, list[pathlib.Path]] = {}
        for source in sources:
            units.setdefault(source.parent, []).append(source)
        self.objects = []
        for number, found in enumerate(units.values()):
            unit = folder / f"unit{number}.cc"
            unit.write_text("".join(f'#include "{source}"\n' for source in found))
            self.objects.append(self._compile(unit))

    def _compile(self, source: pathlib.Path) -> pathlib.Path:
        made = self.folder / f"{source.stem}.o"
        command = [self.compiler, "-std=c++20", "-O0", "-I", self.folder / "ffi", "-c", source, "-o", made]
        subprocess.run(command, check=True)
        return made

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Runs the program with that line in the registry."""
        text = (ROOT / "ffi" / "network" / "connectors.cc").read_text(encoding="utf-8")
        assert text.count(LISTED) == 1
        self.connectors.write_text(text.replace(LISTED, LISTED + line), encoding="utf-8")
        program = self.folder / "pass"
        parts = [*self.objects, self._compile(self.connectors)]
        subprocess.run([self.compiler, *parts, "-pthread", "-ldl", "-o", program], check=True)
        return subprocess.run([program], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_a_folder_and_a_line_pass_a_message(tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "the tests need the C++ compiler that builds the engine"
    tree = Tree(tmp_path, compiler)
    ended = tree.run(LINE)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "passed may_bring=0 left=1 gone=1 faults=01\n"
    ended = tree.run("")
    assert (ended.returncode, ended.stderr) == (1, "there is no transport tray\n")
