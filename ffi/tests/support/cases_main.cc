// In an object file of its own, which the linker leaves out of programs with a main of their own.
#include "tests/support/cases.h"

int main(int argc, char** argv) { return jaxring::test::RunAllCases(argc, argv); }
