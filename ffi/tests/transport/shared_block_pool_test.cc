// Blocks of shared memory that several processes read: their counts of holders, the messages that name them, and how
// the engine uses them.
#include "transport/core/shared_block_pool.h"

#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/site4.h"
#include "transport/core/link.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kBytes = 256, kBlocks = SharedBlockPool::kBlocks;
const char* const kDirect = "all_reduce direct 4x1 x1";

std::string Path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

CASE("holders") {
  SharedBlockPool ours = SharedBlockPool::Create(kBytes), theirs = SharedBlockPool::Open(Path(ours.fd()), kBytes);
  for (uint32_t block = 0; block < kBlocks; ++block) CHECK_EQ(ours.Take(2), static_cast<int>(block));
  CHECK_EQ(ours.held(), kBlocks);
  CHECK_EQ(ours.Take(1), -1);
  std::memset(ours.data(7), 'x', kBytes);
  CHECK(theirs.data(7)[0] == 'x' && theirs.data(7)[kBytes - 1] == 'x' && theirs.data(8)[0] == 0);
  theirs.Leave(7, 1);
  CHECK_EQ(ours.Take(1), -1);
  ours.Leave(7, 1);
  theirs.Leave(9, 2);
  CHECK_EQ(theirs.held(), kBlocks - 2);
  CHECK_EQ(ours.Take(1), 7);
  CHECK_EQ(ours.Take(1), 9);
  bool refused = false;
  try {
    SharedBlockPool::Open(Path(ours.fd()), 2 * kBytes);
  } catch (const std::system_error& error) {
    refused = std::string(error.what()).find("JAXRING_BUFFSIZE") != std::string::npos;
  }
  CHECK(refused);
}

// Messages whose bytes are in blocks and in slots share a ring, and are claimed, released and spilled in the same way.
CASE("messages in blocks") {
  SharedBlockPool pool = SharedBlockPool::Create(kBytes), mapped = SharedBlockPool::Open(Path(pool.fd()), kBytes);
  LinkMemory memory = LinkMemory::Anonymous(kBytes);
  RingSender sender(memory.ring(Protocol::kSimple), nullptr);
  RingReceiver receiver(memory.ring(Protocol::kSimple), nullptr);
  receiver.set_shared_blocks(&mapped);
  auto id = [](uint64_t op) { return MessageId{op, 1, 2, 3, 0}; };
  auto send = [&](uint64_t op, int block, uint32_t bytes) {
    uint64_t position;
    CHECK(sender.Reserve(&position));
    std::memset(block < 0 ? sender.payload(position) : pool.data(block), static_cast<int>(op), kBytes);
    if (block < 0) return sender.Publish(position, id(op), {bytes, 5});
    sender.PublishSharedBlock(position, static_cast<uint32_t>(block), id(op), {bytes, 5});
  };
  uint64_t position;
  const char* data;
  Message message;
  const int first = pool.Take(2), second = pool.Take(1);
  send(1, first, 100);
  send(2, -1, 50);
  send(3, second, kBytes);
  for (uint64_t op : {3, 2, 1}) {
    CHECK(receiver.Find(id(op), &position, &data, &message));
    CHECK_EQ(message.bytes, op == 1 ? 100u : op == 2 ? 50u : kBytes);
    CHECK(message.check == 5 && data[0] == static_cast<char>(op) && data[message.bytes - 1] == static_cast<char>(op));
    if (op != 2) CHECK(data == mapped.data(op == 1 ? first : second));
    receiver.Release(position);
  }
  CHECK_EQ(pool.held(), 1u);  // the first block has a second holder
  pool.Leave(first, 1);

  // Spilling a full ring hands out its messages and frees their blocks.
  for (uint64_t op = 0; op < 8; ++op) send(op, op % 2 ? pool.Take(1) : -1, 10);
  CHECK_EQ(pool.held(), 4u);
  uint64_t next = 0;
  receiver.SpillIfFull([&](const MessageId& spilled, const char* payload, Message got) {
    CHECK(spilled == id(next) && got.bytes == 10 && payload[9] == static_cast<char>(next));
    ++next;
  });
  CHECK(next == 8 && pool.held() == 0);

  // A message whose block number is out of range is read as empty, so no receiver matches it, and it frees no block.
  CHECK(sender.Reserve(&position));
  sender.PublishSharedBlock(position, kBlocks, id(1), {10, 5});
  CHECK(receiver.Find(id(1), &position, &data, &message));
  CHECK_EQ(message.bytes, 0u);
  receiver.Release(position);
  CHECK_EQ(pool.held(), 0u);
}

// A process's pool, which all its links have.
std::shared_ptr<SharedBlockPool> Blocks(Job& job, int process) {
  return job.engine(process).network().links().Send(process == 0 ? 1 : 0, 0)->shared_blocks;
}

uint32_t Held(Job& job) {
  uint32_t held = 0;
  for (int p = 0; p < job.processes(); ++p) held += Blocks(job, p)->held();
  return held;
}

bool Used(Job& job, int process, uint32_t block) {
  const char* data = Blocks(job, process)->data(block);
  return std::any_of(data, data + kBytes, [](char byte) { return byte != 0; });
}

// Operations use blocks, and slots where all blocks of a process are held. Site4 checks the results.
CASE("operations") {
  Job job(4, Wire::kShared, kBytes);
  Site4 site(&job, kDirect, Sized(1000));
  std::vector<int> taken;
  while (taken.empty() || taken.back() >= 0) taken.push_back(Blocks(job, 1)->Take(1));
  for (int i = 0; i < 20; ++i) site.RunOk();
  CHECK(Used(job, 0, 0) && !Used(job, 1, 0) && Used(job, 2, 0) && Used(job, 3, 0));
  CHECK_EQ(Held(job), kBlocks);
  for (uint32_t block = 0; block < kBlocks; ++block) Blocks(job, 1)->Leave(block, 1);
  for (int i = 0; i < 20; ++i) site.RunOk();
  CHECK(Used(job, 1, 0));
  CHECK_EQ(Held(job), 0u);
  // Small messages use LL's slots, one cache line each, and no blocks.
  Job small(4, Wire::kShared, kBytes);
  Site4 ll(&small, kDirect, Sized(50, 60, Protocol::kLL));
  for (int i = 0; i < 20; ++i) ll.RunOk();
  CHECK(!Used(small, 0, 0));
}

// Ranks that wait for a missing rank fail at the deadline with messages in flight. The blocks that they hold are given
// back; blocks of messages that no operation takes are given back when the rings are full.
CASE("failures give blocks back") {
  Job job(4, Wire::kShared, kBytes);
  Site4 late(&job, kDirect, Sized(4000, 0.05)), site(&job, kDirect, Sized(1000));
  for (int i = 0; i < 10; ++i) {
    for (const Status& status : late.Run({0, 1, 2})) CHECK(status.code == Code::kDeadlineExceeded);
  }
  for (int i = 0; i < 20; ++i) site.RunOk();
  CHECK_EQ(Held(job), 0u);
}

// Each epoch has its own blocks.
CASE("renewal") {
  Job job(4, Wire::kShared, kBytes);
  const std::shared_ptr<SharedBlockPool> before = Blocks(job, 0);
  CHECK(before->Take(1) == 0);
  for (int p = 0; p < job.processes(); ++p) job.engine(p).Halt("this test renews");
  job.Renew(1);
  CHECK(Blocks(job, 0) != before && Held(job) == 0);
  Site4 site(&job, kDirect, Sized(1000));
  site.RunOk();
  CHECK(Used(job, 0, 0));
}

}  // namespace
}  // namespace jaxring::test
