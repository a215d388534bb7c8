#include "tests/support/schedules.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace jaxring::test {
namespace {

class ScheduleReader {
 public:
  explicit ScheduleReader(const std::string& bytes) : bytes_(bytes) {}

  // The file's two lists.
  std::array<std::vector<Schedule>, 2> All() {
    CHECK(Text(8) == "JRSCHED3");
    std::array<std::vector<Schedule>, 2> all;
    for (auto& list : all) {
      list.resize(Number());
      for (Schedule& schedule : list) Read(&schedule);
    }
    CHECK_EQ(at_, bytes_.size());
    return all;
  }

 private:
  std::string Text(size_t size) {
    CHECK(bytes_.size() - at_ >= size);
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  uint32_t Number() {
    uint32_t number;
    std::memcpy(&number, Text(4).data(), 4);
    return number;
  }
  template <class T>
  std::vector<T> List() {
    std::vector<T> list(Number());
    std::string bytes = Text(list.size() * sizeof(T));
    if (!list.empty()) std::memcpy(static_cast<void*>(list.data()), bytes.data(), bytes.size());
    return list;
  }
  void Read(Schedule* s) {
    s->name = Text(Number());
    s->collective = Text(Number());
    std::string half = Text(Number());
    s->half = half == "send" ? Half::kSend : half == "recv" ? Half::kRecv : Half::kBoth;
    auto shape = List<int32_t>();
    CHECK_EQ(shape.size(), 7u);
    s->root = shape[0];
    s->in_blocks = shape[1];
    s->out_blocks = shape[2];
    s->pieces = shape[3];
    s->nlanes = shape[4];
    s->scratch_chunks = shape[5];
    s->group = shape[6];
    s->placement = List<int32_t>();
    s->perm = List<int32_t>();
    for (int rank = 0; rank < s->ranks(); ++rank) {
      RankTable table;
      table.rank = rank;
      table.steps = List<Step>();
      table.lane_begin = List<uint32_t>();
      table.peers = List<int32_t>();
      CHECK_EQ(table.lane_begin.size(), static_cast<size_t>(s->nlanes) + 1);
      CHECK_EQ(size_t{table.lane_begin.back()}, table.steps.size());
      table.NumberFlows();
      s->tables.push_back(std::move(table));
    }
  }

  std::string bytes_;
  size_t at_ = 0;
};

}  // namespace

int Schedule::processes() const { return *std::max_element(placement.begin(), placement.end()) + 1; }

bool Schedule::messages() const {
  for (const RankTable& table : tables) {
    for (const Step& step : table.steps) {
      for (uint32_t i = 0; i < step.send_count; ++i) {
        if (!Peer::memory(table.peers[step.send_begin + i])) return true;
      }
    }
  }
  return false;
}

const std::array<std::vector<Schedule>, 2>& ScheduleLists() {
  static const auto lists = [] {
    const char* path = std::getenv("TEST_SCHEDULES");
    std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
    if (!file) {
      std::cerr << "TEST_SCHEDULES must name what tools/dump_schedules.py wrote; `make native-test` sees to it"
                << std::endl;
      std::exit(1);
    }
    return ScheduleReader(std::string(std::istreambuf_iterator<char>(file), {})).All();
  }();
  return lists;
}

bool Stages(const RankTable& table) {
  constexpr auto kScratch = static_cast<uint8_t>(jaxring::Buffer::kScratch);
  return std::any_of(table.steps.begin(), table.steps.end(),
                     [](const Step& step) { return step.src_buffer == kScratch || step.dst_buffer == kScratch; });
}

const Schedule& Find(const std::string& name) {
  for (const auto& list : ScheduleLists()) {
    for (const Schedule& schedule : list) {
      if (schedule.name == name) return schedule;
    }
  }
  std::cerr << "there is no schedule '" << name << "'" << std::endl;
  std::exit(1);
}

}  // namespace jaxring::test
