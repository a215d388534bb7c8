// A case that fails or crashes is named, and arguments choose cases. This program has a main of its own, which runs the
// cases in child processes and checks how these end.
#include "tests/support/cases.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace jaxring::test {
namespace {

CASE("passes") {}

CASE("fails where 2 * 2 is 5") { CHECK_EQ(2 * 2, 5); }

CASE("aborts") { std::abort(); }

struct End {
  int status;
  std::string errors;
};

CASE("waits: apart") { pause(); }

End Played(std::string argument, std::string second = "") {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    char* arguments[] = {nullptr, argument.data(), second.data()};
    std::_Exit(RunAllCases(second.empty() ? 2 : 3, arguments));
  }
  close(ends[1]);
  End end{};
  char buffer[256];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) end.errors.append(buffer, got);
  close(ends[0]);
  CHECK(waitpid(child, &end.status, 0) == child);
  return end;
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace
}  // namespace jaxring::test

int main() {
  using namespace jaxring::test;
  const End passed = Played("pass");
  CHECK(WIFEXITED(passed.status) && WEXITSTATUS(passed.status) == 0);
  CHECK(passed.errors.empty());
  const End failed = Played("fails");
  CHECK(WIFEXITED(failed.status) && WEXITSTATUS(failed.status) == 1);
  CHECK(Has(failed.errors, "2 * 2 = 4") && Has(failed.errors, "in case \"fails where 2 * 2 is 5\""));
  // "fails", "waits" and "passes" contain the letter; the last comes after neither, but runs, and so does all else.
  const End apart = Played("--apart=1", "s");
  CHECK(WIFEXITED(apart.status) && WEXITSTATUS(apart.status) == 1);
  CHECK(Has(apart.errors, "in case \"fails where 2 * 2 is 5\""));
  const End fine = Played("--apart=60", "passes");
  CHECK(WIFEXITED(fine.status) && WEXITSTATUS(fine.status) == 0);
  const End unknown = Played("no such case");
  CHECK(WIFEXITED(unknown.status) && WEXITSTATUS(unknown.status) == 2);
  CHECK(Has(unknown.errors, "passes"));
// Sanitizers print reports of their own for crashes.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  const End aborted = Played("aborts");
  CHECK(WIFSIGNALED(aborted.status) && WTERMSIG(aborted.status) == SIGABRT);
  CHECK(Has(aborted.errors, "case \"aborts\""));
#endif
}
