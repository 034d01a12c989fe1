#include "engine/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>
#include <vector>

namespace tandem::model {
namespace {

// A kernel's frame holds a few hundred registers' worth of arrays; sanitizers multiply it. Pages that nobody touches
// cost nothing.
constexpr size_t kStackBytes = 128 * 1024;

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

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

struct PooledStack {
  boost::context::stack_context allocate() {
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
  void deallocate(boost::context::stack_context& context) { spare_stacks().push_back(context.sp); }
};

}  // namespace

void Fiber::start(std::function<void()> body) {
  self_ = boost::context::fiber(std::allocator_arg, PooledStack(),
                                [this, body = std::move(body)](boost::context::fiber&& resumer) {
                                  resumer_ = std::move(resumer);
                                  body();
                                  return std::move(resumer_);
                                });
}

void Fiber::resume() {
  self_ = std::move(self_).resume();
}

void Fiber::suspend() {
  resumer_ = std::move(resumer_).resume();
}

}  // namespace tandem::model
