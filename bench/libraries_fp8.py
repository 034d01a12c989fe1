"""What bench/compare.py times in cells of e4m3: attention in fp8, and beside it bf16 attention over values like those.

An e4m3 cell has normal values in bf16 (Data.bf16) and the same rounded to e4m3, with scales of 1: of each tensor for
(batch, heads) or for blocks of 128 rows. O is bf16.
"""

from __future__ import annotations

import ctypes
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from cells import MASKS
from libraries import Call, Data, Library, Unsupported, returning
from tandem_c import Tandem, TandemError

E4M3 = torch.float8_e4m3fn
OUT_SCALE = 64.0  # of results in e4m3: they are held times this
SEED = 1


class TandemFp8:
    """Through libtandem.so. Variants: "", V as the quantiser transposes it and scales of blocks, as a user of both gets
    it; "scales of heads"; "V in rows", as it lies in memory, with scales of heads; "from bf16", with the quantiser's
    calls in the time: Q and K rotated, scales of blocks, V transposed."""

    name = "tandem"
    VARIANTS = ("", "scales of heads", "V in rows", "from bf16")

    def __init__(self, path: pathlib.Path, variant: str):
        self.tandem = Tandem(path)
        self.variant = variant
        self.of_bf16 = variant == "from bf16"

    def prepare(self, data: Data, op: str) -> Call:
        if op != "forward":
            raise Unsupported("fp8 is forward only")
        try:
            return self._from_bf16(data) if self.of_bf16 else self._from_fp8(data)
        except TandemError as error:
            raise Unsupported(str(error)) from error

    def _from_fp8(self, data: Data) -> Call:
        blocks = self.variant == ""
        tensors = {"q": data.q, "k": data.k, "v": data.v, "out": data.new_out(), "lse": data.new_lse()}
        if self.variant != "V in rows":
            tensors["v"] = in_slots(data)
        for name in ("q", "k", "v"):
            tensors[f"{name}_scale"] = torch.ones(scale_shape(data, name, blocks), device=data.q.device)
        return returning((tensors["out"],), self._attention(data, tensors, self.variant != "V in rows"))

    def _from_bf16(self, data: Data) -> Call:
        assert data.bf16 is not None
        tensors = {"q": torch.empty_like(data.q), "k": torch.empty_like(data.k), "v": torch.empty_like(in_slots(data))}
        calls = []
        for name, x in (("q", data.bf16.q), ("k", data.bf16.k), ("v", data.bf16.v)):
            scale = torch.empty(scale_shape(data, name, True), device=x.device)
            tensors[f"{name}_scale"] = scale
            offsets = {"cu_seqlens": data.cu_seqlens} if data.cell.packed else {}
            operands = {"x": x, "out": tensors[name], "scale": scale} | offsets
            options = {"transposed": 1} if name == "v" else {"rotate": 1, "seed": SEED}
            calls.append(self.tandem.prepared_call("quantize_fp8", operands, **options))
        tensors |= {"out": data.new_out(), "lse": data.new_lse()}
        return returning((tensors["out"],), *calls, self._attention(data, tensors, True))

    def _attention(self, data: Data, tensors: dict[str, torch.Tensor], in_slots: bool) -> Callable[[], None]:
        cell = data.cell
        if cell.mask not in MASKS:
            raise Unsupported("no mask or the causal one")
        mask, options = {"causal": int(cell.mask == "causal")}, {"v_transposed": int(in_slots)}
        if not cell.packed:
            return self.tandem.prepared_call("forward", tensors, mask, **options)
        tensors = tensors | {"cu_seqlens_q": data.cu_seqlens, "cu_seqlens_k": data.cu_seqlens}
        lengths = {"max_seqlen_q": cell.seqlen, "max_seqlen_k": cell.seqlen}
        return self.tandem.prepared_call("varlen_forward", tensors, mask, **options, **lengths)


def scale_shape(data: Data, name: str, blocks: bool) -> tuple[int, ...]:
    cell = data.cell
    heads = (cell.batch, cell.nheads_q if name == "q" else cell.nheads_k)
    return (*heads, -(-cell.seqlen // 128)) if blocks else heads


def in_slots(data: Data) -> torch.Tensor:
    """V^T in the order of tandem.h, of sequences whose lengths are multiples of 16: (batch, heads, headdim, slots),
    packed (heads, headdim, slots)."""
    cell, v = data.cell, data.v.view(torch.uint8)
    slot = torch.arange(cell.seqlen, device=v.device)
    if cell.seqlen % 16 != 0:
        raise Unsupported("seqlen is no multiple of 16")
    in_group = slot % 16
    key = slot - in_group + 2 * (in_group // 4) + 8 * (in_group % 4 // 2) + in_group % 2
    v = v.reshape(cell.batch, cell.seqlen, *v.shape[-2:])[:, key].permute(0, 2, 3, 1)
    if not cell.packed:
        return v.contiguous().view(E4M3)
    unused = v.new_zeros(*v.shape[:-1], 16)  # each sequence begins 16 slots further on than its rows do
    return torch.cat([v, unused], -1).permute(1, 2, 0, 3).flatten(2).contiguous().view(E4M3)


class InBf16:
    """A library over the cell's values in bf16."""

    of_bf16 = True

    def __init__(self, library: Library):
        self.name, self.variant, self.library = library.name, "bf16", library

    def prepare(self, data: Data, op: str) -> Call:
        assert data.bf16 is not None
        return self.library.prepare(data.bf16, op)


class CudnnGraphFp8:
    """cuDNN by its own graph API, from the package nvidia-cudnn-frontend; one scale for each tensor."""

    name, variant, of_bf16 = "cudnn", "", False

    def __init__(self) -> None:
        self.cudnn = importlib.import_module("cudnn")
        self.handle = self.cudnn.create_handle()
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)

    def prepare(self, data: Data, op: str) -> Call:
        if data.cell.packed or data.cell.mask not in MASKS or op != "forward":
            raise Unsupported("only the forward of dense batches, and no mask or the causal one, are asked of it here")
        reasons = []
        for dtype in (torch.bfloat16, E4M3):  # of O: not every version writes bf16
            try:
                return self._graph(data, torch.empty_like(data.new_out(), dtype=dtype))
            except Exception as error:
                reasons.append(str(error).strip())
        raise Unsupported("; ".join(reasons))

    def _graph(self, data: Data, out: torch.Tensor) -> Call:
        cell, cudnn = data.cell, self.cudnn
        real, fp8 = cudnn.data_type.FLOAT, cudnn.data_type.FP8_E4M3
        graph = cudnn.pygraph(io_data_type=fp8, intermediate_data_type=real, compute_data_type=real, handle=self.handle)
        memory = [x.transpose(1, 2) for x in (data.q, data.k, data.v)]
        inputs = [graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=fp8) for x in memory]
        ones = [torch.ones(1, 1, 1, 1, device=out.device) for _ in range(6)]
        ones[5].fill_(OUT_SCALE if out.dtype == E4M3 else 1)
        names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        factors = {name: graph.tensor_like(one) for name, one in zip(names, ones, strict=True)}
        results = graph.sdpa_fp8(
            q=inputs[0], k=inputs[1], v=inputs[2], **factors, attn_scale=cell.headdim**-0.5,
            use_causal_mask=cell.mask == "causal", generate_stats=True, name="attention",
        )  # fmt: skip
        heads_outside, stats = out.transpose(1, 2), data.new_lse()[..., None]
        maxima = [torch.empty(1, 1, 1, 1, device=out.device) for _ in range(2)]  # of P and of O
        written = [heads_outside, stats, *maxima]
        out_type = fp8 if out.dtype == E4M3 else cudnn.data_type.BFLOAT16
        for result, tensor, dtype in zip(results, written, (out_type, real, real, real), strict=True):
            result.set_output(True).set_dim(list(tensor.shape)).set_stride(list(tensor.stride())).set_data_type(dtype)
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=out.device)
        tensors = [*memory, *ones, *written]
        pointers = dict(zip([*inputs, *factors.values(), *results], tensors, strict=True))

        def call() -> tuple[torch.Tensor, ...]:
            graph.execute(pointers, workspace, handle=self.handle)
            return (out,)

        return call


class FlashAttention3Fp8:
    """The official package, where it is installed."""

    name, variant, of_bf16 = "fa3", "", False

    def __init__(self) -> None:
        self.attention = importlib.import_module("flash_attn_interface").flash_attn_func

    def prepare(self, data: Data, op: str) -> Call:
        if data.cell.packed or data.cell.mask not in MASKS or op != "forward":
            raise Unsupported("only the forward of dense batches, and no mask or the causal one, are asked of it here")
        scales = {f"{name}_descale": torch.ones(scale_shape(data, "k", False), device=data.q.device) for name in "qkv"}

        def call() -> tuple[torch.Tensor, ...]:
            result = self.attention(data.q, data.k, data.v, causal=data.cell.mask == "causal", **scales)
            return (result[0] if isinstance(result, tuple) else result,)

        return call


class SharedObjectFp8:
    """Any implementation in a shared library, dense, of contiguous tensors and scales of (batch, heads):

    extern "C" int attention_fp8_forward_on_stream(const void* q, const void* k, const void* v, void* out, float* lse,
                                                   const float* q_scale, const float* k_scale, const float* v_scale,
                                                   int64_t batch, int64_t seqlen, int64_t heads_q, int64_t heads_k,
                                                   int64_t headdim, int causal, void* stream);

    and, if it wants V otherwise, what is called once before, with (batch, heads, headdim, seqlen rounded up to 128)
    bytes for vt, which comes in the place of v:

    extern "C" int attention_fp8_transpose_v_on_stream(const void* v, void* vt, int64_t batch, int64_t seqlen,
                                                       int64_t heads, int64_t headdim, void* stream);

    0, or not 0 if it has no such kernel.
    """

    of_bf16 = False

    def __init__(self, name: str, variant: str, file: str):
        self.name, self.variant = name, variant
        self.library = ctypes.CDLL(file)
        if not hasattr(self.library, "attention_fp8_forward_on_stream"):
            raise RuntimeError(f"{file} has no attention_fp8_forward_on_stream")

    def prepare(self, data: Data, op: str) -> Call:
        cell = data.cell
        if cell.packed or cell.headdim != cell.headdim_v or cell.mask not in MASKS or op != "forward":
            raise Unsupported("dense, and no mask or the causal one")
        stream = torch.cuda.current_stream().cuda_stream if data.q.is_cuda else None
        v, out = self._prepared_v(data, stream), data.new_out()
        scales = [torch.ones(scale_shape(data, name, False), device=out.device) for name in "qkv"]
        tensors = [data.q, data.k, v, out, data.new_lse(), *scales]
        function = self.library.attention_fp8_forward_on_stream
        function.argtypes = [ctypes.c_void_p] * 8 + [ctypes.c_int64] * 5 + [ctypes.c_int, ctypes.c_void_p]
        pointers = [x.data_ptr() for x in tensors]
        sizes = [cell.batch, cell.seqlen, cell.nheads_q, cell.nheads_k, cell.headdim]

        def run(keep: Any = tensors) -> None:
            status = function(*pointers, *sizes, int(cell.mask == "causal"), stream)
            if status != 0:
                raise Unsupported(f"status {status}")

        return returning((out,), run)

    def _prepared_v(self, data: Data, stream: int | None) -> torch.Tensor:
        function = getattr(self.library, "attention_fp8_transpose_v_on_stream", None)
        if function is None:
            return data.v
        cell = data.cell
        function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4 + [ctypes.c_void_p]
        slots = -(-cell.seqlen // 128) * 128
        vt = data.v.new_empty((cell.batch, cell.nheads_k, cell.headdim, slots))
        sizes = [cell.batch, cell.seqlen, cell.nheads_k, cell.headdim]
        status = function(data.v.data_ptr(), vt.data_ptr(), *sizes, stream)
        if status != 0:
            raise Unsupported(f"status {status}")
        return vt
