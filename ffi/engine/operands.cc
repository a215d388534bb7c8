#include "engine/operands.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace jaxring {
namespace {

// A file, as jaxring/trace/operands.py reads it: this, the rank of each operand, three texts, and the operands.
struct Header {
  char magic[8] = {'J', 'R', 'O', 'P', 'S', '0', '0', '1'};
  uint64_t key, sequence, operand_bytes;
  int64_t time_ns;  // since 1970
  uint32_t operands, recipe_bytes, what_bytes, why_bytes;
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

}  // namespace

bool OperandSaver::Fits(const Operation& op) const {
  const Plan& plan = op.plan();
  return plan.half == Half::kBoth && plan.recipe != nullptr &&
         plan.in_bytes() * plan.locals.size() <= left_.load(std::memory_order_relaxed);
}

void OperandSaver::Keep(Operation& op) const {
  if (!Fits(op)) return;
  const size_t bytes = op.plan().in_bytes();
  op.kept.resize(op.participants().size());
  for (size_t i = 0; i < op.kept.size(); ++i) {
    const Participant& participant = op.participants()[i];
    if (participant.in != participant.out || participant.extents || bytes == 0) continue;
    const char* from = static_cast<const char*>(participant.in);
    op.kept[i].assign(from, from + bytes);
  }
}

std::string OperandSaver::Save(Operation& op, const std::string& why) {
  const Plan& plan = op.plan();
  // What was not kept may be overwritten.
  if (!Fits(op) || op.kept.size() != op.participants().size() || op.participants()[0].extents) return "";
  const uint64_t bytes = plan.in_bytes() * plan.locals.size();
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
  header.operand_bytes = plan.in_bytes();
  header.time_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  header.operands = static_cast<uint32_t>(plan.locals.size());
  header.recipe_bytes = static_cast<uint32_t>(plan.recipe->size());
  header.what_bytes = static_cast<uint32_t>(plan.what.size());
  header.why_bytes = static_cast<uint32_t>(why.size());
  bool good = WriteAll(fd, &header, sizeof header);
  for (const RankTable& table : plan.locals) {
    const int32_t rank = table.rank;
    good = good && WriteAll(fd, &rank, sizeof rank);
  }
  for (const std::string* text : {plan.recipe.get(), &plan.what, &why}) {
    good = good && WriteAll(fd, text->data(), text->size());
  }
  for (size_t i = 0; i < op.kept.size(); ++i) {
    const void* from = op.kept[i].empty() ? op.participants()[i].in : op.kept[i].data();
    good = good && WriteAll(fd, from, plan.in_bytes());
  }
  const int error = errno;
  close(fd);
  if (good) return "";
  unlink(path.c_str());
  return op.What() + ": its operands cannot be saved as " + path + ": " + std::strerror(error);
}

}  // namespace jaxring
