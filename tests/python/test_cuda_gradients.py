"""Gradients through tandem.torch on a Hopper GPU, against those of attention written out in float64 there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_definition as definition  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402

pytestmark = pytest.mark.cuda

DEVICE = "cuda"
DTYPES = (torch.bfloat16, torch.float16)
HEADDIMS = [(8, 8), (64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (40, 112)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def inputs(dtype: torch.dtype = torch.bfloat16, **sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = {"rows": 150, "keys": 333, "headdim": 64, "headdim_v": 64, **sizes}
    made = definition.inputs(**shape, dtype=dtype, requires_grad=False)
    return tuple(t.to(DEVICE).requires_grad_() for t in made)


def skip_if_refused(*headdims: int, dtype: torch.dtype = torch.bfloat16, **options: Any) -> None:
    """What the backend cannot differentiate yet; a fault if TANDEM_REQUIRE_BACKWARD (such as "64,128,deterministic" or
    "all") says that it can."""
    headdim, headdim_v = (headdims * 2)[:2] if headdims else (64, 64)
    tensors = inputs(dtype, rows=1, keys=1, headdim=headdim, headdim_v=headdim_v)
    try:
        tt.attention(*tensors, **options)
    except tandem.UnsupportedError as error:
        required = os.environ.get("TANDEM_REQUIRE_BACKWARD", "64,128").split(",")
        name = str(headdim) if headdim == headdim_v else f"{headdim}/{headdim_v}"
        mode = not options.get("deterministic") or "deterministic" in required
        if "all" in required or (name in required and mode):
            pytest.fail(str(error))
        pytest.skip(str(error))


def plain(q: Tensor, k: Tensor, v: Tensor, see: Tensor, **options: Any) -> Tensor:
    """Attention as one writes it in PyTorch, in the type of q."""
    group = q.shape[2] // k.shape[2]
    scale = options.get("softmax_scale")
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(group, 2))
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~see, -math.inf)
    if (sink := options.get("sink")) is not None:
        scores = torch.cat([scores, sink.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)], -1)
    empty = ~see.any(-1, keepdim=True) & torch.tensor(sink is None, device=q.device)
    weights = scores.masked_fill(empty, 0).float().softmax(-1).masked_fill(empty, 0).to(q.dtype)[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(group, 2))


def assert_right_gradients(
    got: tuple[Tensor, ...], tensors: tuple[Tensor, ...], dout: Tensor, see: Tensor, **options: Any
) -> None:
    """No further from the definition than twice PyTorch's own in this type, and two units in the last place."""
    see = see.to(DEVICE)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    right = definition.gradients(definition.attention(*exact, see, **options)[0], tuple(exact), (dout.double(),))
    rough_inputs = [t.detach().requires_grad_() for t in tensors]
    rough = definition.gradients(plain(*rough_inputs, see, **options), tuple(rough_inputs), (dout,))
    for name, found, value, other in zip(("dq", "dk", "dv"), got, right, rough, strict=True):
        largest = torch.finfo(dout.dtype).eps * value.abs().max()
        allowed = 2 * (other.double() - value).abs().max() + 2 * largest
        error = (found.double() - value).abs().max()
        assert found.dtype == dout.dtype
        assert error <= allowed, f"{name} is off by {error:.3g}; allowed {allowed:.3g}"


def check(
    tensors: tuple[Tensor, ...], see: Tensor, options: dict[str, Any], others: dict[str, Any] | None = None
) -> None:
    out = tt.attention(*tensors, **options)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, tensors, dout)
    assert_right_gradients(got, tensors, dout, see, **(others or {}))


# ------------------------------------------------------------------------------------------------------------- values

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal_top_left": {"causal": True, "alignment": "top-left"},
    "window": {"window": (40, 9)},
    "sliding": {"causal": True, "window": (30, 0)},
    "chunk": {"causal": True, "attention_chunk": 70},
}


@pytest.mark.parametrize("rows", [150, 400])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, dtype: torch.dtype, rows: int) -> None:
    """400 rows for 333 keys leave rows that see nothing."""
    skip_if_refused(64, dtype=dtype)
    check(inputs(dtype, rows=rows), definition.visible(rows, 333, **MASKS[mask]), MASKS[mask])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("headdim", "headdim_v"), HEADDIMS)
def test_C83_C84_headdims(headdim: int, headdim_v: int, dtype: torch.dtype) -> None:
    skip_if_refused(headdim, headdim_v, dtype=dtype)
    tensors = inputs(dtype, headdim=headdim, headdim_v=headdim_v)
    check(tensors, definition.visible(150, 333, causal=True), {"causal": True})


@pytest.mark.parametrize(("headdim", "headdim_v"), [(59, 13), (1, 1), (61, 64)])
def test_C83_headdims_that_are_padded(headdim: int, headdim_v: int) -> None:
    skip_if_refused(64)
    check(inputs(headdim=headdim, headdim_v=headdim_v), definition.visible(150, 333), {})


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (6, 1), (9, 3)])
def test_C108_grouped_heads(heads: int, kv_heads: int) -> None:
    skip_if_refused(128)
    tensors = inputs(heads=heads, kv_heads=kv_heads, headdim=128, headdim_v=128)
    check(tensors, definition.visible(150, 333, causal=True), {"causal": True})


@pytest.mark.parametrize(
    "options", [{"softmax_scale": 0.3}, {"softmax_scale": -0.2}, {"softmax_scale": 0.0}, {"softcap": 2.0}]
)
def test_scale_and_softcap(options: dict[str, Any]) -> None:
    skip_if_refused(64, **options)
    check(inputs(), definition.visible(150, 333, causal=True), {"causal": True, **options}, options)


def test_C64_C67_gradients_of_the_sink_and_through_the_lse() -> None:
    skip_if_refused(64)
    q, k, v = inputs()
    sink = torch.randn(4, device=DEVICE, requires_grad=True)
    see = definition.visible(150, 333, causal=True).to(DEVICE)
    out, lse = tt.attention(q, k, v, causal=True, sink=sink, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), (q, k, v, sink), (dout, dlse))
    exact = tuple(t.detach().double().requires_grad_() for t in (q, k, v, sink))
    results = definition.attention(*exact[:3], see, sink=exact[3])
    right = definition.gradients(results, exact, (dout.double(), dlse.double()))
    for name, found, value in zip(("dq", "dk", "dv", "dsink"), got, right, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=0, atol=0.02 * value.abs().max().item(), msg=name)
    (only_lse,) = torch.autograd.grad(tt.attention(q, k, v, return_lse=True)[1].sum(), (q,))
    assert only_lse.isfinite().all()
    assert only_lse.any()


def test_row_intervals_used_lengths_and_storage_that_no_row_sees() -> None:
    skip_if_refused(64)
    q, k, v = inputs()
    lo = torch.randint(-5, 200, (2, 1, 150), dtype=torch.int32, device=DEVICE)
    hi = torch.randint(100, 340, (1, 4, 150), dtype=torch.int32, device=DEVICE)
    used_q = torch.tensor([150, 70], dtype=torch.int32, device=DEVICE)
    used_k = torch.tensor([200, 333], dtype=torch.int32, device=DEVICE)
    key, row = torch.arange(333, device=DEVICE), torch.arange(150, device=DEVICE)
    see = (key >= lo[..., None]) & (key < hi[..., None])
    see = see & (key < used_k[:, None, None, None]) & (row[:, None] < used_q[:, None, None, None])
    clean = tuple(t.detach().clone().requires_grad_() for t in (q, k, v))
    with torch.no_grad():
        k[0, 200:], v[0, 200:], q[1, 70:] = math.nan, math.nan, math.nan
    out = tt.attention(q, k, v, lo=lo, hi=hi, seqused_q=used_q, seqused_k=used_k)
    dout = torch.randn_like(out)
    poisoned = dout.clone()
    poisoned[1, 70:] = math.nan
    got = torch.autograd.grad(out, (q, k, v), poisoned)
    dout[1, 70:] = 0
    assert_right_gradients(got, clean, dout, see)
    assert not got[0][1, 70:].any()
    assert not got[1][0, 200:].any()
    assert not got[2][0, 200:].any()


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"rows": 0}, {"keys": 0}])
def test_C09_C10_empty(sizes: dict[str, int]) -> None:
    skip_if_refused(64)
    tensors = inputs(**sizes)
    out = tt.attention(*tensors, causal=True)
    for gradient, tensor in zip(torch.autograd.grad(out.sum(), tensors), tensors, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences(dtype: torch.dtype) -> None:
    """Rows without keys, keys without rows, and rows behind the last offset."""
    skip_if_refused(64, dtype=dtype)
    lengths_q, lengths_k = (130, 0, 257, 1, 64), (200, 33, 0, 400, 64)
    tensors = tuple(
        t[0].detach().requires_grad_() for t in inputs(dtype, batch=1, rows=sum(lengths_q) + 5, keys=sum(lengths_k) + 3)
    )
    cu_q, cu_k = offsets(*lengths_q), offsets(*lengths_k)
    out = tt.attention_varlen(*tensors, cu_q, cu_k, causal=True)
    dout = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, tensors, dout)
    for b, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        of_q, of_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        if rows == 0 or keys == 0:
            assert not dq[of_q].any()
            assert not dk[of_k].any()
            assert not dv[of_k].any()
            continue
        parts = tuple(t[None, of] for t, of in zip(tensors, (of_q, of_k, of_k), strict=True))
        got = dq[None, of_q], dk[None, of_k], dv[None, of_k]
        assert_right_gradients(got, parts, dout[None, of_q], definition.visible(rows, keys, causal=True))
    assert not dq[-5:].any()
    assert not dk[-3:].any()
    assert not dv[-3:].any()


# ------------------------------------------------------------------------------------------------------ memory, streams


def close(got: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    """Of two runs: dQ's sums have no fixed order."""
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2 * torch.finfo(a.dtype).eps * b.abs().max().item())


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x(2, 60, 3, 4, 64).unbind(2), id="C48_slices_of_one_tensor"),
        pytest.param(lambda x: tuple(x(2, 4, 60, 64).transpose(1, 2) for _ in range(3)), id="C51_transposed"),
        pytest.param(lambda x: tuple(x(2, 60, 64, 4).mT for _ in range(3)), id="C53_last_axis"),
        pytest.param(lambda x: tuple(x(2, 60, 4, 65)[..., 1:] for _ in range(3)), id="C50_odd_base_and_rows"),
        pytest.param(lambda x: tuple(x(2, 60, 1, 64).expand(2, 60, 4, 64) for _ in range(3)), id="expanded_heads"),
    ],
)
def test_strides(view: Callable[..., tuple[Tensor, ...]]) -> None:
    skip_if_refused(64)
    tensors = view(lambda *shape: torch.randn(shape, dtype=torch.bfloat16, device=DEVICE))
    contiguous = tuple(t.detach().contiguous().requires_grad_() for t in tensors)
    strided = tuple(t.detach().requires_grad_() for t in tensors)
    dout = torch.randn(2, 4, 60, 64, dtype=torch.bfloat16, device=DEVICE).transpose(1, 2)  # C46
    got = torch.autograd.grad(tt.attention(*strided, causal=True), strided, dout)
    close(got, torch.autograd.grad(tt.attention(*contiguous, causal=True), contiguous, dout.contiguous()))


def test_the_gradient_of_a_sum_is_an_expanded_number() -> None:
    skip_if_refused(64)
    tensors = inputs()
    got = torch.autograd.grad(tt.attention(*tensors).sum(), tensors)
    ones = torch.ones(2, 150, 4, 64, dtype=torch.bfloat16, device=DEVICE)
    close(got, torch.autograd.grad(tt.attention(*tensors), tensors, ones))


def test_runs_on_the_stream_of_the_forward() -> None:
    skip_if_refused(64)
    tensors = inputs(rows=1000, keys=1000)
    right = torch.autograd.grad(tt.attention(*tensors, causal=True).square().sum(), tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        loss = tt.attention(*tensors, causal=True).square().sum()
    got = torch.autograd.grad(loss, tensors)
    torch.cuda.synchronize()
    close(got, right)


def test_never_waits_for_the_gpu() -> None:
    skip_if_refused(64)
    tensors = inputs()
    out = tt.attention(*tensors)
    dout = torch.randn_like(out)
    torch.autograd.grad(out, tensors, dout, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    torch.autograd.grad(out, tensors, dout)
    assert not torch.cuda.current_stream().query()  # still asleep, so nobody has waited
    torch.cuda.synchronize()


def test_C98_graph_replays_with_other_contents() -> None:
    skip_if_refused(64)
    tensors = tuple(t[0].detach().requires_grad_() for t in inputs(batch=1, rows=300, keys=300))
    cu = offsets(100, 200)
    dout = torch.randn(300, 4, 64, dtype=torch.bfloat16, device=DEVICE)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(tt.attention_varlen(*tensors, cu, cu, causal=True), tensors, dout)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for lengths in ((100, 200), (300, 0), (17, 33)):
        with torch.no_grad():
            tensors[0].normal_()
        dout.normal_()
        cu.copy_(offsets(*lengths))
        for gradient in got:
            gradient.fill_(math.nan)
        graph.replay()
        close(got, step())


# ---------------------------------------------------------------------------------------------------- torch's machinery


def layer(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return tt.attention(q.sin(), k, v * 2, causal=True, **options).transpose(1, 2).square()


def gradients(function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """By backward(): torch's reentrant checkpoints know nothing else."""
    leaves = tuple(t.detach().requires_grad_() for t in tensors)
    function(*leaves).float().sum().backward()
    return tuple(leaf.grad for leaf in leaves if leaf.grad is not None)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_C95_compiled_in_one_graph(kv_heads: int) -> None:
    skip_if_refused(64)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for rows in (128, 196, 257):
        tensors = inputs(rows=rows, keys=rows, kv_heads=kv_heads)
        close(gradients(compiled, tensors), gradients(layer, tensors))
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_C95_packed_compiled_in_one_graph() -> None:
    skip_if_refused(64)

    def packed(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        return tt.attention_varlen(q.sin(), k, v, cu, cu, causal=True).square()

    torch._dynamo.reset()
    compiled = torch.compile(packed, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths in ((128, 0, 68), (1, 256)):
        cu = offsets(*lengths)
        tensors = tuple(t[0].detach().requires_grad_() for t in inputs(batch=1, rows=sum(lengths), keys=sum(lengths)))
        got = gradients(lambda *t, cu=cu: compiled(*t, cu), tensors)
        close(got, gradients(lambda *t, cu=cu: packed(*t, cu), tensors))


def test_inductor() -> None:
    skip_if_refused(64)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    tensors = inputs(rows=333)
    for got, right in zip(gradients(compiled, tensors), gradients(layer, tensors), strict=True):
        # Inductor fuses what eager rounds.
        torch.testing.assert_close(got, right, rtol=0, atol=0.02 * right.abs().max().item())


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_C97_activation_checkpointing(kv_heads: int, use_reentrant: bool) -> None:
    skip_if_refused(64)
    tensors = inputs(rows=333, kv_heads=kv_heads)
    got = gradients(lambda *t: checkpoint(layer, *t, use_reentrant=use_reentrant), tensors)
    close(got, gradients(layer, tensors))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_C97_checkpointing_changes_no_bit_of_the_deterministic_mode(use_reentrant: bool, compiled: bool) -> None:
    skip_if_refused(64, deterministic=True)
    if compiled and use_reentrant:
        pytest.skip("torch compiles the checkpoints that are not reentrant")

    def function(*tensors: Tensor) -> Tensor:
        return layer(*tensors, deterministic=True)

    def checkpointed(*tensors: Tensor) -> Tensor:
        return checkpoint(function, *tensors, use_reentrant=use_reentrant)

    torch._dynamo.reset()
    run = torch.compile(checkpointed, backend="aot_eager", fullgraph=True) if compiled else checkpointed
    tensors = inputs(rows=1000, keys=1000)
    right = gradients(function, tensors)
    for _ in range(5):
        definition.assert_same_bits(gradients(run, tensors), right)


def test_C88_deterministic_algorithms_of_torch() -> None:
    skip_if_refused(64, deterministic=True)
    tensors = inputs(rows=2000, keys=2000)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        right = gradients(layer, tensors)
        for _ in range(20):
            definition.assert_same_bits(gradients(layer, tensors), right)
    finally:
        torch.use_deterministic_algorithms(False)


def test_C69_gradients_through_a_merge() -> None:
    skip_if_refused(64)
    q, k, v = inputs()
    parts = [tt.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 100), slice(100, 333))]
    out, _ = tt.merge([part[0] for part in parts], [part[1] for part in parts])
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    right = torch.autograd.grad(tt.attention(q, k, v), (q, k, v), dout)
    for a, b in zip(got, right, strict=True):  # the parts are rounded to bf16
        torch.testing.assert_close(a, b, rtol=0, atol=0.03 * b.abs().max().item())


def test_autocast() -> None:
    skip_if_refused(64)
    tensors = tuple(t.detach().float().requires_grad_() for t in inputs())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = tt.attention(*tensors)
    got = torch.autograd.grad(out.float().square().sum(), tensors)
    assert {gradient.dtype for gradient in got} == {torch.float32}
    halves = tuple(t.detach().bfloat16().requires_grad_() for t in tensors)
    right = torch.autograd.grad(tt.attention(*halves).float().square().sum(), halves)
    close(tuple(gradient.bfloat16() for gradient in got), right)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("headdim", "headdim_v"), HEADDIMS)
def test_what_cannot_be_differentiated_is_refused_by_the_forward(
    headdim: int, headdim_v: int, deterministic: bool
) -> None:
    tensors = inputs(headdim=headdim, headdim_v=headdim_v)
    options = {"causal": True, "deterministic": deterministic}
    try:
        out = tt.attention(*tensors, **options)
    except tandem.UnsupportedError as error:
        assert "needs_grad" in str(error) or "deterministic" in str(error)  # noqa: PT017
        with torch.no_grad():
            assert tt.attention(*tensors, **options).isfinite().all()
        return
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), tensors))


def test_C81_fp8_is_refused_at_the_call() -> None:
    q, k, v = (t.detach().to(torch.float8_e4m3fn) for t in inputs())
    q.requires_grad_()
    with pytest.raises(tandem.TandemError, match=r"fp8|e4m3"):
        tt.attention(q, k, v)
