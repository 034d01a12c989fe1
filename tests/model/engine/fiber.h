#pragma once

#include <boost/context/fiber.hpp>
#include <functional>

namespace tandem::model {

// A stack of its own for one CUDA thread. Everything happens on one thread of the host.
class Fiber {
 public:
  void start(std::function<void()> body);
  // Runs the body until it suspends or returns. HAZARD: an exception must not leave the body.
  void resume();
  // Called by the body: back to the resume() that runs it.
  void suspend();

 private:
  boost::context::fiber self_;
  boost::context::fiber resumer_;
};

}  // namespace tandem::model
