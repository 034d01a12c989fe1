"""Causal grouped-query attention on NumPy arrays, and its gradients."""

import numpy as np

import tandem

rng = np.random.default_rng(0)
batch, seqlen, nheads_q, nheads_k, headdim = 2, 128, 8, 2, 64
q = rng.standard_normal((batch, seqlen, nheads_q, headdim), dtype=np.float32)
k = rng.standard_normal((batch, seqlen, nheads_k, headdim), dtype=np.float32)
v = rng.standard_normal((batch, seqlen, nheads_k, headdim), dtype=np.float32)

out, lse = tandem.attention(q, k, v, causal=True, return_lse=True)
dout = np.ones_like(out)
dq, dk, dv = tandem.attention_backward(dout, q, k, v, out, lse, causal=True)

print(f"tandem {tandem.__version__} on the backend {tandem.info()['default']!r}")
print(f"out {out.shape}, lse {lse.shape}, dq {dq.shape}, dk {dk.shape}, dv {dv.shape}")
print(f"the first row sees one key, so it is that key's value: {np.array_equal(out[:, 0, :4], v[:, 0, [0] * 4])}")
