"""The implementations that bench/compare.py times. Each turns a cell's tensors into a call of no arguments.

prepare() raises Unsupported where a library has no such attention; the call returns the output, of q's axes.
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

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
Call = Callable[[], torch.Tensor]


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

    @staticmethod
    def make(cell: Cell, device: torch.device, seed: int = 0) -> Data:
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
        )

    def new_out(self) -> torch.Tensor:
        return self.q.new_empty((*self.q.shape[:-1], self.cell.headdim_v))

    def new_lse(self) -> torch.Tensor:
        heads, rows = self.cell.nheads_q, self.cell.seqlen
        shape = (heads, self.cell.batch * rows) if self.cell.packed else (self.cell.batch, heads, rows)
        return self.q.new_empty(shape, dtype=torch.float32)


class Library(Protocol):
    name: str
    variant: str

    def prepare(self, data: Data) -> Call: ...


class TandemC:
    """Through libtandem.so: what an inference engine would call. LSE is written."""

    name, variant = "tandem", ""

    def __init__(self, path: pathlib.Path):
        self.tandem = Tandem(path)

    def prepare(self, data: Data) -> Call:
        cell, out = data.cell, data.new_out()
        tensors = {"q": data.q, "k": data.k, "v": data.v, "out": out, "lse": data.new_lse()}
        lengths = {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        mask: dict[str, Any] = {"causal": int(cell.mask == "causal")}
        if cell.mask == "window":
            mask |= {"has_window": 1, "window_left": WINDOW - 1, "window_right": 0}
        elif cell.mask in ("documents", "prefix"):
            mask |= {"lo": data.lo, "hi": data.hi}
        try:
            if cell.packed:
                tensors |= {"cu_seqlens_q": data.cu_seqlens, "cu_seqlens_k": data.cu_seqlens}
                run = self.tandem.prepared_call("varlen_forward", tensors, mask, **lengths)
            else:
                run = self.tandem.prepared_call("forward", tensors, mask)
        except TandemError as error:
            raise Unsupported(str(error)) from error

        def call() -> torch.Tensor:
            run()
            return out

        return call


class TandemTorch:
    """Through the Python package, as a user of PyTorch calls it."""

    name, variant = "tandem", "tandem.torch"

    def __init__(self) -> None:
        self.module = importlib.import_module("tandem.torch")

    def prepare(self, data: Data) -> Call:
        cell = data.cell
        options: dict[str, Any] = {"causal": cell.mask == "causal"}
        if cell.mask == "window":
            options["window"] = (WINDOW - 1, 0)
        elif cell.mask in ("documents", "prefix"):
            options |= {"lo": data.lo, "hi": data.hi}
        arguments = [data.q, data.k, data.v]
        if cell.packed:
            arguments += [data.cu_seqlens, data.cu_seqlens]
            options |= {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        attention = self.module.attention_varlen if cell.packed else self.module.attention
        return lambda: attention(*arguments, **options)


class Sdpa:
    """torch.nn.functional.scaled_dot_product_attention, held to one backend if one is given."""

    variant = ""

    def __init__(self, name: str, backend: SDPBackend | None = None):
        self.name = name
        self.backend = backend

    def prepare(self, data: Data) -> Call:
        cell = data.cell
        if cell.packed or cell.mask not in MASKS:
            raise Unsupported("scaled_dot_product_attention knows dense batches, and no mask or the causal one")
        attention = torch.nn.functional.scaled_dot_product_attention
        q, k, v = (x.transpose(1, 2) for x in (data.q, data.k, data.v))
        options = {"is_causal": cell.mask == "causal", "enable_gqa": cell.nheads_q != cell.nheads_k}
        backend = self.backend
        if backend is None:
            return lambda: attention(q, k, v, **options).transpose(1, 2)

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return attention(q, k, v, **options).transpose(1, 2)

        return call


class TorchFlash(Sdpa):
    """FlashAttention-2 as PyTorch ships it; its windows and packed sequences by the operator under the function."""

    def __init__(self) -> None:
        super().__init__("fa2", SDPBackend.FLASH_ATTENTION)

    def prepare(self, data: Data) -> Call:
        cell = data.cell
        if not cell.packed and cell.mask != "window":
            return super().prepare(data)
        if cell.mask not in (*MASKS, "window") or cell.headdim != cell.headdim_v:
            raise Unsupported("no such mask or headdim")
        flash = torch.ops.aten._flash_attention_forward
        offsets = data.cu_seqlens if cell.packed else None
        window = {"window_size_left": WINDOW - 1, "window_size_right": 0} if cell.mask == "window" else {}

        def call() -> torch.Tensor:
            lengths = (offsets, offsets, cell.seqlen, cell.seqlen)
            return flash(data.q, data.k, data.v, *lengths, 0.0, cell.mask == "causal", False, **window)[0]

        return call


class FlashAttention3:
    """The official package, where it is installed."""

    name, variant = "fa3", ""

    def __init__(self) -> None:
        self.module = importlib.import_module("flash_attn_interface")

    def prepare(self, data: Data) -> Call:
        cell = data.cell
        if cell.mask not in (*MASKS, "window"):
            raise Unsupported("no such mask")
        options: dict[str, Any] = {"causal": cell.mask == "causal"}
        if cell.mask == "window":
            options["window_size"] = (WINDOW - 1, 0)
        arguments: list[Any] = [data.q, data.k, data.v]
        if cell.packed:
            arguments += [data.cu_seqlens, data.cu_seqlens]
            options |= {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        attention = self.module.flash_attn_varlen_func if cell.packed else self.module.flash_attn_func

        def call() -> torch.Tensor:
            result = attention(*arguments, **options)
            return result[0] if isinstance(result, tuple) else result

        return call


class CudnnGraph:
    """cuDNN by its own graph API, from the package nvidia-cudnn-frontend."""

    name, variant = "cudnn", "graph API"

    def __init__(self) -> None:
        self.cudnn = importlib.import_module("cudnn")
        self.handle = self.cudnn.create_handle()
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)

    def prepare(self, data: Data) -> Call:
        cell, cudnn = data.cell, self.cudnn
        if cell.packed or cell.mask not in MASKS:
            raise Unsupported("only dense batches, and no mask or the causal one, are asked of it here")
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

        def call() -> torch.Tensor:
            graph.execute(pointers, workspace, handle=self.handle)
            return out

        return call


class FlexAttention:
    """PyTorch's FlexAttention, compiled, which takes seconds a cell: so only for masks that the others lack."""

    name, variant = "flex", ""

    def __init__(self) -> None:
        self.module = importlib.import_module("torch.nn.attention.flex_attention")
        self.attention = torch.compile(self.module.flex_attention, dynamic=False)

    def prepare(self, data: Data) -> Call:
        cell = data.cell
        if cell.packed or cell.mask in MASKS:
            raise Unsupported("only other masks are asked of it")
        q, k, v = (x.transpose(1, 2) for x in (data.q, data.k, data.v))
        lo, hi = data.lo[0, 0], data.hi[0, 0]
        mask = self.module.create_block_mask(
            lambda batch, head, row, key: (key >= lo[row]) & (key < hi[row]), None, None, cell.seqlen, cell.seqlen,
            device=data.q.device,
        )  # fmt: skip
        gqa = cell.nheads_q != cell.nheads_k
        return lambda: self.attention(q, k, v, block_mask=mask, enable_gqa=gqa).transpose(1, 2)


class SharedObject:
    """Any implementation in a shared library, bf16, dense, of contiguous tensors:

    extern "C" int attention_forward_on_stream(const void* q, const void* k, const void* v, void* out, float* lse,
                                               int64_t batch, int64_t seqlen, int64_t heads_q, int64_t heads_k,
                                               int64_t headdim, int causal, void* stream);

    0, or not 0 if it has no such kernel.
    """

    def __init__(self, name: str, variant: str, file: str):
        self.name, self.variant = name, variant
        self.function = ctypes.CDLL(file).attention_forward_on_stream
        self.function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 5 + [ctypes.c_int, ctypes.c_void_p]

    def prepare(self, data: Data) -> Call:
        cell, out, lse = data.cell, data.new_out(), data.new_lse()
        dense = not cell.packed and cell.headdim == cell.headdim_v
        if not dense or cell.dtype != "bf16" or cell.mask not in MASKS:
            raise Unsupported("dense bf16, and no mask or the causal one")
        stream = torch.cuda.current_stream().cuda_stream if data.q.is_cuda else None
        pointers = [x.data_ptr() for x in (data.q, data.k, data.v, out, lse)]
        sizes = [cell.batch, cell.seqlen, cell.nheads_q, cell.nheads_k, cell.headdim]

        def call(keep: Any = (data, lse)) -> torch.Tensor:
            status = self.function(*pointers, *sizes, int(cell.mask == "causal"), stream)
            if status != 0:
                raise Unsupported(f"status {status}")
            return out

        return call
