#pragma once

#include <exception>
#include <new>

#include "api/text.h"
#include "core/status.h"

namespace tandem {

// The calling thread's last-error text. Neither function throws.
const char* last_error() noexcept;
tandem_status set_last_error(Status status) noexcept;  // takes the status's text; an ok status clears it
tandem_status set_out_of_memory() noexcept;            // needs no memory itself

// No exception crosses the C border: runs `body`, which returns a Status, and leaves its words for tandem_last_error.
template <class Body>
tandem_status fenced(Body body) noexcept {
  try {
    try {
      return set_last_error(body());
    } catch (const std::bad_alloc&) {
      return set_out_of_memory();
    } catch (const std::exception& error) {
      return set_last_error({TANDEM_INTERNAL_ERROR, concat("internal error, please report it: ", error.what())});
    } catch (...) {
      return set_last_error({TANDEM_INTERNAL_ERROR, "internal error, please report it: unknown exception"});
    }
  } catch (...) {  // no memory for the words
    return set_out_of_memory();
  }
}

}  // namespace tandem
