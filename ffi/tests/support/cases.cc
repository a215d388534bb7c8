#include "tests/support/cases.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace jaxring::test {
namespace {

struct Registered {
  const char* name;
  void (*body)();
};

// Made at its first use, since cases register themselves before main.
std::vector<Registered>& Cases() {
  static std::vector<Registered> cases;
  return cases;
}

// Sanitizers report crashes themselves, with more detail.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void Say(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text)); }

// Calls only async-signal-safe functions.
void NameTheCase(int number) {
  const char* name = running_case.load();
  Say("case \"");
  Say(name == nullptr ? "" : name);
  Say("\" ends by a signal\n");
  // SA_RESETHAND has restored the default action.
  raise(number);
}

void WatchForCrashes() {
  struct sigaction action = {};
  action.sa_handler = NameTheCase;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(number, &action, nullptr);
}
#else
void WatchForCrashes() {}
#endif

}  // namespace

namespace {

// Returns whether the case passed. Its processes are a group, of which none is left.
bool PassesApart(const Registered& each, unsigned seconds) {
  const pid_t child = fork();
  if (child < 0) Fail(__FILE__, __LINE__, "fork");
  setpgid(child, child);  // 0 in the child; both do it, since either may be first
  if (child == 0) {
    alarm(seconds);
    each.body();
    std::cout.flush();
    std::_Exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) Fail(__FILE__, __LINE__, "waitpid");
  kill(-child, SIGKILL);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::cout << "case \"" << each.name << "\" failed: ";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    std::cout << "it took more than " << seconds << " s" << std::endl;
  } else {
    std::cout << (WIFSIGNALED(status) ? "signal " : "exit ")
              << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)) << std::endl;
  }
  return false;
}

}  // namespace

RegisteredCase::RegisteredCase(const char* name, void (*body)()) {
  const auto same = [&](const Registered& other) { return std::strcmp(other.name, name) == 0; };
  if (std::any_of(Cases().begin(), Cases().end(), same)) Fail(name, 0, "every case has a name of its own");
  Cases().push_back({name, body});
}

int RunAllCases(int argc, char** argv) {
  WatchForCrashes();
  unsigned seconds = 0;
  if (argc > 1 && std::sscanf(argv[1], "--apart=%u", &seconds) == 1) {
    ++argv;
    --argc;
  }
  int played = 0, failed = 0;
  for (const Registered& each : Cases()) {
    const auto asked = [&](const char* part) { return std::strstr(each.name, part) != nullptr; };
    if (argc > 1 && std::none_of(argv + 1, argv + argc, asked)) continue;
    // Flushes the name, in case of a signal that cannot be handled.
    std::cout << "case \"" << each.name << '"' << std::endl;
    running_case = each.name;
    if (seconds == 0) {
      each.body();
    } else {
      failed += PassesApart(each, seconds) ? 0 : 1;
    }
    running_case = nullptr;
    ++played;
  }
  if (failed > 0) std::cout << failed << " of " << played << " cases failed" << std::endl;
  if (played > 0) return failed > 0 ? 1 : 0;
  std::cerr << "No case is called so. There are:" << std::endl;
  for (const Registered& each : Cases()) std::cerr << "  " << each.name << std::endl;
  return 2;
}

}  // namespace jaxring::test
