// The planner's own schedules, from the file that tools/dump_schedules.py writes and TEST_SCHEDULES names.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tests/support/check.h"

namespace jaxring::test {

struct Schedule {
  std::string name, collective;
  Half half = Half::kBoth;
  int root = 0, in_blocks = 1, out_blocks = 1, pieces = 1, nlanes = 1, scratch_chunks = 0;
  int group = 1;                   // chunks of the longest message
  std::vector<int32_t> placement;  // each rank's process
  std::vector<int32_t> perm;       // source, target, source, ...
  std::vector<RankTable> tables;

  int ranks() const { return static_cast<int>(placement.size()); }
  int processes() const;
  bool reduces() const {
    return collective == "all_reduce" || collective == "reduce_scatter" || collective == "reduce";
  }
  // Whether any rank sends a message; the others touch memory only.
  bool messages() const;
};

// The file's two lists.
const std::array<std::vector<Schedule>, 2>& ScheduleLists();
// Every collective by every algorithm, over a few placements.
inline const std::vector<Schedule>& Schedules() { return ScheduleLists()[0]; }
// All-reduces among 2 to 8 ranks.
inline const std::vector<Schedule>& MatrixSchedules() { return ScheduleLists()[1]; }

// Whether a rank needs memory of the engine's own.
bool Stages(const RankTable& table);

// By its name: "all_reduce ring 2x2 x1".
const Schedule& Find(const std::string& name);

}  // namespace jaxring::test
