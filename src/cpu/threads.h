#pragma once

#include <cstdint>
#include <type_traits>

// The CPU backend's only contact with OpenMP.
namespace tandem {

// The most threads of one call. HAZARD: an OpenMP runtime that cannot create a thread ends the process, so a number
// that no system can serve must not reach it. A constant, so that the workspace and the run always agree.
constexpr int kMaxThreads = 256;

// How many threads a call that asks for `requested` gets, at most kMaxThreads: 0 means OpenMP's default. 1 in a forked
// child: OpenMP runtimes do not survive fork(), and a child that entered a parallel region would wait for threads that
// it does not have.
int resolve_num_threads(int requested);

// Calls body(context, index, thread) once for each index in [0, count), thread being in [0, num_threads). Indices are
// handed out in ascending order to whichever thread is free. With one thread the caller's runs them, outside OpenMP.
void run_parallel(int num_threads, int64_t count, void (*body)(void* context, int64_t index, int thread),
                  void* context);

template <typename Body>
void parallel_for(int num_threads, int64_t count, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  run_parallel(
      num_threads, count,
      [](void* context, int64_t index, int thread) { (*static_cast<Callable*>(context))(index, thread); }, &body);
}

}  // namespace tandem
