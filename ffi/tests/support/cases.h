// The cases of a test program. CASE("name") { ... } registers one, anywhere in a namespace of the program's file, and
// the main that comes with this header (cases_main.cc) runs all of them in the order of the file. Arguments choose
// those whose names contain one of them. The name of a case is printed when it begins, when a CHECK in it fails, and
// when the program ends by a signal meanwhile.
#pragma once

#include "tests/support/check.h"

namespace jaxring::test {

class RegisteredCase {
 public:
  RegisteredCase(const char* name, void (*body)());
};

// What main does: the exit status is 0 if all chosen cases ran, and 2 if no name fits the arguments. For programs that
// take arguments of their own, and so have a main of their own.
int RunAllCases(int argc, char** argv);

}  // namespace jaxring::test

#define JAXRING_CASE_JOIN(a, b) a##b
#define JAXRING_CASE_NAMED(name, line)                                                                             \
  static void JAXRING_CASE_JOIN(CaseBody, line)();                                                                 \
  static const ::jaxring::test::RegisteredCase JAXRING_CASE_JOIN(kCase, line)(name,                                \
                                                                              &JAXRING_CASE_JOIN(CaseBody, line)); \
  static void JAXRING_CASE_JOIN(CaseBody, line)()
#define CASE(name) JAXRING_CASE_NAMED(name, __LINE__)
