// Stores to memory that others read are non-temporal where that is faster, and ordinary elsewhere. Times are made up.
#include "base/store_choice.h"

#include <chrono>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kBytes = 1 << 19;

// A writer for whom 512 KiB take so long by each kind of stores. It writes once in a millisecond.
struct Writer {
  StoreChoice stores;
  Clock::time_point now{};
  int streamed = 0;

  void Write(int count, microseconds ordinary, microseconds non_temporal) {
    streamed = 0;
    for (int i = 0; i < count; ++i) {
      now += milliseconds(1);
      const bool stream = stores.Streams(now);
      streamed += stream;
      stores.Wrote(stream, kBytes, stream ? non_temporal : ordinary);
    }
  }
};

constexpr microseconds kSharedCache{40}, kOtherCache{220}, kNonTemporal{38};

CASE("ordinary stores stay where writer and reader share a cache") {
  Writer writer;
  writer.Write(StoreChoice::kFirst, kSharedCache, kNonTemporal);
  CHECK_EQ(writer.streamed, 0);
  writer.Write(1000, kSharedCache, kNonTemporal);
  CHECK_EQ(writer.streamed, 10 * StoreChoice::kProbes);
}

CASE("non-temporal stores take over where they do not, and give way again") {
  Writer writer;
  writer.Write(StoreChoice::kFirst, kOtherCache, kNonTemporal);
  CHECK_EQ(writer.streamed, 0);
  writer.Write(1000, kOtherCache, kNonTemporal);
  CHECK_EQ(writer.streamed, 1000 - 9 * StoreChoice::kProbes);  // the first probe was theirs
  writer.Write(200, kSharedCache, kNonTemporal);
  writer.Write(1000, kSharedCache, kNonTemporal);
  CHECK_EQ(writer.streamed, 10 * StoreChoice::kProbes);
}

CASE("a writer that is interrupted changes nothing") {
  Writer writer;
  for (int i = 0; i < 500; ++i) {
    writer.Write(3, kSharedCache, kNonTemporal);
    writer.Write(1, milliseconds(4), milliseconds(4));
  }
  writer.Write(100, kSharedCache, kNonTemporal);
  CHECK_EQ(writer.streamed, StoreChoice::kProbes);
}

CASE("a clock that stands still changes nothing") {
  Writer writer;
  for (int i = 0; i < 1000; ++i) writer.Write(1, microseconds(0), microseconds(0));
  writer.Write(100, microseconds(0), microseconds(0));
  CHECK_EQ(writer.streamed, StoreChoice::kProbes);
}

}  // namespace
}  // namespace jaxring::test
