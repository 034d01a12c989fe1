#pragma once

#include "fill.h"

namespace tandem::gpu_test {

// Fills dout and dlse. Guards and rows that belong to no sequence are poisoned, and so are dlse of rows whose LSE is
// not finite and, without a sink, dout of rows that see no key: nothing depends on those [5, 6].
void fill_gradient_inputs(const DeviceView& view, const Fill& fill);

// NaN where O and LSE belong to no sequence, whatever the forward has written there.
void poison_outside_results(const DeviceView& view);

// Rows of heads whose dQ, and keys of heads whose dK or dV differ in any bit, and heads whose dsink does; but for what
// belongs to wild sequences.
int64_t count_different_gradients(const DeviceView& view, const DeviceView& other, const Fill& fill);

}  // namespace tandem::gpu_test
