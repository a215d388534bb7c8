// The cases of a test program. CASE("name") { ... } registers a case, anywhere in a namespace of the program's file.
// The main of cases_main.cc runs all of them in the order of the file. With arguments it runs those cases whose names
// contain one of the arguments. With the first argument `--apart=SECONDS` each case is a process of its own, which ends
// after so many seconds with all that it started, and a case that fails does not keep the others from running. The name
// of a case is printed when it begins, when a CHECK in it fails, and when a signal ends the program during it.
#pragma once

#include "tests/support/check.h"

namespace jaxring::test {

class RegisteredCase {
 public:
  RegisteredCase(const char* name, void (*body)());
};

// The body of that main, for programs with a main of their own. Returns the exit status: 0 if all chosen cases ran, 1
// if some failed apart, 2 if no name matches the arguments.
int RunAllCases(int argc, char** argv);

}  // namespace jaxring::test

#define JAXRING_CASE_JOIN(a, b) a##b
#define JAXRING_CASE_NAMED(name, line)                                                                             \
  static void JAXRING_CASE_JOIN(CaseBody, line)();                                                                 \
  static const ::jaxring::test::RegisteredCase JAXRING_CASE_JOIN(kCase, line)(name,                                \
                                                                              &JAXRING_CASE_JOIN(CaseBody, line)); \
  static void JAXRING_CASE_JOIN(CaseBody, line)()
#define CASE(name) JAXRING_CASE_NAMED(name, __LINE__)
