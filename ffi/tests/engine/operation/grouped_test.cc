// Steps whose message holds several chunks. Their results are tested with those of all other steps (engine_test) and
// with parts of any length (engine_p2p_test); this is about steps that are refused.
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/cases.h"
#include "tests/support/job.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlotBytes = 256;

// What CheckPlan says of process 1's plan, of which `change` has made something else. Rank 2 gathers one block of ranks
// 2 and 3 or, with leaders, two; it spreads what it receives over outputs of its own or of both.
std::string Refusal(const std::string& algorithm, const std::function<void(RankTable&)>& change) {
  Settings settings;
  settings.block = 24;
  settings.tile = 8;
  settings.protocol = Protocol::kSimple;
  auto plan = MakePlan(Find("all_to_all " + algorithm + " 2x2 x1"), settings, 1, 1);
  change(plan->group.locals[0]);
  try {
    CheckPlan(*plan, kSlotBytes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

Step& First(RankTable& table) { return table.steps.front(); }
Step& Last(RankTable& table) { return table.steps.back(); }

CASE("a step that gathers reads blocks that there are") {
  for (const char* algorithm : {"pxn", "multileader"}) {
    CHECK_EQ(Refusal(algorithm, [](RankTable&) {}), std::string());
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { First(table).dst_chunk = 0; }),
             std::string("rank 2, step 0: it gathers or spreads no blocks"));
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { First(table).dst_chunk = 5; }),
             std::string("rank 2, step 0: it gathers more blocks than the input has"));
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { First(table).dst_chunk = 0x7fffffff; }),
             std::string("rank 2, step 0: it gathers more blocks than the input has"));
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { table.peers[First(table).recv_begin + 1] = 1; }),
             std::string("rank 2, step 0: it addresses the memory of a rank of another process"));
    CHECK_EQ(
        Refusal(algorithm, [](RankTable& table) { First(table).send_count = 0; }),
        std::string("rank 2, step 0: a GATHER step needs input chunks of one rank or more, and one receiver of the "
                    "message"));
  }
}

CASE("a step that spreads writes blocks that there are, of ranks of this process") {
  const std::string at = "rank 2, step 3: ";
  for (const char* algorithm : {"pxn", "multileader"}) {
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { Last(table).src_chunk = 0; }),
             at + "it gathers or spreads no blocks");
    CHECK_EQ(Refusal(algorithm, [](RankTable& table) { Last(table).src_chunk = 5; }),
             at + "it spreads over more blocks than the output has");
  }
  const std::string order =
      "a SPREAD step writes to its own output, and to those of memory peers in the order of their ranks";
  auto with = [](int32_t peer) {
    return Refusal("multileader", [peer](RankTable& table) { table.peers[Last(table).send_begin] = peer; });
  };
  CHECK_EQ(with(3 | Peer::kMemory), std::string());
  CHECK_EQ(with(3), at + order);
  CHECK_EQ(with(2 | Peer::kMemory), at + order);
  CHECK_EQ(with(1 | Peer::kMemory), at + "it addresses the memory of a rank of another process");
  CHECK_EQ(Refusal("multileader",
                   [](RankTable& table) {
                     table.peers.insert(table.peers.begin() + Last(table).send_begin, 3 | Peer::kMemory);
                     Last(table).send_count = 2;
                   }),
           at + order);
}

}  // namespace
}  // namespace jaxring::test
