// The engine under thousands of schedules: arrivals, orders of messages, losses and deadlines, each chosen by a seed
// and played in one thread and virtual time (tests/simulation/programs/play.h).
//
//   simulation_test                     the cases, with as many seeds as TEST_SEEDS says (1000)
//   simulation_test --seed=NUMBER       plays one seed and prints what happens
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "engine/threads/cpu_placement.h"
#include "tests/simulation/programs/play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

uint64_t Seeds() {
  const char* text = std::getenv("TEST_SEEDS");
  return text == nullptr ? 1000 : std::strtoull(text, nullptr, 10);
}

// Says which seed it was if a check ends the program.
Played PlaySeed(uint64_t seed, Mutation mutation = {}, bool show = false) {
  static std::string name;
  name = "seed " + std::to_string(seed);
  const char* const before = running_case;
  running_case = name.c_str();
  Played played = Play(seed, mutation, show);
  running_case = before;
  return played;
}

// Every `step`th seed from `first` on.
void PlayAll(uint64_t first, uint64_t seeds, uint64_t step) {
  std::map<std::string, uint64_t> troubles;
  uint64_t failures = 0;
  for (uint64_t seed = first; seed < seeds; seed += step) {
    const Played played = PlaySeed(seed);
    if (!played.fault.empty()) {
      std::cerr << "seed " << seed << ", " << played.trouble << ": " << played.fault << std::endl
                << "Play it again: simulation_test --seed=" << seed << std::endl;
      Fail(__FILE__, __LINE__, "every seed ends in right answers or right errors");
    }
    ++troubles[played.trouble.substr(0, played.trouble.find(" and "))];
    failures += played.failures;
  }
  for (const auto& [trouble, count] : troubles) std::cout << count << " with " << trouble << ", ";
  std::cout << failures << " errors" << std::endl;
}

CASE("every seed ends in right answers or right errors") {
  const uint64_t workers = Seeds() > 2000 ? AllowedCpus() : 1;
  for (uint64_t worker = 1; worker < workers; ++worker) {
    const pid_t child = fork();
    CHECK(child >= 0);  // or else nobody would play its seeds
    if (child > 0) continue;
    PlayAll(worker, Seeds(), workers);
    std::cout.flush();
    std::_Exit(0);
  }
  PlayAll(0, Seeds(), workers);
  uint64_t ended = 1;
  for (int status; wait(&status) > 0; ++ended) CHECK_EQ(status, 0);
  CHECK_EQ(ended, workers);
}

CASE("a seed is the whole report: it gives the same events again") {
  for (uint64_t seed = 0; seed < 100; ++seed) CHECK_EQ(PlaySeed(seed).hash, PlaySeed(seed).hash);
}

// Takes one away in each of some seeds. Where others make up for it nothing is wrong; but seeds find it.
void CheckFound(Loss loss, uint64_t Played::* number, uint64_t at_least) {
  uint64_t tried = 0, found = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const uint64_t count = PlaySeed(seed).*number;
    if (count == 0) continue;
    ++tried;
    found += !PlaySeed(seed, {loss, seed * 7919 % count}).fault.empty();
  }
  std::cout << found << " of " << tried << " seeds find it" << std::endl;
  CHECK(found >= at_least);
}

CASE("a lost wake-up is found") { CheckFound(Loss::kWakeUp, &Played::wake_ups, 10); }

CASE("a lost credit is found") { CheckFound(Loss::kCredit, &Played::credits, 10); }

CASE("a lost notice of a failure is found") { CheckFound(Loss::kNotice, &Played::notices, 10); }

}  // namespace
}  // namespace jaxring::test

int main(int argc, char** argv) {
  unsigned long long seed = 0;
  if (argc != 2 || std::sscanf(argv[1], "--seed=%llu", &seed) != 1) return jaxring::test::RunAllCases(argc, argv);
  const jaxring::test::Played played = jaxring::test::PlaySeed(seed, {}, true);
  std::cout << "seed " << seed << ", " << played.trouble << ": "
            << (played.fault.empty() ? "right" : played.fault.c_str()) << std::endl;
  return played.fault.empty() ? 0 : 1;
}
