"""tandem.torch on a Hopper GPU, against attention written out in float64 there."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_definition as definition  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402

pytestmark = pytest.mark.cuda

DEVICE = "cuda"
DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def inputs(dtype: torch.dtype = torch.bfloat16, **sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = {"rows": 150, "keys": 333, "headdim": 64, "headdim_v": 64, **sizes}
    return tuple(t.to(DEVICE) for t in definition.inputs(**shape, dtype=dtype, requires_grad=False))


def plain(q: Tensor, k: Tensor, v: Tensor, see: Tensor, **options: Any) -> Tensor:
    """Attention with scores, weights and result rounded to the type of q."""
    group = q.shape[2] // k.shape[2]
    scale = options.get("softmax_scale")
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(group, 2))
    scores = (scores * (q.shape[-1] ** -0.5 if scale is None else scale)).to(q.dtype)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~see, -math.inf)
    if (sink := options.get("sink")) is not None:
        column = sink.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.float().softmax(-1).nan_to_num(0).to(q.dtype)[..., : k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(group, 2))


def assert_right(got: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, see: Tensor, **options: Any) -> None:
    """Contract 16, and rows that see nothing exactly."""
    see = see.to(DEVICE)
    right, lse = definition.attention(q, k, v.double(), see, **options)
    rough = plain(q, k, v, see, **options).double()
    allowed = 2 * (rough - right).abs().max() + 2 * torch.finfo(q.dtype).eps * right.abs().max()
    assert got[0].dtype == q.dtype
    assert (got[0].double() - right).abs().max() <= allowed
    infinite = lse == -math.inf
    assert torch.equal(got[1] == -math.inf, infinite)
    error = ((got[1].double() - lse).abs() / lse.abs().clamp(min=1)).masked_fill(infinite, 0)
    assert error.max() <= 1e-5
    assert not got[0].transpose(1, 2)[infinite].any()


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
    q, k, v = inputs(dtype, rows=rows)
    got = tt.attention(q, k, v, **MASKS[mask], return_lse=True)
    assert_right(got, q, k, v, definition.visible(rows, 333, **MASKS[mask]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("headdim", "headdim_v"), [(8, 8), (64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (40, 112)]
)
def test_headdims(headdim: int, headdim_v: int, dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype, headdim=headdim, headdim_v=headdim_v)
    got = tt.attention(q, k, v, causal=True, return_lse=True)
    assert_right(got, q, k, v, definition.visible(150, 333, causal=True))


@pytest.mark.parametrize(("headdim", "headdim_v"), [(59, 13), (64, 13), (1, 1), (129, 64)])
def test_C83_headdims_that_are_padded_keep_their_scale(headdim: int, headdim_v: int) -> None:
    q, k, v = inputs(headdim=headdim, headdim_v=headdim_v)
    got = tt.attention(q, k, v, return_lse=True)
    assert got[0].shape[-1] == headdim_v
    assert_right(got, q, k, v, definition.visible(150, 333))


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (6, 1), (9, 3)])
def test_grouped_heads(heads: int, kv_heads: int) -> None:
    q, k, v = inputs(heads=heads, kv_heads=kv_heads, headdim=128, headdim_v=128)
    got = tt.attention(q, k, v, causal=True, return_lse=True)
    assert_right(got, q, k, v, definition.visible(150, 333, causal=True))


@pytest.mark.parametrize(
    "options", [{"softmax_scale": 0.3}, {"softmax_scale": -0.2}, {"softmax_scale": 0.0}, {"softcap": 2.0}]
)
@pytest.mark.parametrize("with_sink", [False, True])
def test_scale_softcap_and_sink(options: dict[str, Any], with_sink: bool) -> None:
    q, k, v = inputs()
    if with_sink:
        options = {**options, "sink": torch.randn(4, device=DEVICE)}
    got = tt.attention(q, k, v, causal=True, return_lse=True, **options)
    assert_right(got, q, k, v, definition.visible(150, 333, causal=True), **options)


def test_row_intervals_and_used_lengths() -> None:
    q, k, v = inputs()
    lo = torch.randint(-5, 200, (2, 1, 150), dtype=torch.int32, device=DEVICE)
    hi = torch.randint(100, 340, (1, 4, 150), dtype=torch.int32, device=DEVICE)
    used_q = torch.tensor([150, 70], dtype=torch.int32, device=DEVICE)
    used_k = torch.tensor([200, 333], dtype=torch.int32, device=DEVICE)
    k[0, 200:], v[0, 200:] = math.nan, math.nan
    got = tt.attention(q, k, v, lo=lo, hi=hi, seqused_q=used_q, seqused_k=used_k, return_lse=True)
    key, row = torch.arange(333, device=DEVICE), torch.arange(150, device=DEVICE)
    see = (key >= lo[..., None]) & (key < hi[..., None])
    see = see & (key < used_k[:, None, None, None]) & (row[:, None] < used_q[:, None, None, None])
    clean_k, clean_v = k.nan_to_num(0), v.nan_to_num(0)
    assert_right(got, q, clean_k, clean_v, see)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"rows": 0}, {"keys": 0}])
def test_C09_C10_empty(sizes: dict[str, int]) -> None:
    q, k, v = inputs(**sizes)
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full_like(lse, -math.inf))


# ------------------------------------------------------------------------------------------------------------- packed


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_varlen_equals_its_sequences(dtype: torch.dtype) -> None:
    """Rows without keys, keys without rows, and rows behind the last offset."""
    lengths_q, lengths_k = (130, 0, 257, 1, 64), (200, 33, 0, 400, 64)
    q, k, v = (t[0] for t in inputs(dtype, batch=1, rows=sum(lengths_q) + 5, keys=sum(lengths_k) + 3))
    cu_q, cu_k = offsets(*lengths_q), offsets(*lengths_k)
    out, lse = tt.attention_varlen(q, k, v, cu_q, cu_k, causal=True, return_lse=True)
    for b, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        if rows == 0:
            continue
        of_q, of_k = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = out[None, of_q], lse[None, :, of_q]
        assert_right(one, q[None, of_q], k[None, of_k], v[None, of_k], definition.visible(rows, keys, causal=True))
    assert torch.equal(out[-5:], torch.zeros_like(out[-5:]))
    assert torch.equal(lse[:, -5:], torch.full_like(lse[:, -5:], -math.inf))


def test_C20_gaps_count_for_nothing() -> None:
    q, k, v = (t[0] for t in inputs(batch=1, rows=300, keys=300))
    used = torch.tensor([100, 3, 61], dtype=torch.int32, device=DEVICE)
    cu = offsets(120, 40, 140)
    kept = torch.cat([torch.arange(start, start + n) for start, n in ((0, 100), (120, 3), (160, 61))]).to(DEVICE)
    gapped = tt.attention_varlen(q, k, v, cu, cu, seqused_q=used, seqused_k=used, causal=True)
    tight_cu = offsets(100, 3, 61)
    tight = tt.attention_varlen(q[kept], k[kept], v[kept], tight_cu, tight_cu, causal=True)
    assert torch.equal(gapped[kept], tight)
    assert torch.count_nonzero(gapped) == torch.count_nonzero(tight)


def test_merge_of_parts() -> None:
    q, k, v = inputs()
    parts = [tt.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 100), slice(100, 333))]
    out, lse = tt.merge([part[0] for part in parts], [part[1] for part in parts])
    right, right_lse = definition.attention(q, k, v.double(), torch.ones(150, 333, dtype=torch.bool, device=DEVICE))
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-5, atol=1e-5)
    # The parts and the result are rounded to bf16.
    torch.testing.assert_close(out.double(), right, rtol=0, atol=3 * 2**-8 * right.abs().max().item())


# ------------------------------------------------------------------------------------------------------------ strides


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x(2, 60, 3, 4, 64).unbind(2), id="C48_slices_of_one_tensor"),
        pytest.param(lambda x: tuple(x(2, 4, 60, 64).transpose(1, 2) for _ in range(3)), id="C51_transposed"),
        pytest.param(lambda x: tuple(x(2, 60, 64, 4).mT for _ in range(3)), id="C53_last_axis"),
        pytest.param(lambda x: tuple(x(2, 60, 4, 65)[..., 1:] for _ in range(3)), id="C50_odd_base_and_rows"),
        pytest.param(lambda x: tuple(x(1, 1, 4, 64).expand(2, 60, 4, 64) for _ in range(3)), id="expanded"),
        pytest.param(lambda x: tuple(x(2, 60, 1, 64).expand(2, 60, 4, 64) for _ in range(3)), id="expanded_heads"),
    ],
)
def test_strides_change_no_bit(view: Any) -> None:
    """What the copy engine cannot address is copied."""
    q, k, v = view(lambda *shape: torch.randn(shape, dtype=torch.bfloat16, device=DEVICE))
    got = tt.attention(q, k, v, causal=True, return_lse=True)
    right = tt.attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True, return_lse=True)
    definition.assert_same_bits(got, right)


# ------------------------------------------------------------------------------------------- streams, graphs, devices


def test_runs_on_the_current_stream() -> None:
    """The inputs are written late on a side stream: a kernel on any other stream would read what was there before."""
    q, k, v = inputs()
    right = tt.attention(2 * q, k, v, causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        q.mul_(2)
        out = tt.attention(q, k, v, causal=True)
    stream.synchronize()
    assert torch.equal(out, right)


def test_never_waits_for_the_gpu() -> None:
    q, k, v = inputs()
    tt.attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    tt.attention(q, k, v)
    assert not torch.cuda.current_stream().query()  # still asleep, so nobody has waited
    torch.cuda.synchronize()


def test_graph_replays_with_other_contents() -> None:
    q, k, v = (t[0] for t in inputs(batch=1, rows=300, keys=300))
    cu = offsets(100, 200)
    tt.attention_varlen(q, k, v, cu, cu, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = tt.attention_varlen(q, k, v, cu, cu, causal=True, return_lse=True)
    for lengths in ((100, 200), (300, 0), (17, 33)):
        q.normal_()
        cu.copy_(offsets(*lengths))
        out.fill_(math.nan)
        graph.replay()
        right = tt.attention_varlen(q, k, v, cu, cu, causal=True, return_lse=True)
        definition.assert_same_bits((out, lse), right)


def test_a_device_that_is_not_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    q, k, v = (t.to("cuda:1") for t in inputs())
    got = tt.attention(q, k, v, causal=True, return_lse=True)
    assert torch.cuda.current_device() == 0
    assert got[0].device == q.device
    right = tt.attention(q.to("cuda:0"), k.to("cuda:0"), v.to("cuda:0"), causal=True, return_lse=True)
    definition.assert_same_bits(tuple(t.to("cuda:0") for t in got), right)
    with pytest.raises(tandem.InvalidArgumentError, match="k is on cuda:0, but q on cuda:1"):
        tt.attention(q, k.to("cuda:0"), v)


def test_same_bits_on_every_run() -> None:
    q, k, v = inputs(rows=1000, keys=1000)
    first = tt.attention(q, k, v, causal=True, return_lse=True)
    for _ in range(20):
        definition.assert_same_bits(tt.attention(q, k, v, causal=True, return_lse=True), first)


# ---------------------------------------------------------------------------------------------------- torch's machinery


def test_compiled_in_one_graph() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q, k, v, causal=True, window=(q.shape[1] // 2, -1)) * 2.0

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for rows in (128, 196, 257):
        q, k, v = inputs(rows=rows, keys=rows)
        assert torch.equal(compiled(q, k, v), function(q, k, v))
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_inductor_with_graphs() -> None:
    """mode="reduce-overhead" captures what it compiles in CUDA graphs."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tt.attention(q.sin(), k, v, causal=True).transpose(1, 2) + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    q, k, v = inputs()
    for _ in range(4):  # warm up, capture, replay
        torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


def test_opcheck() -> None:
    q, k, v = inputs(rows=20, keys=20)
    options: dict[str, Any] = {
        "causal": True, "top_left": False, "window": None, "attention_chunk": 0, "softmax_scale": None, "softcap": 0.0,
        "deterministic": False, "checked": False, "backend": 0, "num_threads": 0, "sm_margin": 0, "needs_grad": False,
    }  # fmt: skip
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    op = torch.ops.tandem.attention.default
    torch.library.opcheck(op, (q, k, v, *[None] * 5), options, test_utils=tests)


def test_autocast_casts_q_k_and_v() -> None:
    q, k, v = (t.float() for t in inputs())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = tt.attention(q, k, v)
    assert torch.equal(out, tt.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda t: t.float(), {}, "fp32"),
        (lambda t: t.to(torch.float8_e5m2), {}, "e5m2"),
        (lambda t: t, {"backend": "tiled"}, "tiled runs on TANDEM_CPU"),
        (lambda t: t, {"out_dtype": torch.float32}, "out is fp32"),
        (lambda t: t, {"sink": torch.zeros(4)}, "sink is on cpu, but q on cuda:0"),
        (lambda t: t, {"sm_margin": -1}, "sm_margin"),
    ],
)
def test_refusals_in_words(change: Any, options: dict[str, Any], words: str) -> None:
    q, k, v = (change(t) for t in inputs())
    with pytest.raises(tandem.TandemError, match=words):
        tt.attention(q, k, v, **options)


def test_C90_checked_mode_finds_wrong_offsets() -> None:
    q, k, v = (t[0] for t in inputs(batch=1, rows=100, keys=100))
    cu = offsets(50, 70)
    with pytest.raises(tandem.InvalidArgumentError, match=r"cu_seqlens_q\[2\] is 120"):
        tt.attention_varlen(q, k, v, cu, cu, checked=True)
    assert tt.attention_varlen(q, k, v, cu, cu).isfinite().all()  # clamped otherwise
