// The planner's own schedules, from the file that tools/dump_schedules.py writes and TEST_SCHEDULES names.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ffi/engine/plan.h"
#include "ffi/tests/check.h"

namespace jaxring::test {

struct Schedule {
  std::string name, collective;
  Half half = Half::kBoth;
  int root = 0, in_blocks = 1, out_blocks = 1, pieces = 1, nlanes = 1, scratch_chunks = 0;
  std::vector<int32_t> placement;  // each rank's process
  std::vector<int32_t> perm;       // source, target, source, ...
  std::vector<RankTable> tables;

  int ranks() const { return static_cast<int>(placement.size()); }
  int processes() const { return *std::max_element(placement.begin(), placement.end()) + 1; }
  bool reduces() const {
    return collective == "all_reduce" || collective == "reduce_scatter" || collective == "reduce";
  }
  // Whether any rank sends a message; the others touch memory only.
  bool messages() const {
    for (const RankTable& table : tables) {
      for (const Step& step : table.steps) {
        for (uint32_t i = 0; i < step.send_count; ++i) {
          if (!Peer::memory(table.peers[step.send_begin + i])) return true;
        }
      }
    }
    return false;
  }
};

class ScheduleReader {
 public:
  explicit ScheduleReader(const std::string& bytes) : bytes_(bytes) {}

  // The file's two lists.
  std::array<std::vector<Schedule>, 2> All() {
    CHECK(Text(8) == "JRSCHED2");
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
    CHECK_EQ(shape.size(), 6u);
    s->root = shape[0];
    s->in_blocks = shape[1];
    s->out_blocks = shape[2];
    s->pieces = shape[3];
    s->nlanes = shape[4];
    s->scratch_chunks = shape[5];
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

inline const std::array<std::vector<Schedule>, 2>& ScheduleLists() {
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

// Every collective by every algorithm, over a few placements.
inline const std::vector<Schedule>& Schedules() { return ScheduleLists()[0]; }
// All-reduces among 2 to 8 ranks.
inline const std::vector<Schedule>& MatrixSchedules() { return ScheduleLists()[1]; }

// By its name: "all_reduce ring 2x2 x1".
inline const Schedule& Find(const std::string& name) {
  for (const auto& list : ScheduleLists()) {
    for (const Schedule& schedule : list) {
      if (schedule.name == name) return schedule;
    }
  }
  std::cerr << "there is no schedule '" << name << "'" << std::endl;
  std::exit(1);
}

}  // namespace jaxring::test
