#include "engine/records/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace jaxring {

// A sample or the difference of a clock. A reader of the file takes only those that are complete: `at_ns` or `process`
// is 0 while the rest is being written.
struct Recorder::SampleSlot {
  std::atomic<int64_t> at_ns;
  int64_t cpu_ns, delayed_ns, link_peer, link_bytes, link_ns, resumable, detours;
};

struct Recorder::ClockSlot {
  std::atomic<int64_t> process;  // plus 1
  int64_t offset_ns, error_ns;
};

// The file format, which jaxring/trace/flight.py reads: whole pages with this header, the slots, the texts. Times are
// in ns of the monotonic clock.
struct Recorder::Header {
  char magic[8];
  uint32_t header_bytes, slot_bytes, capacity, text_bytes;
  int64_t pid;
  int64_t realtime_ns, monotonic_ns;  // the same moment by both clocks
  std::atomic<int64_t> process;       // -1: not known yet
  std::atomic<uint64_t> last;         // the latest record's number
  std::atomic<uint64_t> written;      // bytes of text written so far to the ring of texts
  char host[64];
  std::atomic<int64_t> processes;  // of the job; 0: not known yet. `job` is complete once it is set.
  char job[64];
  std::atomic<uint64_t> samples;  // written so far to the ring of samples
  SampleSlot sample[kSamples];
  ClockSlot clock[kClocks];
};

struct Recorder::Slot {
  std::atomic<uint64_t> number;  // 0 while the rest is being written
  uint64_t sequence, key;
  uint64_t text_at;  // plus 1; 0: none
  int64_t arrived, launched, ended;
  uint32_t state, text_bytes;  // text: what, a zero byte, label
};

namespace {

constexpr size_t kHeaderBytes = 6 * 4096, kSlotBytes = 64;
constexpr size_t kBytes = kHeaderBytes + Recorder::kCapacity * kSlotBytes + Recorder::kTextBytes;
// Before the rest of a slot is written anew: none of it is written under the old mark, as another process that reads
// the file could see.
template <class T>
void Invalidate(std::atomic<T>& mark) {
  mark.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}

// Keys of successive operations may be any numbers.
size_t Bucket(uint64_t key) { return (key * 0x9e3779b97f4a7c15) >> 32 & (Recorder::kCapacity - 1); }

// Shared memory, or the file. Throws std::system_error.
void* MapShared(const std::string& path, size_t bytes, int* fd) {
  *fd = path.empty() ? memfd_create("jaxring-trace", MFD_CLOEXEC)
                     : open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const std::string what = "making the flight record " + (path.empty() ? "in memory" : path);
  if (*fd < 0) throw std::system_error(errno, std::generic_category(), what);
  // Allocates the space now: a full disk later would end the process by SIGBUS.
  if (const int error = posix_fallocate(*fd, 0, static_cast<off_t>(bytes)); error != 0) {
    close(*fd);
    if (!path.empty()) unlink(path.c_str());
    throw std::system_error(error, std::generic_category(), what);
  }
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (base != MAP_FAILED) return base;
  const int error = errno;
  close(*fd);
  throw std::system_error(error, std::generic_category(), what);
}

void* MapPrivate(size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "making the flight record");
  return base;
}

// So far back the operation is looked for that ended before another one was launched.
constexpr uint64_t kLookBack = 64;

OperationRecord::Time TimeAt(int64_t ns) {
  return OperationRecord::Time(
      std::chrono::duration_cast<OperationRecord::Time::duration>(std::chrono::nanoseconds(ns)));
}

}  // namespace

Recorder::Recorder(const std::string& path, bool shared) : newest_(kCapacity), before_(kCapacity) {
  static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Slot) == kSlotBytes && (kCapacity & (kCapacity - 1)) == 0);
  void* const base = shared ? MapShared(path, kBytes, &fd_) : MapPrivate(kBytes);
  header_ = static_cast<Header*>(base);
  text_ = static_cast<char*>(base) + kHeaderBytes + kCapacity * sizeof(Slot);
  header_->header_bytes = kHeaderBytes;
  header_->slot_bytes = sizeof(Slot);
  header_->capacity = kCapacity;
  header_->text_bytes = kTextBytes;
  header_->pid = getpid();
  header_->process = -1;
  header_->realtime_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  header_->monotonic_ns = Nanoseconds(Clock::now());
  gethostname(header_->host, sizeof header_->host - 1);
  std::memcpy(header_->magic, "JRTRACE3", sizeof header_->magic);
}

Recorder::~Recorder() {
  munmap(header_, kBytes);
  if (fd_ >= 0) close(fd_);
}

std::pair<const void*, size_t> Recorder::memory() const { return {header_, kBytes}; }

void Recorder::Name(int process, int processes, const std::string& job) {
  MutexLock lock(mutex_);
  std::strncpy(header_->job, job.c_str(), sizeof header_->job - 1);
  header_->process.store(process, std::memory_order_relaxed);
  header_->processes.store(processes, std::memory_order_release);
}

Recorder::Slot& Recorder::slot(uint64_t number) const {
  return reinterpret_cast<Slot*>(reinterpret_cast<char*>(header_) + kHeaderBytes)[number % kCapacity];
}

uint64_t Recorder::Write(const Plan& plan) {
  const std::string label = plan.record.label ? *plan.record.label : "";
  const std::string text = (plan.what + '\0' + label).substr(0, kTextBytes / 4);
  uint64_t written = header_->written.load(std::memory_order_relaxed);
  // A text is contiguous: if it does not fit before the end of the ring, it is written to the ring's start.
  const uint64_t left = kTextBytes - written % kTextBytes;
  if (text.size() > left) written += left;
  std::memcpy(text_ + written % kTextBytes, text.data(), text.size());
  header_->written.store(written + text.size(), std::memory_order_release);
  plan.record.text_bytes = static_cast<uint32_t>(text.size());
  return written + 1;
}

uint64_t Recorder::Begin(const Plan& plan, uint64_t key, uint64_t sequence, OperationRecord::Time arrived,
                         OperationRecord::Time launched) {
  MutexLock lock(mutex_);
  const uint64_t written = header_->written.load(std::memory_order_relaxed);
  if (plan.record.text_at == 0 || written - (plan.record.text_at - 1) > kTextBytes) plan.record.text_at = Write(plan);
  header_->process.store(plan.group.process, std::memory_order_relaxed);
  const uint64_t number = header_->last.load(std::memory_order_relaxed) + 1;
  Slot& s = slot(number);
  Invalidate(s.number);
  s.sequence = sequence;
  s.key = key;
  s.text_at = plan.record.text_at;
  s.text_bytes = plan.record.text_bytes;
  s.arrived = Nanoseconds(arrived);
  s.launched = Nanoseconds(launched);
  s.ended = 0;
  s.state = static_cast<uint32_t>(OperationState::kRunning);
  s.number.store(number, std::memory_order_release);
  header_->last.store(number, std::memory_order_release);
  return number;
}

void Recorder::End(uint64_t number, bool failed) {
  if (number == 0) return;
  const int64_t now = Nanoseconds(Clock::now());
  MutexLock lock(mutex_);
  Slot& s = slot(number);
  if (s.number.load(std::memory_order_relaxed) != number) return;
  s.ended = now;
  s.state = static_cast<uint32_t>(failed ? OperationState::kFailed : OperationState::kDone);
}

OperationRecord Recorder::Read(uint64_t number) const {
  const Slot& s = slot(number);
  OperationRecord record{number,
                         s.sequence,
                         s.key,
                         "",
                         "",
                         TimeAt(s.arrived),
                         TimeAt(s.launched),
                         TimeAt(s.ended),
                         static_cast<OperationState>(s.state)};
  const uint64_t written = header_->written.load(std::memory_order_relaxed), begin = s.text_at - 1;
  if (written - begin > kTextBytes) return record;
  const std::string text(text_ + begin % kTextBytes, s.text_bytes);
  const size_t zero = text.find('\0');
  record.what = text.substr(0, zero);
  if (zero != text.npos) record.label = text.substr(zero + 1);
  return record;
}

std::vector<OperationRecord> Recorder::After(uint64_t number) const {
  MutexLock lock(mutex_);
  const uint64_t last = header_->last.load(std::memory_order_relaxed);
  const uint64_t oldest = last < kCapacity ? 1 : last - kCapacity + 1;
  std::vector<OperationRecord> records;
  for (uint64_t n = std::max(oldest, number + 1); n <= last; ++n) records.push_back(Read(n));
  return records;
}

std::optional<OperationRecord> Recorder::Last() const {
  MutexLock lock(mutex_);
  const uint64_t last = header_->last.load(std::memory_order_relaxed);
  return last == 0 ? std::nullopt : std::optional(Read(last));
}

template <class Matches>
uint64_t Recorder::Find(uint64_t key, Matches matches) const {
  const uint64_t last = header_->last.load(std::memory_order_relaxed);
  const uint64_t oldest = last < kCapacity ? 1 : last - kCapacity + 1;
  for (uint64_t n = std::max(oldest, indexed_ + 1); n <= last; ++n) {
    uint64_t& newest = newest_[Bucket(slot(n).key)];
    before_[n % kCapacity] = newest;
    newest = n;
  }
  indexed_ = last;
  for (uint64_t n = newest_[Bucket(key)]; n >= oldest; n = before_[n % kCapacity]) {
    if (slot(n).key == key && matches(n)) return n;
  }
  return 0;
}

uint64_t Recorder::NumberOf(uint64_t key) const {
  MutexLock lock(mutex_);
  return Find(key, [](uint64_t) { return true; });
}

std::optional<OperationRecord> Recorder::At(uint64_t number) const {
  MutexLock lock(mutex_);
  const uint64_t last = header_->last.load(std::memory_order_relaxed);
  const bool there = number != 0 && number <= last && last - number < kCapacity;
  return there ? std::optional(Read(number)) : std::nullopt;
}

LaunchTime Recorder::ReadLaunch(uint64_t number) const {
  const Slot& s = slot(number);
  LaunchTime launch{s.key, s.sequence, s.launched};
  const uint64_t oldest = number > kLookBack ? number - kLookBack : 1;
  for (uint64_t n = number - 1; n >= oldest; --n) {
    const Slot& before = slot(n);
    if (before.number.load(std::memory_order_relaxed) != n || before.ended == 0 || before.ended > s.launched) continue;
    const int64_t idle = s.launched - before.ended;
    launch.idle_ns = launch.idle_ns < 0 ? idle : std::min(launch.idle_ns, idle);
  }
  return launch;
}

std::vector<LaunchTime> Recorder::LastLaunches(size_t count) const {
  MutexLock lock(mutex_);
  const uint64_t last = header_->last.load(std::memory_order_relaxed);
  std::vector<LaunchTime> launches;
  for (uint64_t n = last > count ? last - count + 1 : 1; n <= last; ++n) launches.push_back(ReadLaunch(n));
  return launches;
}

std::optional<std::pair<LaunchTime, uint64_t>> Recorder::FindLaunch(uint64_t key, uint64_t sequence) const {
  MutexLock lock(mutex_);
  const uint64_t number = Find(key, [&](uint64_t n) { return slot(n).sequence == sequence; });
  return number == 0 ? std::nullopt : std::optional(std::pair(ReadLaunch(number), number));
}

void Recorder::Keep(const ResourceSample& sample) {
  MutexLock lock(mutex_);
  const uint64_t number = header_->samples.load(std::memory_order_relaxed);
  SampleSlot& s = header_->sample[number % kSamples];
  Invalidate(s.at_ns);
  s.cpu_ns = sample.cpu_ns;
  s.delayed_ns = sample.delayed_ns;
  s.link_peer = sample.link_peer;
  s.link_bytes = sample.link_bytes;
  s.link_ns = sample.link_ns;
  s.resumable = sample.resumable;
  s.detours = sample.detours;
  s.at_ns.store(sample.at_ns, std::memory_order_release);
  header_->samples.store(number + 1, std::memory_order_release);
}

void Recorder::Keep(int process, const ClockOffset& clock) {
  MutexLock lock(mutex_);
  for (ClockSlot& s : header_->clock) {
    const int64_t known = s.process.load(std::memory_order_relaxed);
    if (known != 0 && known != process + 1) continue;
    Invalidate(s.process);
    s.offset_ns = clock.offset_ns;
    s.error_ns = clock.error_ns;
    s.process.store(process + 1, std::memory_order_release);
    return;
  }
}

}  // namespace jaxring
