// Checks for plain test executables: the first that fails prints its place and condition, and ends the program with
// status 1.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace jaxring::test {

// The case that this process runs (cases.h), for messages; nullptr outside of cases.
inline std::atomic<const char*> running_case{nullptr};

template <class T>
void Show(const char* text, const T& value) {
  if constexpr (sizeof(T) == 1) {
    std::cerr << "  " << text << " = " << static_cast<int>(value) << std::endl;
  } else if constexpr (requires { std::cerr << value; }) {
    std::cerr << "  " << text << " = " << value << std::endl;
  } else {
    std::cerr << "  " << text << " = (not printable)" << std::endl;
  }
}

[[noreturn]] inline void Fail(const char* file, int line, const char* text) {
  const char* name = running_case;
  std::cerr << file << ":" << line << ": failed: " << text;
  if (name != nullptr) std::cerr << ", in case \"" << name << '"';
  std::cerr << std::endl;
  std::_Exit(1);  // other threads may be running, so nothing is destroyed
}

template <class A, class B>
void CheckEqual(const A& a, const B& b, const char* a_text, const char* b_text, const char* file, int line) {
  if (a == b) return;
  Show(a_text, a);
  Show(b_text, b);
  Fail(file, line, "they are equal");
}

}  // namespace jaxring::test

#define CHECK(condition) ((condition) ? (void)0 : ::jaxring::test::Fail(__FILE__, __LINE__, #condition))
#define CHECK_EQ(a, b) ::jaxring::test::CheckEqual((a), (b), #a, #b, __FILE__, __LINE__)
