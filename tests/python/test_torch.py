"""tandem.torch in eager mode, against attention written out in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_definition as definition  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def inputs(
    batch: int = 2,
    rows: int = 5,
    keys: int = 7,
    heads: int = 4,
    kv_heads: int = 2,
    headdim: int = 16,
    headdim_v: int = 8,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((batch, rows, heads, headdim), (batch, keys, kv_heads, headdim), (batch, keys, kv_heads, headdim_v))
    return tuple(torch.randn(shape).to(dtype).requires_grad_(requires_grad) for shape in shapes)


def gradients(results: Any, to: tuple[Tensor, ...], of: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(results, to, of, allow_unused=True, materialize_grads=True)


# ------------------------------------------------------------------------------------------------------------- values

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal_top_left": {"causal": True, "alignment": "top-left"},
    "window": {"window": (2, 1)},
    "sliding": {"causal": True, "window": (2, 0)},
    "chunk": {"causal": True, "attention_chunk": 3},
}


@pytest.mark.parametrize("rows", [5, 9])
@pytest.mark.parametrize("mask", MASKS)
def test_value_and_gradients(mask: str, rows: int, backend: str) -> None:
    """Gradients arrive through out and LSE; 9 rows for 7 keys leave rows that see nothing."""
    q, k, v = inputs(rows=rows)
    see = definition.visible(rows, 7, **MASKS[mask])
    out, lse = tt.attention(q, k, v, **MASKS[mask], return_lse=True, backend=backend)
    expected_out, expected_lse = definition.attention(q, k, v, see)
    torch.testing.assert_close(out, expected_out)
    torch.testing.assert_close(lse, expected_lse)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    finite = torch.where(expected_lse.isfinite(), dlse, 0.0)
    expected = gradients((expected_out, expected_lse), (q, k, v), (dout, finite))
    for got, right in zip(gradients((out, lse), (q, k, v), (dout, dlse)), expected, strict=True):
        torch.testing.assert_close(got, right)
    empty = ~see.any(-1)
    assert torch.equal(out[:, empty], torch.zeros_like(out[:, empty]))
    assert torch.equal(lse[..., empty], torch.full_like(lse[..., empty], -math.inf))


def test_scale_softcap_and_sink(backend: str) -> None:
    q, k, v = inputs()
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"softmax_scale": -0.7, "softcap": 3.0, "sink": sink}
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, backend=backend, **options)
    expected = definition.attention(q, k, v, definition.visible(5, 7, causal=True), **options)
    torch.testing.assert_close((out, lse), expected)
    tangents = torch.randn_like(out), torch.randn_like(lse)
    for got, right in zip(
        gradients((out, lse), (q, k, v, sink), tangents), gradients(expected, (q, k, v, sink), tangents), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_row_intervals_and_used_lengths(backend: str) -> None:
    q, k, v = inputs()
    lo = torch.randint(0, 4, (2, 1, 5), dtype=torch.int32)
    hi = torch.randint(2, 8, (1, 4, 5), dtype=torch.int32)
    used_q, used_k = torch.tensor([5, 3], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
    out = tt.attention(q, k, v, lo=lo, hi=hi, seqused_q=used_q, seqused_k=used_k, backend=backend)
    key = torch.arange(7)
    see = (key >= lo[..., None]) & (key < hi[..., None])
    see = see & (key < used_k[:, None, None, None]) & (torch.arange(5)[:, None] < used_q[:, None, None, None])
    expected, _ = definition.attention(q, k, v, see)
    torch.testing.assert_close(out, expected)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (q, k, v), (dout,)), gradients(expected, (q, k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_error_is_at_most_twice_that_of_plain_attention(dtype: torch.dtype, backend: str) -> None:
    """Contract 16, for the forward and the gradients."""
    q, k, v = inputs(rows=33, keys=40, headdim_v=16, dtype=dtype)
    out = tt.attention(q, k, v, causal=True, backend=backend)
    assert out.dtype == dtype
    dout = torch.randn_like(out)
    see = definition.visible(33, 40, causal=True)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * 16**-0.5
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~see, -math.inf).softmax(-1), v)

    def all_of(result: Tensor) -> tuple[Tensor, ...]:
        return result, *gradients(result, (q, k, v), (dout.to(result.dtype),))

    exact = all_of(definition.attention(q, k, v, see)[0])
    for got, rough, right in zip(all_of(out), all_of(plain(q, k, v)), exact, strict=True):
        allowed = 2 * (rough.double() - right).abs().max() + 2 * torch.finfo(dtype).eps * right.abs().max()
        assert (got.double() - right).abs().max() <= allowed


def test_gradcheck() -> None:
    q, k, v = inputs(batch=1, rows=3, keys=4, headdim=4, headdim_v=3)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def function(*tensors: Tensor) -> Any:
        return tt.attention(*tensors[:3], sink=tensors[3], causal=True, softcap=2.0, return_lse=True)

    assert torch.autograd.gradcheck(function, (q, k, v, sink))


def test_C67_gradient_through_lse() -> None:
    """Scores 0 and ln 3, V = [0, 4]: P = [1/4, 3/4]."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, math.log(3)], dtype=torch.float64).reshape(1, 2, 1, 1).requires_grad_()
    v = torch.tensor([0.0, 4.0], dtype=torch.float64).reshape(1, 2, 1, 1).requires_grad_()
    out, lse = tt.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(out.item(), 3.0)
    torch.testing.assert_close(lse.item(), math.log(4))
    (dk,) = torch.autograd.grad(lse, k, torch.ones_like(lse), retain_graph=True)  # q is 1 and the scale is 1: dS = dK
    torch.testing.assert_close(dk.flatten(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    dk, dv = torch.autograd.grad(out, (k, v), torch.ones_like(out))
    torch.testing.assert_close(dk.flatten(), torch.tensor([-0.75, 0.75], dtype=torch.float64))
    torch.testing.assert_close(dv.flatten(), torch.tensor([0.25, 0.75], dtype=torch.float64))


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 3, 4), (2, 0, 4), (2, 7, 0)])
def test_C09_C10_empty(batch: int, rows: int, keys: int, backend: str) -> None:
    q, k, v = inputs(batch=batch, rows=rows, keys=keys)
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, backend=backend)
    assert torch.equal(out, torch.zeros(batch, rows, 4, 8, dtype=torch.float64))
    assert torch.equal(lse, torch.full((batch, 4, rows), -math.inf, dtype=torch.float64))
    for tensor, gradient in zip((q, k, v), gradients(out, (q, k, v), (torch.ones_like(out),)), strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


# ------------------------------------------------------------------------------------------------------------ strides


def results(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, deterministic=True)
    return out, lse, *torch.autograd.grad(out, (q, k, v), dout)


def assert_same_bits(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in tensors)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: torch.randn(2, 6, 3, 4, 64).unbind(2), id="C48_slices_of_one_tensor"),
        pytest.param(lambda: tuple(torch.randn(2, 4, 6, 64).transpose(1, 2) for _ in range(3)), id="C51_transposed"),
        pytest.param(
            lambda: (torch.randn(2, 6, 4, 64), torch.randn(2, 6, 4, 64), torch.randn(2, 4, 6, 64).transpose(1, 2)),
            id="C51_only_v",
        ),
        pytest.param(lambda: tuple(torch.randn(2, 6, 64, 4).mT for _ in range(3)), id="C53_last_axis"),
        pytest.param(lambda: tuple(torch.randn(2, 6, 4, 65)[..., 1:] for _ in range(3)), id="C50_odd_base_and_rows"),
        pytest.param(lambda: tuple(torch.randn(1, 1, 4, 64).expand(2, 6, 4, 64) for _ in range(3)), id="expanded"),
    ],
)
def test_strides_change_no_bit(view: Any) -> None:
    q, k, v = (t.detach().requires_grad_() for t in view())
    dout = torch.randn(2, 6, 4, 64)
    assert_same_bits(results(q, k, v, dout), results(*contiguous(q, k, v), dout))


def test_C49_stride_of_an_axis_of_size_1() -> None:
    q, k, v = inputs(batch=1, heads=2, kv_heads=1, headdim_v=16, dtype=torch.float32)
    odd_k, odd_v = (t.detach().as_strided(t.shape, (0, 16, 2, 1)).requires_grad_() for t in (k, v))
    dout = torch.randn(1, 5, 2, 16)
    assert_same_bits(results(q, odd_k, odd_v, dout), results(q, k, v, dout))


@pytest.mark.parametrize(
    "dout",
    [
        pytest.param(lambda: torch.randn(2, 4, 32, 128).transpose(1, 2), id="C46_transposed"),
        pytest.param(lambda: torch.ones(()).expand(2, 32, 4, 128), id="of_sum"),
        pytest.param(lambda: torch.randn(32, 1, 128).expand(2, 32, 4, 128), id="expanded"),
    ],
)
def test_strides_of_dout(dout: Any) -> None:
    q, k, v = inputs(rows=32, keys=32, kv_heads=1, headdim=128, headdim_v=128, dtype=torch.float32)
    gradient = dout()
    assert_same_bits(results(q, k, v, gradient), results(q, k, v, gradient.contiguous()))


def test_expanded_inputs_get_summed_gradients() -> None:
    """One key head of storage, seen as two through expand: its gradient is the sum of both."""
    q, k, v = inputs(kv_heads=1)
    out = tt.attention(q, k.expand(2, 7, 2, 16), v.expand(2, 7, 2, 8))
    grouped = tt.attention(q, k, v)
    torch.testing.assert_close(out, grouped)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (k, v), (dout,)), gradients(grouped, (k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


def test_padding_for_gpu_kernels_changes_nothing() -> None:
    """C83: headdim 59 and 13 become multiples of 8, with the scale of 59."""
    q, k, v = inputs(headdim=59, headdim_v=13)
    options: dict[str, Any] = {"softmax_scale": None}
    padded = tt._pad_headdims(q, k, v, options)
    assert [t.shape[-1] for t in padded] == [64, 64, 16]
    out = tt.attention(*padded, **options)[..., :13]
    torch.testing.assert_close(out, tt.attention(q, k, v))
    explicit: dict[str, Any] = {"softmax_scale": 0.5}
    tt._pad_headdims(q, k, v, explicit)
    assert explicit == {"softmax_scale": 0.5}


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("name", "other"), [("k", torch.float16), ("v", torch.float32)])
def test_C92_mixed_dtypes_are_named(name: str, other: torch.dtype) -> None:
    tensors = dict(zip("qkv", inputs(dtype=torch.bfloat16), strict=True))
    tensors[name] = tensors[name].to(other)
    with pytest.raises(tandem.InvalidArgumentError, match=rf"\b{name}\b.*bf16"):
        tt.attention(**tensors)


def test_C92_dtypes_that_no_backend_has_are_named() -> None:
    q, k, v = (t.detach().to(torch.int64) for t in inputs())
    with pytest.raises(tandem.InvalidArgumentError, match=r"q has dtype torch\.int64; allowed are float64.*bfloat16"):
        tt.attention(q, k, v)


def test_C92_autocast_casts_q_k_and_v() -> None:
    q, k, v = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = tt.attention(q, k.bfloat16(), v, return_lse=True)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(out, tt.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))
    assert torch.autograd.grad(out.sum(), q)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tt.attention(*inputs(dtype=torch.float64)).dtype == torch.float64


def test_C93_devices_are_named() -> None:
    q, k, v = inputs()
    with pytest.raises(tandem.InvalidArgumentError, match="k is on meta, but q on cpu"):
        tt.attention(q, k.to("meta"), v)
    assert tt.attention(*(t.to("meta") for t in (q, k, v))).shape == (2, 5, 4, 8)


def test_C81_gradients_of_fp8_are_refused_by_the_forward() -> None:
    q, k, v = (t.detach().to(torch.float8_e4m3fn) for t in inputs())
    with pytest.raises(tandem.TandemError, match=r"fp8|e4m3"):
        tt.attention(q.requires_grad_(), k, v)


def test_second_derivative_is_refused() -> None:
    q, k, v = inputs()
    (dq,) = torch.autograd.grad(tt.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.sum().backward()


def test_forward_mode_derivatives_and_functorch_are_refused_not_wrong() -> None:
    q, k, v = (t.detach() for t in inputs())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward mode AD"):
            tt.attention(dual, k, v)
        assert torch.equal(tt.attention(q, k, v), tt.attention(q, k, v))
    for transform in (torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
        with pytest.raises(RuntimeError, match="setup_context"):
            transform(lambda x: tt.attention(x, k, v).sum())(q)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alignment": "left"}, "alignment is 'left'"),
        ({"backend": "cudnn"}, "backend is 'cudnn'.*'tiled'"),
        ({"backend": "sm90"}, "sm90"),
        ({"window": (-1, -3)}, "window"),
        ({"lo": torch.zeros(2, 4, 5, dtype=torch.int64)}, "lo has dtype torch.int64"),
    ],
)
def test_refusals_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tandem.TandemError, match=words):
        tt.attention(*inputs(), **options)


def test_C94_unknown_options_are_errors() -> None:
    with pytest.raises(TypeError, match="dropout_p"):
        tt.attention(*inputs(), dropout_p=0.0)


def test_deterministic_follows_torch() -> None:
    def asked(**options: Any) -> bool:
        arguments: dict[str, Any] = dict.fromkeys(("causal", "checked"), False)
        arguments.update(window=(-1, -1), attention_chunk=0, softmax_scale=None, softcap=0.0, alignment="bottom-right")
        arguments.update(deterministic=False, backend=None, num_threads=None, sm_margin=0)
        return tt._options(**{**arguments, **options})["deterministic"]

    assert not asked()
    assert asked(deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        assert asked()
    finally:
        torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------------------------------------------- torch's machinery


@pytest.mark.parametrize("reentrant", [True, False])
def test_C97_checkpointing_changes_no_bit(reentrant: bool) -> None:
    q, k, v = inputs(dtype=torch.float32)

    def run(*tensors: Tensor) -> Tensor:
        return tt.attention(*tensors, causal=True, deterministic=True)

    plain = torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v))
    checkpoint(run, q, k, v, use_reentrant=reentrant).square().sum().backward()
    assert_same_bits(plain, (q.grad, k.grad, v.grad))


def test_C97_saved_tensor_hooks_change_no_bit() -> None:
    q, k, v = inputs(dtype=torch.float32)
    plain = torch.autograd.grad(tt.attention(q, k, v, deterministic=True).square().sum(), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out = tt.attention(q, k, v, deterministic=True)
    assert_same_bits(plain, torch.autograd.grad(out.square().sum(), (q, k, v)))


class _Attends(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        torch.manual_seed(index)
        q, k, v = inputs(rows=40, keys=40, dtype=torch.float32, requires_grad=False)
        return tt.attention(q, k, v, causal=True)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_attention_in_a_forked_dataloader_worker() -> None:
    here = [_Attends()[index] for index in range(4)]  # the parent's threads exist before the fork
    loader = torch.utils.data.DataLoader(
        _Attends(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert_same_bits(tuple(loader), tuple(here))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("first", ["torch", "tandem"])
def test_one_openmp_runtime_whichever_is_imported_first(first: str) -> None:
    code = f"""
import {first}, tandem.torch, torch
x = torch.randn(1, 64, 4, 16)
tandem.torch.attention(x, x, x)
torch.mm(torch.randn(300, 300), torch.randn(300, 300))
with open("/proc/self/maps") as maps:
    print(*{{line.split()[-1] for line in maps if "omp" in line.rsplit("/")[-1]}}, sep="\\n")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert len(process.stdout.splitlines()) == 1, process.stdout


# ------------------------------------------------------------------------------------------------------------- packed


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def packed(total_q: int, total_k: int, heads: int = 4, kv_heads: int = 2, headdim: int = 16) -> tuple[Tensor, ...]:
    shapes = ((total_q, heads, headdim), (total_k, kv_heads, headdim), (total_k, kv_heads, headdim))
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


def test_varlen_equals_its_sequences(backend: str) -> None:
    """Rows without keys, keys without rows, and one row behind the last offset."""
    lengths_q, lengths_k = (3, 0, 5, 1), (4, 2, 0, 6)
    q, k, v = packed(10, 12)
    cu_q, cu_k = offsets(*lengths_q), offsets(*lengths_k)
    out, lse = tt.attention_varlen(q, k, v, cu_q, cu_k, causal=True, return_lse=True, backend=backend)
    expected_out, expected_lse = [], []
    for b, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        one_q, one_k, one_v = q[cu_q[b] : cu_q[b + 1]], k[cu_k[b] : cu_k[b + 1]], v[cu_k[b] : cu_k[b + 1]]
        see = definition.visible(rows, keys, causal=True)
        one_out, one_lse = definition.attention(one_q[None], one_k[None], one_v[None], see)
        expected_out.append(one_out[0])
        expected_lse.append(one_lse[0])
    expected_out.append(torch.zeros(1, 4, 16, dtype=torch.float64))
    expected_lse.append(torch.full((4, 1), -math.inf, dtype=torch.float64))
    expected = torch.cat(expected_out), torch.cat(expected_lse, 1)
    torch.testing.assert_close((out, lse), expected)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (q, k, v), (dout,)), gradients(expected[0], (q, k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


def test_C20_gaps_count_for_nothing() -> None:
    q, k, v = packed(9, 9)
    used = torch.tensor([2, 3, 1], dtype=torch.int32)
    kept = torch.tensor([0, 1, 3, 4, 5, 7])
    gapped = tt.attention_varlen(q, k, v, offsets(3, 4, 2), offsets(3, 4, 2), seqused_q=used, seqused_k=used)
    tight = tt.attention_varlen(q[kept], k[kept], v[kept], offsets(2, 3, 1), offsets(2, 3, 1))
    torch.testing.assert_close(gapped[kept], tight)
    assert torch.count_nonzero(gapped) == torch.count_nonzero(gapped[kept])
    for got, right in zip(
        gradients(gapped, (q, k, v), (torch.ones_like(gapped),)),
        gradients(tight, (q, k, v), (torch.ones_like(tight),)),
        strict=True,
    ):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("length", [5, None, torch.tensor(5)])
def test_C96_max_seqlen_may_be_a_tensor(length: Any) -> None:
    q, k, v = packed(9, 9)
    cu = offsets(4, 5)
    out = tt.attention_varlen(q, k, v, cu, cu, max_seqlen_q=length, max_seqlen_k=length)
    assert torch.equal(out, tt.attention_varlen(q, k, v, cu, cu))


def test_C90_offsets_of_another_type_are_refused() -> None:
    q, k, v = packed(9, 9)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_q has dtype"):
        tt.attention_varlen(q, k, v, offsets(4, 5).long(), offsets(4, 5))
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_k is on meta"):
        tt.attention_varlen(q, k, v, offsets(4, 5), offsets(4, 5).to("meta"))


def test_C90_wrong_offsets_are_found_in_checked_mode() -> None:
    q, k, v = packed(9, 9)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_q"):
        tt.attention_varlen(q, k, v, offsets(4, 50), offsets(4, 5), checked=True)


# -------------------------------------------------------------------------------------------------------------- merge


def test_C13_merge_of_empty_parts() -> None:
    part = torch.randn(1, 1, 1, 4)
    empty, lse = torch.full_like(part, math.nan), torch.tensor([[[1.7]]])
    out, merged = tt.merge([empty, empty], [torch.full_like(lse, -math.inf)] * 2)
    assert torch.equal(out, torch.zeros_like(part))
    assert merged.item() == -math.inf
    out, merged = tt.merge([empty, part], [torch.full_like(lse, -math.inf), lse])
    assert torch.equal(out, part)
    assert torch.equal(merged, lse)
    _, merged = tt.merge([part, part], [torch.tensor([[[1.0]]]), torch.tensor([[[2.0]]])])
    assert merged.item() == pytest.approx(2.3132617, abs=1e-6)


@pytest.mark.parametrize("with_sink", [False, True])
def test_C69_gradients_through_merge_equal_the_unsplit_ones(with_sink: bool) -> None:
    """Keys in three parts, one of them empty for the first rows."""
    q, k, v = inputs(rows=8, keys=9, headdim_v=16)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_sink else None
    whole = tt.attention(q, k, v, causal=True, sink=sink, return_lse=True)
    rows = torch.arange(8, dtype=torch.int32)
    parts = []
    for start in (0, 3, 6):
        hi = (rows + 2 - start).reshape(1, 1, 8)  # causal: row i sees the keys up to i + 1 of all 9
        one_k, one_v = k[:, start : start + 3], v[:, start : start + 3]
        parts.append(tt.attention(q, one_k, one_v, hi=hi, return_lse=True))
    merged = tt.merge([out for out, _ in parts], [lse for _, lse in parts], sink)
    torch.testing.assert_close(merged, whole)
    tangents = torch.randn_like(whole[0]), torch.randn_like(whole[1])
    to = (q, k, v) if sink is None else (q, k, v, sink)
    for got, right in zip(gradients(merged, to, tangents), gradients(whole, to, tangents), strict=True):
        torch.testing.assert_close(got, right)
