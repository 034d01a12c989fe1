#pragma once

namespace tandem::model {

// What launch bounds of so many threads and one block leave each thread: 64 K registers, in units of 8.
int registers_at_launch(int threads);

}  // namespace tandem::model
