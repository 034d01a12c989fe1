"""tandem.torch under torch.compile, and the ops under torch.library.opcheck."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tandem import torch as tt  # noqa: E402

OPTIONS: dict[str, Any] = {
    "causal": True,
    "top_left": False,
    "window": [3, 0],
    "attention_chunk": 0,
    "softmax_scale": None,
    "softcap": 0.0,
    "deterministic": True,
    "checked": False,
    "backend": 0,
    "num_threads": 0,
    "sm_margin": 0,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def inputs(rows: int, heads: int = 2, headdim: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, rows, heads, headdim, dtype=dtype, requires_grad=True) for _ in range(3))


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def results(function: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    out = function(*tensors)
    differentiable = [t for t in tensors if t.requires_grad]
    return out, *torch.autograd.grad(out.square().sum(), differentiable)


def assert_same_bits(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


# ------------------------------------------------------------------------------------------------------------- opcheck


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded", "last_axis"])
@pytest.mark.parametrize("with_others", [False, True])
def test_C95_opcheck(layout: str, with_others: bool) -> None:
    q, k, v = (
        {
            "contiguous": lambda: torch.randn(2, 5, 2, 8),
            "transposed": lambda: torch.randn(2, 2, 5, 8).transpose(1, 2),
            "expanded": lambda: torch.randn(2, 5, 1, 8).expand(2, 5, 2, 8),
            "last_axis": lambda: torch.randn(2, 5, 8, 2).mT,
        }[layout]().requires_grad_()
        for _ in range(3)
    )
    others: list[Tensor | None] = [None] * 5
    if with_others:
        sink = torch.randn(2, requires_grad=True)
        lo, hi = torch.zeros(2, 1, 5, dtype=torch.int32), torch.full((1, 2, 5), 4, dtype=torch.int32)
        used = torch.tensor([3, 5], dtype=torch.int32)
        others = [sink, lo, hi, used, used]
    op = torch.ops.tandem.attention.default
    torch.library.opcheck(op, (q, k, v, *others), {**OPTIONS, "needs_grad": True})
    out, lse = (t.detach() for t in op(q, k, v, *others, **OPTIONS, needs_grad=True))
    tensors = [t.detach() if t is not None else None for t in (q, k, v, *others)]
    backward = torch.ops.tandem.attention_backward.default
    torch.library.opcheck(backward, (torch.randn_like(out), torch.randn_like(lse), out, lse, *tensors), OPTIONS)


def test_C95_opcheck_varlen() -> None:
    q, k, v = (torch.randn(9, 2, 8, requires_grad=True) for _ in range(3))
    cu = offsets(4, 5)
    options = {**OPTIONS, "max_seqlen_q": 5, "max_seqlen_k": 5}
    op = torch.ops.tandem.attention_varlen.default
    torch.library.opcheck(op, (q, k, v, *[None] * 5, cu, cu), {**options, "needs_grad": True})
    out, lse = (t.detach() for t in op(q, k, v, *[None] * 5, cu, cu, **options, needs_grad=True))
    tensors = (torch.randn_like(out), None, out, lse, *(t.detach() for t in (q, k, v)), *[None] * 5, cu, cu)
    torch.library.opcheck(torch.ops.tandem.attention_varlen_backward.default, tensors, options)


@pytest.mark.parametrize("packed", [False, True])
def test_C95_opcheck_out_dtype(packed: bool) -> None:
    """16-bit inputs, results and their gradients in fp32."""
    shape = (9, 2, 8) if packed else (2, 5, 2, 8)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    others = [*[None] * 5, *([offsets(4, 5)] * 2 if packed else [])]
    options = {**OPTIONS, **({"max_seqlen_q": 5, "max_seqlen_k": 5} if packed else {})}
    name = "attention_varlen" if packed else "attention"
    op, backward = (getattr(torch.ops.tandem, each).default for each in (name, f"{name}_backward"))
    # rtol: eager and compiled gradients are rounded to bf16
    torch.library.opcheck(
        op, (q, k, v, *others), {**options, "needs_grad": True, "out_dtype": torch.float32}, rtol=1e-2, atol=1e-2
    )
    out, lse = (t.detach() for t in op(q, k, v, *others, **options, needs_grad=True, out_dtype=torch.float32))
    assert out.dtype == torch.float32
    tensors = (torch.randn_like(out), None, out, lse, *(t.detach() for t in (q, k, v)), *others)
    torch.library.opcheck(backward, tensors, options)


def test_C95_opcheck_merge() -> None:
    parts = torch.randn(3, 2, 5, 2, 8, requires_grad=True), torch.randn(3, 2, 2, 5, requires_grad=True)
    for sink in (None, torch.randn(2, requires_grad=True)):
        torch.library.opcheck(torch.ops.tandem.merge.default, (*parts, sink), {"backend": 0, "num_threads": 0})


# ------------------------------------------------------------------------------------------------------------- compile


def test_C95_dynamic_shapes_in_one_graph() -> None:
    """One compilation serves every length, forward and backward, and gives the bits of eager mode."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q, k, v, causal=True, window=(q.shape[1] // 2, -1), deterministic=True) * 2.0

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for rows in (128, 196, 257):
        tensors = inputs(rows)
        assert_same_bits(results(compiled, *tensors), results(function, *tensors))
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_C95_dynamic_shapes_of_varlen_in_one_graph() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        out, lse = tt.attention_varlen(
            q, k, v, cu, cu, causal=True, max_seqlen_q=cu.diff().max(), deterministic=True, return_lse=True
        )
        return out + lse.mT[..., None]

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for lengths in ((60, 68), (100, 0, 96), (256, 1, 2, 3)):
        q, k, v = (torch.randn(sum(lengths), 2, 8, requires_grad=True) for _ in range(3))
        cu = offsets(*lengths)
        assert_same_bits(results(compiled, q, k, v, cu), results(function, q, k, v, cu))
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_C95_inductor() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q.sin(), k, v, causal=True).transpose(1, 2)

    # Neither vectors nor precompiled headers: the fewest runs of the C++ compiler, which take most of the time.
    options = {"cpp.simdlen": 1, "cpp_cache_precompile_headers": False, "compile_threads": 1}
    compiled = torch.compile(function, fullgraph=True, options=options)
    tensors = inputs(20)
    for got, right in zip(results(compiled, *tensors), results(function, *tensors), strict=True):
        torch.testing.assert_close(got, right)


def test_C97_compiled_checkpointing_changes_no_bit() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q, k, v, causal=True, deterministic=True)

    def function(*tensors: Tensor) -> Tensor:
        return checkpoint(attend, *tensors, use_reentrant=False)

    tensors = inputs(20)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert_same_bits(results(compiled, *tensors), results(attend, *tensors))


def test_compiled_autocast() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tt.attention(q, k, v)

    tensors = inputs(20)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(*tensors).dtype == torch.bfloat16
    assert_same_bits(results(compiled, *tensors), results(function, *tensors))


def test_compiled_out_dtype() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q, k, v, causal=True, deterministic=True, out_dtype=torch.float32)

    tensors = inputs(20, dtype=torch.bfloat16)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(*tensors).dtype == torch.float32
    assert_same_bits(results(compiled, *tensors), results(function, *tensors))


def test_compiled_merge() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        halves = [tt.attention(q, *kv, return_lse=True) for kv in zip(k.chunk(2, 1), v.chunk(2, 1), strict=True)]
        return tt.merge([out for out, _ in halves], [lse for _, lse in halves])[0]

    tensors = inputs(20, dtype=torch.float64)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for got, right in zip(results(compiled, *tensors), results(tt.attention, *tensors), strict=True):
        torch.testing.assert_close(got, right)


def test_export_keeps_the_op() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return tt.attention(q, k, v, causal=True)

    tensors = tuple(t.detach() for t in inputs(20))
    program = torch.export.export(Attend(), tensors)
    assert any(node.target is torch.ops.tandem.attention.default for node in program.graph.nodes)
    assert torch.equal(program.module()(*tensors), Attend()(*tensors))
