#pragma once

#include "engine/machine.h"

namespace tandem::model {

// The calling thread has returned from the kernel: nothing of its own may be under way.
void thread_exit(Machine& machine, Thread& thread);

}  // namespace tandem::model
