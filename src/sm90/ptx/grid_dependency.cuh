#pragma once

#include "sm90/ptx/device.cuh"

// Programmatic dependent launch: a grid launched with that attribute may begin while the grid before it in the stream
// still runs. PTX: Parallel Synchronization and
// Communication Instructions: griddepcontrol (7.8).
namespace tandem::sm90::ptx {

// griddepcontrol.launch_dependents: as far as this block is concerned, the dependent grid may begin. A hint; it says
// nothing about memory. Any thread.
TANDEM_DEVICE void launch_dependent_grid() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// griddepcontrol.wait: until the grid this one depends on has ended and its writes are visible. Each thread that reads
// them calls it itself, or is ordered after one that has. Returns at once in an ordinary launch.
TANDEM_DEVICE void wait_for_previous_grid() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace tandem::sm90::ptx
