"""tandem.torch: what it refuses, and how it works with the rest of torch."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_definition import assert_same_bits, inputs  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402
from tandem.torch import _run  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


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
        with pytest.raises(tandem.UnsupportedError, match="forward-mode"):
            tt.merge(dual[None], torch.zeros(1, 2, 4, 5, dtype=torch.float64))
    for transform in (torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
        with pytest.raises(tandem.UnsupportedError, match=r"torch\.func"):
            transform(lambda x: tt.attention(x, k, v).sum())(q)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alignment": "left"}, "alignment is 'left'"),
        ({"backend": "cudnn"}, "backend is 'cudnn'.*'auto'.*'tiled'"),
        ({"backend": "sm90"}, "sm90"),
        ({"window": (-1, -3)}, "window"),
        ({"out_dtype": torch.float32}, r"out\.dtype is fp32 but q\.dtype is fp64"),
        ({"lo": torch.zeros(2, 4, 5, dtype=torch.int64)}, "lo has dtype torch.int64"),
    ],
)
def test_refusals_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tandem.TandemError, match=words):
        tt.attention(*inputs(), **options)


def test_C94_unknown_options_are_errors() -> None:
    with pytest.raises(TypeError, match="dropout_p"):
        tt.attention(*inputs(), dropout_p=0.0)


@pytest.mark.parametrize("window", [None, 4, (1, 2, 3)])
def test_a_window_is_a_pair(window: Any) -> None:
    with pytest.raises(TypeError, match="window must be a"):
        tt.attention(*inputs(), window=window)


@pytest.mark.parametrize("name", ["q", "k", "seqused_k"])
def test_what_is_no_tensor_is_named(name: str) -> None:
    tensors: dict[str, Any] = dict(zip("qkv", inputs(), strict=True))
    with pytest.raises(TypeError, match=f"{name} must be a torch.Tensor, not list"):
        tt.attention(**{**tensors, name: [3, 4]})


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("axes", [0, 1, 2, 3, 5])
def test_a_wrong_number_of_axes_is_named(name: str, axes: int) -> None:
    tensors = dict(zip("qkv", inputs(), strict=True))
    with pytest.raises(tandem.InvalidArgumentError, match=rf"{name} has shape \(.*it needs 4 axes \(batch, seqlen"):
        tt.attention(**{**tensors, name: torch.zeros((2,) * axes, dtype=torch.float64)})


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("axes", [0, 1, 2, 4])
def test_a_wrong_number_of_packed_axes_is_named(name: str, axes: int) -> None:
    tensors = {each: torch.zeros(2, 2, 2) for each in "qkv"}
    tensors[name] = torch.zeros((2,) * axes)
    cu_seqlens = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(
        tandem.InvalidArgumentError, match=rf"{name} has shape \(.*it needs 3 axes \(total rows, nheads"
    ):
        tt.attention_varlen(**tensors, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)


def test_out_dtype_is_a_torch_dtype() -> None:
    with pytest.raises(TypeError, match=r"out_dtype must be a torch\.dtype or None, not str"):
        tt.attention(*inputs(), out_dtype="float32")


def test_results_of_fp8_are_bf16_or_of_out_dtype() -> None:
    q, k, v = (t.detach().to(torch.float8_e4m3fn).to("meta") for t in inputs())
    assert tt.attention(q, k, v).dtype == torch.bfloat16
    assert tt.attention(q, k, v, out_dtype=torch.float32).dtype == torch.float32


def test_backend_auto_is_the_default() -> None:
    q, k, v = inputs()
    assert torch.equal(tt.attention(q, k, v, backend="auto"), tt.attention(q, k, v))


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


class _Ops(TorchDispatchMode):
    """Notes the ops that torch's dispatcher brings to the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_whoever_watches_torchs_dispatcher_sees_the_op() -> None:
    """Eager calls that nobody watches take a shorter way; the bits are the same."""
    q, k, v = (t.detach() for t in inputs())
    out = tt.attention(q, k, v)
    with _Ops() as mode:
        assert torch.equal(tt.attention(q, k, v), out)
    assert "tandem::attention" in mode.names
    with torch.profiler.profile() as profile:
        tt.attention(q, k, v)
    assert any(event.key == "tandem::attention" for event in profile.key_averages())
    traced = torch.jit.trace(lambda *tensors: tt.attention(*tensors), (q, k, v))
    assert torch.equal(traced(k[:, :5], k, v), tt.attention(k[:, :5], k, v))


def test_negation_that_torch_has_only_noted() -> None:
    q, k, v = (t.detach() for t in inputs())
    negated = torch.complex(v, v).conj().imag
    assert negated.is_neg()
    assert torch.equal(tt.attention(q, k, negated), tt.attention(q, k, -v))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_grad_modes_change_no_bit(mode: Any) -> None:
    q, k, v = inputs()
    with mode():
        out = tt.attention(q, k, v)
    assert out.requires_grad == (mode is torch.enable_grad)
    assert torch.equal(out, tt.attention(q.detach(), k.detach(), v.detach()))


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


class _CudaLibrary:
    """Stands in for tandem._core built with CUDA: notes the arguments of its calls."""

    CUDA = 1

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.prepared: list[tuple[int, int]] = []

    def prepare(self, device: tuple[int, int]) -> None:
        self.prepared.append(device)

    def forward_workspace(self, **arguments: Any) -> tuple[int, int]:
        self.calls["forward_workspace"] = arguments
        return 4096, 256

    def forward(self, **arguments: Any) -> None:
        self.calls["forward"] = arguments


def test_cuda_calls_run_on_torchs_stream_with_torchs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    library, scratch, asked = _CudaLibrary(), torch.zeros(4096, dtype=torch.uint8), []
    monkeypatch.setattr(_run, "_core", library)
    monkeypatch.setattr(_run, "view", lambda name, tensor: name)
    monkeypatch.setattr(_run, "_prepare", cache(_run._prepare.__wrapped__))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", {1: 1234}.__getitem__, raising=False)
    monkeypatch.setattr(torch, "empty", lambda *size, **options: asked.append((size, options)) or scratch)
    device = torch.device("cuda", 1)
    for _ in range(2):
        _run.run("forward", device, {"q": scratch, "sink": None}, {"causal": True, "num_threads": 0})
    assert library.prepared == [(1, 1)]
    common = {"q": "q", "causal": True, "num_threads": 0, "device": (1, 1), "stream": 1234}
    assert library.calls["forward_workspace"] == common
    assert library.calls["forward"] == {**common, "workspace": scratch.data_ptr(), "workspace_bytes": 4096}
    assert asked == [((4096,), {"dtype": torch.uint8, "device": device})] * 2


def test_what_a_gpu_kernel_reads_in_place() -> None:
    aligned = torch.zeros(2, 6, 4, 64, dtype=torch.bfloat16)
    assert _run._aligned_for_tma(aligned)
    assert _run._aligned_for_tma(aligned.transpose(1, 2))
    assert not _run._aligned_for_tma(aligned.flatten()[1:513].view(1, 2, 4, 64))  # base off by 2 bytes
    rows_of_130_bytes = torch.zeros(2, 6, 4, 65, dtype=torch.bfloat16)[..., :64]
    assert not _run._aligned_for_tma(rows_of_130_bytes)
    assert _run._aligned_for_tma(aligned[:, :1].as_strided((2, 1, 4, 64), (1536, 3, 64, 1)))  # an axis of size 1
    assert not _run._aligned_for_tma(aligned[:, :, :1].expand(2, 6, 4, 64))  # a stride of 0
