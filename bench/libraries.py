"""The implementations that bench/compare.py times. Each turns a cell's tensors into a call of no arguments.
Those of fp8 are in libraries_fp8.py.

prepare() raises Unsupported where a library has no such attention. The call returns O for the op "forward", dQ, dK and
dV for "backward", and all four for "forward_backward"; in the axes of Q, K and V.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import pathlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from cells import MASKS, WINDOW, Cell
from tandem_c import Tandem, TandemError
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
Call = Callable[[], tuple[torch.Tensor, ...]]
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Unsupported(Exception):
    pass


@dataclasses.dataclass
class Data:
    """A cell's tensors: (batch, seqlen, heads, headdim), or (rows, heads, headdim) if packed."""

    cell: Cell
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens: torch.Tensor  # int32 (batch + 1)
    lo: torch.Tensor  # int32 (1, 1, seqlen): the keys that each row sees
    hi: torch.Tensor
    dout: torch.Tensor
    bf16: Data | None = None  # of a cell in e4m3: the values before they were rounded to that

    @staticmethod
    def make(cell: Cell, device: torch.device, seed: int = 0) -> Data:
        if cell.dtype == "e4m3":
            bf16 = Data.make(dataclasses.replace(cell, dtype="bf16"), device, seed)
            rounded = {name: getattr(bf16, name).to(DTYPES["e4m3"]) for name in ("q", "k", "v")}
            return dataclasses.replace(bf16, cell=cell, bf16=bf16, **rounded)
        generator = torch.Generator(device).manual_seed(seed)

        def normal(heads: int, headdim: int) -> torch.Tensor:
            rows = (cell.batch * cell.seqlen,) if cell.packed else (cell.batch, cell.seqlen)
            shape = (*rows, heads, headdim)
            return torch.randn(shape, generator=generator, device=device, dtype=DTYPES[cell.dtype])

        intervals = torch.tensor([cell.row_interval(row) for row in range(cell.seqlen)], dtype=torch.int32)
        lo, hi = intervals.to(device).T.contiguous()[:, None, None]
        return Data(
            cell,
            normal(cell.nheads_q, cell.headdim),
            normal(cell.nheads_k, cell.headdim),
            normal(cell.nheads_k, cell.headdim_v),
            torch.arange(cell.batch + 1, dtype=torch.int32, device=device) * cell.seqlen,
            lo,
            hi,
            normal(cell.nheads_q, cell.headdim_v),
        )

    def new_out(self) -> torch.Tensor:
        dtype = torch.bfloat16 if self.cell.dtype == "e4m3" else self.q.dtype
        return self.q.new_empty((*self.q.shape[:-1], self.cell.headdim_v), dtype=dtype)

    def new_lse(self) -> torch.Tensor:
        heads, rows = self.cell.nheads_q, self.cell.seqlen
        shape = (heads, self.cell.batch * rows) if self.cell.packed else (self.cell.batch, heads, rows)
        return self.q.new_empty(shape, dtype=torch.float32)


class Library(Protocol):
    name: str
    variant: str

    def prepare(self, data: Data, op: str) -> Call: ...


class TandemC:
    """Through libtandem.so: what an inference engine would call. LSE is written."""

    name = "tandem"

    def __init__(self, path: pathlib.Path, deterministic: bool = False):
        self.tandem = Tandem(path)
        self.variant = "deterministic" if deterministic else ""

    def prepare(self, data: Data, op: str) -> Call:
        if self.variant and op == "forward":
            raise Unsupported("the forward always is deterministic")
        forward = {"q": data.q, "k": data.k, "v": data.v, "out": data.new_out(), "lse": data.new_lse()}
        run_forward = self._call("forward", forward, data)
        if op == "forward":
            return returning((forward["out"],), run_forward)
        gradients = {"dq": data.q, "dk": data.k, "dv": data.v}
        gradients = {name: torch.empty_like(tensor) for name, tensor in gradients.items()}
        run_backward = self._call("backward", forward | {"dout": data.dout} | gradients, data)
        if op == "forward_backward":
            return returning((forward["out"], *gradients.values()), run_forward, run_backward)
        run_forward()
        return returning(tuple(gradients.values()), run_backward)

    def _call(self, operation: str, tensors: dict[str, torch.Tensor], data: Data) -> Callable[[], None]:
        cell = data.cell
        lengths = {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        mask: dict[str, Any] = {"causal": int(cell.mask == "causal")}
        if cell.mask == "window":
            mask |= {"has_window": 1, "window_left": WINDOW - 1, "window_right": 0}
        elif cell.mask in ("documents", "prefix"):
            mask |= {"lo": data.lo, "hi": data.hi}
        options = {"deterministic": self.variant != ""}
        try:
            if cell.packed:
                tensors = tensors | {"cu_seqlens_q": data.cu_seqlens, "cu_seqlens_k": data.cu_seqlens}
                return self.tandem.prepared_call(f"varlen_{operation}", tensors, mask, **options, **lengths)
            return self.tandem.prepared_call(operation, tensors, mask, **options)
        except TandemError as error:
            raise Unsupported(str(error)) from error


def returning(results: tuple[torch.Tensor, ...], *runs: Callable[[], None]) -> Call:
    def call() -> tuple[torch.Tensor, ...]:
        for run in runs:
            run()
        return results

    return call


class TorchLibrary:
    """One that torch differentiates: function() gives attention as a function of q, k and v."""

    def function(self, data: Data) -> Function:
        raise NotImplementedError

    def prepare(self, data: Data, op: str) -> Call:
        function = self.function(data)
        if op == "forward":
            return lambda: (function(data.q, data.k, data.v),)
        inputs = [x.detach().requires_grad_() for x in (data.q, data.k, data.v)]
        if op == "backward":
            with torch.enable_grad():
                once = function(*inputs)
            return lambda: torch.autograd.grad(once, inputs, data.dout, retain_graph=True)

        def both() -> tuple[torch.Tensor, ...]:
            with torch.enable_grad():
                out = function(*inputs)
            return (out.detach(), *torch.autograd.grad(out, inputs, data.dout))

        return both


class TandemTorch(TorchLibrary):
    """Through the Python package, as a user of PyTorch calls it."""

    name, variant = "tandem", "tandem.torch"

    def __init__(self) -> None:
        self.module = importlib.import_module("tandem.torch")

    def function(self, data: Data) -> Function:
        cell = data.cell
        options: dict[str, Any] = {"causal": cell.mask == "causal"}
        if cell.mask == "window":
            options["window"] = (WINDOW - 1, 0)
        elif cell.mask in ("documents", "prefix"):
            options |= {"lo": data.lo, "hi": data.hi}
        offsets = [data.cu_seqlens, data.cu_seqlens] if cell.packed else []
        if cell.packed:
            options |= {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        attention = self.module.attention_varlen if cell.packed else self.module.attention
        return lambda q, k, v: attention(q, k, v, *offsets, **options)


class Sdpa(TorchLibrary):
    """torch.nn.functional.scaled_dot_product_attention, held to one backend if one is given."""

    variant = ""

    def __init__(self, name: str, backend: SDPBackend | None = None):
        self.name = name
        self.backend = backend

    def function(self, data: Data) -> Function:
        cell = data.cell
        if cell.packed or cell.mask not in MASKS:
            raise Unsupported("scaled_dot_product_attention knows dense batches, and no mask or the causal one")
        attention = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": cell.mask == "causal", "enable_gqa": cell.nheads_q != cell.nheads_k}
        backend = self.backend

        def heads_outside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options).transpose(1, 2)

        if backend is None:
            return heads_outside

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return heads_outside(q, k, v)

        return function


class TorchFlash(Sdpa):
    """FlashAttention-2 as PyTorch ships it; its windows and packed sequences by the operator under the function."""

    def __init__(self) -> None:
        super().__init__("fa2", SDPBackend.FLASH_ATTENTION)

    def function(self, data: Data) -> Function:
        cell = data.cell
        if not cell.packed and cell.mask != "window":
            return super().function(data)
        if cell.mask not in (*MASKS, "window") or cell.headdim != cell.headdim_v:
            raise Unsupported("no such mask or headdim")
        flash = torch.ops.aten._flash_attention_forward
        offsets = data.cu_seqlens if cell.packed else None
        window = {"window_size_left": WINDOW - 1, "window_size_right": 0} if cell.mask == "window" else {}

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            lengths = (offsets, offsets, cell.seqlen, cell.seqlen)
            return flash(q, k, v, *lengths, 0.0, cell.mask == "causal", False, **window)[0]

        return function


class FlashAttention3(TorchLibrary):
    """The official package, where it is installed."""

    name, variant = "fa3", ""

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn_interface")

    def function(self, data: Data) -> Function:
        cell = data.cell
        if cell.mask not in (*MASKS, "window"):
            raise Unsupported("no such mask")
        options: dict[str, Any] = {"causal": cell.mask == "causal"}
        if cell.mask == "window":
            options["window_size"] = (WINDOW - 1, 0)
        offsets = [data.cu_seqlens, data.cu_seqlens] if cell.packed else []
        if cell.packed:
            options |= {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        attention = self.module.flash_attn_varlen_func if cell.packed else self.module.flash_attn_func

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            result = attention(q, k, v, *offsets, **options)
            return result[0] if isinstance(result, tuple) else result

        return function


class CudnnGraph:
    """cuDNN by its own graph API, from the package nvidia-cudnn-frontend."""

    name, variant = "cudnn", "graph API"

    def __init__(self) -> None:
        self.cudnn = importlib.import_module("cudnn")
        self.handle = self.cudnn.create_handle()
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)

    def prepare(self, data: Data, op: str) -> Call:
        cell, cudnn = data.cell, self.cudnn
        if cell.packed or cell.mask not in MASKS or op != "forward":
            raise Unsupported("only the forward of dense batches, and no mask or the causal one, are asked of it here")
        out = data.new_out()
        stats = data.new_lse()[..., None]
        number = {"bf16": cudnn.data_type.BFLOAT16, "fp16": cudnn.data_type.HALF}[cell.dtype]
        real = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            io_data_type=number, intermediate_data_type=real, compute_data_type=real, handle=self.handle
        )
        memory = [x.transpose(1, 2) for x in (data.q, data.k, data.v)]
        inputs = [graph.tensor_like(x) for x in memory]
        result, result_stats = graph.sdpa(
            q=inputs[0], k=inputs[1], v=inputs[2], attn_scale=cell.headdim**-0.5, use_causal_mask=cell.mask == "causal",
            generate_stats=True, name="attention",
        )  # fmt: skip
        heads_outside = out.transpose(1, 2)
        result.set_output(True).set_dim(list(heads_outside.shape)).set_stride(list(heads_outside.stride()))
        result_stats.set_output(True).set_data_type(real).set_dim(list(stats.shape)).set_stride(list(stats.stride()))
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=data.q.device)
        pointers = dict(zip([*inputs, result, result_stats], [*memory, heads_outside, stats], strict=True))

        def call() -> tuple[torch.Tensor, ...]:
            graph.execute(pointers, workspace, handle=self.handle)
            return (out,)

        return call


class FlexAttention(TorchLibrary):
    """PyTorch's FlexAttention, compiled, which takes seconds a cell: so only for masks that the others lack."""

    name, variant = "flex", ""

    def __init__(self) -> None:
        self.module = importlib.import_module("torch.nn.attention.flex_attention")
        self.attention = torch.compile(self.module.flex_attention, dynamic=False)

    def function(self, data: Data) -> Function:
        cell = data.cell
        if cell.packed or cell.mask in MASKS:
            raise Unsupported("only other masks are asked of it")
        lo, hi = data.lo[0, 0], data.hi[0, 0]
        mask = self.module.create_block_mask(
            lambda batch, head, row, key: (key >= lo[row]) & (key < hi[row]), None, None, cell.seqlen, cell.seqlen,
            device=data.q.device,
        )  # fmt: skip
        gqa = cell.nheads_q != cell.nheads_k

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            heads_outside = (x.transpose(1, 2) for x in (q, k, v))
            return self.attention(*heads_outside, block_mask=mask, enable_gqa=gqa).transpose(1, 2)

        return function


class SharedObject:
    """Any implementation in a shared library, bf16, dense, of contiguous tensors; one of the functions may be missing:

    extern "C" int attention_forward_on_stream(const void* q, const void* k, const void* v, void* out, float* lse,
                                               int64_t batch, int64_t seqlen, int64_t heads_q, int64_t heads_k,
                                               int64_t headdim, int causal, void* stream);
    extern "C" int attention_backward_on_stream(const void* q, const void* k, const void* v, const void* out,
                                                const void* dout, const float* lse, void* dq, void* dk, void* dv,
                                                int64_t batch, int64_t seqlen, int64_t heads_q, int64_t heads_k,
                                                int64_t headdim, int causal, void* stream);

    0, or not 0 if it has no such kernel.
    """

    def __init__(self, name: str, variant: str, file: str):
        self.name, self.variant = name, variant
        self.library = ctypes.CDLL(file)

    def prepare(self, data: Data, op: str) -> Call:
        cell = data.cell
        dense = not cell.packed and cell.headdim == cell.headdim_v
        if not dense or cell.dtype != "bf16" or cell.mask not in MASKS:
            raise Unsupported("dense bf16, and no mask or the causal one")
        out, lse = data.new_out(), data.new_lse()
        forward = [data.q, data.k, data.v, out, lse]
        if op == "forward":
            return returning((out,), self._run("attention_forward_on_stream", forward, cell))
        gradients = [torch.empty_like(x) for x in (data.q, data.k, data.v)]
        backward = [data.q, data.k, data.v, out, data.dout, lse, *gradients]
        run_backward = self._run("attention_backward_on_stream", backward, cell)
        if op == "forward_backward":
            run_forward = self._run("attention_forward_on_stream", forward, cell)
            return returning((out, *gradients), run_forward, run_backward)
        for to, result in zip((out, lse), torch_forward(data), strict=True):
            to.copy_(result)
        return returning(tuple(gradients), run_backward)

    def _run(self, name: str, tensors: list[torch.Tensor], cell: Cell) -> Callable[[], None]:
        function = getattr(self.library, name, None)
        if function is None:
            raise Unsupported(f"it has no {name}")
        function.argtypes = [ctypes.c_void_p] * len(tensors) + [ctypes.c_int64] * 5 + [ctypes.c_int, ctypes.c_void_p]
        stream = torch.cuda.current_stream().cuda_stream if tensors[0].is_cuda else None
        pointers = [x.data_ptr() for x in tensors]
        sizes = [cell.batch, cell.seqlen, cell.nheads_q, cell.nheads_k, cell.headdim]

        def run(keep: Any = tensors) -> None:
            status = function(*pointers, *sizes, int(cell.mask == "causal"), stream)
            if status != 0:
                raise Unsupported(f"status {status}")

        return run


def torch_forward(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE, by torch's own kernels."""
    group = data.cell.nheads_q // data.cell.nheads_k
    q = data.q.transpose(1, 2)
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (data.k, data.v))
    aten, causal = torch.ops.aten, data.cell.mask == "causal"
    if q.is_cuda:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out.transpose(1, 2), lse
