#include "engine/records/operands.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace jaxring {
namespace {

// The file format, which jaxring/trace/operands.py reads. After this header come, for each operand, its rank, its bytes
// and, if it is ragged, the positions of its blocks and of the result's (four numbers in elements for each peer). Then
// come three texts, and the operands.
struct Header {
  char magic[8] = {'J', 'R', 'O', 'P', 'S', '0', '0', '2'};
  uint64_t key, sequence;
  int64_t time_ns;                  // since 1970
  uint32_t operands, ragged_peers;  // 0 peers: not ragged
  uint32_t spec_bytes, what_bytes, why_bytes, unused;
};
struct OperandHeader {
  uint64_t rank, bytes;
};

bool WriteAll(int fd, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = write(fd, from, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

uint64_t OperandBytes(const Plan& plan, const Participant& participant) {
  if (!participant.extents) return plan.in_bytes();
  const Extents& extents = *participant.extents;
  uint64_t end = 0;
  for (size_t i = 0; i < extents.in_offset.size(); ++i) {
    end = std::max(end, extents.in_offset[i] + extents.in_length[i]);
  }
  return end * plan.data.element_bytes;
}

uint64_t AllBytes(Operation& op) {
  uint64_t bytes = 0;
  for (const Participant& participant : op.participants()) bytes += OperandBytes(op.plan(), participant);
  return bytes;
}

// Whether all blocks lie inside the operands.
bool Valid(Operation& op) {
  for (const Participant& participant : op.participants()) {
    if (participant.extents && !participant.extents->invalid.empty()) return false;
  }
  return true;
}

}  // namespace

bool OperandSaver::Fits(Operation& op) const {
  const Plan& plan = op.plan();
  return plan.half == Half::kBoth && plan.record.spec != nullptr &&
         AllBytes(op) <= left_.load(std::memory_order_relaxed);
}

void OperandSaver::Keep(Operation& op) const {
  if (!Valid(op) || !Fits(op)) return;
  op.kept.resize(op.participants().size());
  for (size_t i = 0; i < op.kept.size(); ++i) {
    const Participant& participant = op.participants()[i];
    const uint64_t bytes = OperandBytes(op.plan(), participant);
    if (participant.in != participant.out || bytes == 0) continue;
    const char* from = static_cast<const char*>(participant.in);
    op.kept[i].assign(from, from + bytes);
  }
}

std::string OperandSaver::Save(Operation& op, const std::string& why) {
  const Plan& plan = op.plan();
  // Operands that were not copied may be overwritten by now.
  if (op.kept.size() != op.participants().size() || !Fits(op)) return "";
  const uint64_t bytes = AllBytes(op);
  uint64_t left = left_.load(std::memory_order_relaxed);
  do {
    if (bytes > left) return "";
  } while (!left_.compare_exchange_weak(left, left - bytes));
  const std::string path = prefix_ + std::to_string(number_++) + ".operands";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return op.What() + ": its operands cannot be saved as " + path + ": " + std::strerror(errno);
  Header header{};
  header.key = op.key();
  header.sequence = op.sequence;
  header.time_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  header.operands = static_cast<uint32_t>(plan.group.locals.size());
  const auto& extents = op.participants()[0].extents;
  header.ragged_peers = extents ? static_cast<uint32_t>(extents->in_offset.size()) : 0;
  header.spec_bytes = static_cast<uint32_t>(plan.record.spec->size());
  header.what_bytes = static_cast<uint32_t>(plan.what.size());
  header.why_bytes = static_cast<uint32_t>(why.size());
  bool good = WriteAll(fd, &header, sizeof header);
  for (const Participant& participant : op.participants()) {
    const OperandHeader operand{static_cast<uint64_t>(participant.rank), OperandBytes(plan, participant)};
    good = good && WriteAll(fd, &operand, sizeof operand);
    if (!participant.extents) continue;
    const Extents& blocks = *participant.extents;
    for (const auto* numbers : {&blocks.in_offset, &blocks.in_length, &blocks.out_offset, &blocks.out_length}) {
      good = good && WriteAll(fd, numbers->data(), numbers->size() * sizeof numbers->front());
    }
  }
  for (const std::string* text : {plan.record.spec.get(), &plan.what, &why}) {
    good = good && WriteAll(fd, text->data(), text->size());
  }
  for (size_t i = 0; i < op.kept.size(); ++i) {
    const Participant& participant = op.participants()[i];
    const uint64_t operand_bytes = OperandBytes(plan, participant);
    const int parts = participant.blocks ? plan.shape.in_blocks : 1;
    for (int block = 0; block < parts; ++block) {
      const void* from = participant.blocks   ? participant.blocks[block]
                         : op.kept[i].empty() ? participant.in
                                              : op.kept[i].data();
      good = good && WriteAll(fd, from, operand_bytes / parts);
    }
  }
  const int error = errno;
  close(fd);
  if (good) return "";
  unlink(path.c_str());
  return op.What() + ": its operands cannot be saved as " + path + ": " + std::strerror(error);
}

}  // namespace jaxring
