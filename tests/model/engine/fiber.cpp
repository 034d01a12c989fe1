#include "engine/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tandem::model {
namespace {

// A kernel's frame holds a few hundred registers' worth of arrays; sanitizers multiply it. Pages that nobody touches
// cost nothing.
constexpr size_t kStackBytes = 128 * 1024;

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Before a switch away from `from`, and after one has come back or to a new stack; `before` is then the stack left.
#ifdef __SANITIZE_ADDRESS__
void leave(StackOwner& from, const StackOwner& to) {
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
}
void enter(const StackOwner& self, StackOwner& before) {
  __sanitizer_finish_switch_fiber(self.fake_stack, &before.bottom, &before.bytes);
}
// Frames that have been on the stack before are gone.
void forget_frames(const StackOwner& stack) {
  __asan_unpoison_memory_region(stack.bottom, stack.bytes);
}
#else
void leave(StackOwner&, const StackOwner&) {}
void enter(const StackOwner&, StackOwner&) {}
void forget_frames(const StackOwner&) {}
#endif

std::vector<void*>& spare_stacks() {
  static std::vector<void*> spare;
  return spare;
}

// Mapped once, with a guard page below; never given back to the system.
void* map_stack() {
  void* memory = mmap(nullptr, kStackBytes + page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page_bytes(), PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<char*>(memory) + page_bytes() + kStackBytes;
}

boost::context::stack_context take_stack() {
  boost::context::stack_context context;
  context.size = kStackBytes;
  if (spare_stacks().empty()) {
    context.sp = map_stack();
  } else {
    context.sp = spare_stacks().back();
    spare_stacks().pop_back();
  }
  return context;
}

// Gives the stack that the fiber was made on back to the pool.
struct PooledStack {
  void deallocate(boost::context::stack_context& context) { spare_stacks().push_back(context.sp); }
};

}  // namespace

void Fiber::start(std::function<void()> body) {
  const boost::context::stack_context stack = take_stack();
  own_ = {nullptr, static_cast<char*>(stack.sp) - stack.size, stack.size};
  forget_frames(own_);
  self_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                PooledStack(), [this, body = std::move(body)](boost::context::fiber&& resumer) {
                                  enter(own_, resumers_);
                                  resumer_ = std::move(resumer);
                                  body();
                                  leave(own_, resumers_);
                                  return std::move(resumer_);
                                });
}

void Fiber::resume() {
  StackOwner here;
  leave(here, own_);
  self_ = std::move(self_).resume();
  enter(here, own_);
}

void Fiber::suspend() {
  leave(own_, resumers_);
  resumer_ = std::move(resumer_).resume();
  enter(own_, resumers_);
}

}  // namespace tandem::model
