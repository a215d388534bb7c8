// By itself in an object file, which programs with a main of their own do not take from the library.
#include "tests/support/cases.h"

int main(int argc, char** argv) { return jaxring::test::RunAllCases(argc, argv); }
