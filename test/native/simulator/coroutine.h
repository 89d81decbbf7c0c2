// A coroutine on a stack of its own. Switching on x86-64 keeps the registers that a call keeps, nothing else: ucontext
// asks the kernel for the signal mask at every switch, which takes ten times as long.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
extern "C" void simt_switch(void** save, void* to);
asm(R"(
.text
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

namespace simt {

class Coroutine {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    // The stack as simt_switch leaves it: six registers, then where to return to; 16-byte aligned as after a call.
    auto* top = reinterpret_cast<void**>(stack + bytes);
    top -= 2;
    *top = reinterpret_cast<void*>(entry);
    top -= 6;
    own_ = top;
  }
  void enter() { simt_switch(&caller_, own_); }
  void leave() { simt_switch(&own_, caller_); }

 private:
  void *own_ = nullptr, *caller_ = nullptr;
};

}  // namespace simt
#else
#include <ucontext.h>

namespace simt {

class Coroutine {
 public:
  void prepare(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack;
    own_.uc_stack.ss_size = bytes;
    own_.uc_link = nullptr;
    makecontext(&own_, entry, 0);
  }
  void enter() { swapcontext(&caller_, &own_); }
  void leave() { swapcontext(&own_, &caller_); }

 private:
  ucontext_t own_, caller_;
};

}  // namespace simt
#endif
