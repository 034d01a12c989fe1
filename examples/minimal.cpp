// Causal attention in C++: q is 0, so every row averages the values it sees, and row i gets the mean of 0, 1, ... i.
#include <cmath>
#include <cstdio>
#include <tandem/tandem.hpp>
#include <vector>

int main() {
  constexpr int64_t batch = 1, seqlen = 8, nheads = 2, headdim = 16;
  std::vector<float> q(batch * seqlen * nheads * headdim, 0.0f), k(q.size(), 1.0f), v(q.size()), out(q.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (nheads * headdim));  // the row's number

  try {
    tandem::ForwardParams params;
    params.q = tandem::view(q.data(), {batch, seqlen, nheads, headdim});
    params.k = tandem::view(k.data(), {batch, seqlen, nheads, headdim});
    params.v = tandem::view(v.data(), {batch, seqlen, nheads, headdim});
    params.out = tandem::view(out.data(), {batch, seqlen, nheads, headdim});
    params.mask.causal = 1;

    tandem::HostWorkspace workspace;
    tandem::run(params, workspace);
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "%s: %s\n", tandem_status_name(error.code()), error.what());
    return 1;
  }
  std::printf("last row = %.6f; the mean of 0 to 7 is 3.5\n", out.back());
  return std::fabs(out.back() - 3.5f) < 1e-5f ? 0 : 1;
}
