// The shim's threads are fibers: contexts with their own stacks, among which one system thread switches.
//
// ThreadSanitizer treats each fiber as a thread and a switch as no synchronisation, so accesses that the kernels do not
// order are races, although no two fibers run at the same time. AddressSanitizer is told of the stacks.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <utility>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace jaxring::cuda::simt {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// The shim's own records are shared among its fibers without synchronisation, by design, so ThreadSanitizer must ignore
// them.
class Unseen {
 public:
  Unseen() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unseen() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Unseen(const Unseen&) = delete;
};

#if defined(__x86_64__)
// Saves the caller's registers on its stack and continues with those on another stack.
[[gnu::naked, gnu::noinline, maybe_unused]] static void SwitchStacks(void** /*save*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
#endif

class Fiber {
 public:
  // The context of the scheduler's system thread, which must be set before it switches away.
  Fiber() = default;
  void BeThisThread() {
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_get_current_fiber();
#endif
  }
  // A context that runs `body` when it is first switched to. The body must not return; it ends with a switch away.
  explicit Fiber(std::function<void()> body) : body_(std::move(body)) {
    stack_ = static_cast<char*>(
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stack_ == MAP_FAILED) std::abort();
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack_ + kStackBytes);
    *--top = nullptr;  // aligns the stack as a call does
    *--top = reinterpret_cast<void*>(&Enter);
    top -= 6;
    top_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStackBytes;
    makecontext(&context_, &Enter, 0);
#endif
  }
  ~Fiber() {
    if (stack_ == nullptr) return;
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_);
#elif defined(__SANITIZE_ADDRESS__)
    // Its functions never returned, so AddressSanitizer's marks must be cleared before the addresses are reused.
    __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
    munmap(stack_, kStackBytes);
  }
  Fiber(const Fiber&) = delete;

  void SwitchTo(Fiber& to) {
    void *next, *other;  // read before ThreadSanitizer switches to the other fiber
    {
      Unseen unseen;
      entering = &to;
      next = to.top_;
      other = to.tsan_;
    }
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(other, __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, to.stack_ != nullptr ? to.stack_ : to.outer_,
                                   to.stack_ != nullptr ? kStackBytes : to.outer_bytes_);
    leaving = this;
#endif
#if defined(__x86_64__)
    SwitchStacks(&top_, next);
#else
    swapcontext(&context_, &to.context_);
#endif
    static_cast<void>(next);
    static_cast<void>(other);
    Arrived();
  }

 private:
  static constexpr size_t kStackBytes = 256 << 10;  // only the used pages are touched
  static inline Fiber* entering = nullptr;
  static inline Fiber* leaving = nullptr;

  static void Enter() {
    Fiber* self = entering;
    self->Arrived();
    self->body_();
    std::abort();
  }
  void Arrived() {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &bytes);
    if (leaving->stack_ == nullptr) {
      leaving->outer_ = bottom;
      leaving->outer_bytes_ = bytes;
    }
#endif
  }

  std::function<void()> body_;
  char* stack_ = nullptr;
  const void* outer_ = nullptr;
  size_t outer_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* tsan_ = nullptr;
  void* top_ = nullptr;
#if !defined(__x86_64__)
  ucontext_t context_;
#endif
};

}  // namespace jaxring::cuda::simt
