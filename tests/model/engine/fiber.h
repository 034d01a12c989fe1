#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace tandem::model {

// What AddressSanitizer has to know of a stack: exceptions unwind on fibers' stacks too.
struct StackOwner {
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t bytes = 0;
};

// A stack of its own for one CUDA thread. Everything happens on one thread of the host.
class Fiber {
 public:
  void start(std::function<void()> body);
  // Runs the body until it suspends or returns. HAZARD: an exception must not leave the body, and it must have returned
  // before the fiber is destroyed.
  void resume();
  bool unfinished() const { return static_cast<bool>(self_); }
  // Called by the body: back to the resume() that runs it.
  void suspend();

 private:
  boost::context::fiber self_;
  boost::context::fiber resumer_;
  StackOwner own_, resumers_;
};

}  // namespace tandem::model
