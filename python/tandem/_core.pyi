"""The C interface in integers (see tandem.h for what each argument means).

A Tensor refers to memory that it does not own: the caller keeps it alive until the call returns, on CUDA until the
stream has passed it. Arguments that are None count as left out. Errors are the classes of tandem.errors.
"""

from collections.abc import Sequence
from typing import Final

FP64: Final[int]
FP32: Final[int]
FP16: Final[int]
BF16: Final[int]
E4M3: Final[int]
E5M2: Final[int]
INT32: Final[int]
CPU: Final[int]
CUDA: Final[int]
BACKEND_AUTO: Final[int]
BACKEND_REFERENCE: Final[int]
BACKEND_TILED: Final[int]
BACKEND_SM90: Final[int]

class Tensor:
    """A view of memory. Strides count elements; an address of 0 is enough for checks and workspace sizes."""

    def __init__(self, data: int, dtype: int, shape: Sequence[int], stride: Sequence[int]) -> None: ...
    @property
    def data(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...

class View:
    """An array of another library, held through its DLPack capsule (versioned or not) for as long as the View lives.

    Raises TypeError if it is no capsule, or if it is read-only and `writable` is asked for.
    """

    def __init__(self, capsule: object, writable: bool = False) -> None: ...
    @property
    def data(self) -> int: ...
    @property
    def dtype(self) -> int:
        """Number as in Tensor; 0 for types that Tandem does not know."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...

def forward(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    v_transposed: bool = False,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Attention; packed if cu_seqlens_q or cu_seqlens_k is given. The GIL is released during the run.

    On the CPU with workspace == 0 the scratch memory is allocated here; on CUDA the caller passes it.
    """

def forward_check(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    v_transposed: bool = False,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Raises what the run would refuse."""

def forward_workspace(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    v_transposed: bool = False,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[int, int]:
    """(bytes, alignment) of the scratch memory that the run needs."""

def backward(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dlse: Tensor | None = None,
    sink: Tensor | None = None,
    dsink: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """The gradients of the forward with the same arguments; all of dq, dk, dv are overwritten."""

def backward_check(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dlse: Tensor | None = None,
    sink: Tensor | None = None,
    dsink: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Raises what the run would refuse."""

def backward_workspace(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dlse: Tensor | None = None,
    sink: Tensor | None = None,
    dsink: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: tuple[int, int] | None = None,
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[int, int]:
    """(bytes, alignment) of the scratch memory that the run needs."""

def merge(
    *,
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Joins partial results over disjoint sets of keys."""

def merge_check(
    *,
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Raises what the run would refuse."""

def merge_workspace(
    *,
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor,
    lse: Tensor | None = None,
    sink: Tensor | None = None,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[int, int]:
    """(bytes, alignment) of the scratch memory that the run needs."""

def quantize_fp8(
    *,
    x: Tensor,
    out: Tensor,
    scale: Tensor,
    cu_seqlens: Tensor | None = None,
    seqused: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_offset: Tensor | None = None,
    seed: int = 0,
    rotate: bool = False,
    rotary_interleaved: bool = False,
    transposed: bool = False,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Rounds q, k or v to e4m3; packed if cu_seqlens is given."""

def quantize_fp8_check(
    *,
    x: Tensor,
    out: Tensor,
    scale: Tensor,
    cu_seqlens: Tensor | None = None,
    seqused: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_offset: Tensor | None = None,
    seed: int = 0,
    rotate: bool = False,
    rotary_interleaved: bool = False,
    transposed: bool = False,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> None:
    """Raises what the run would refuse."""

def quantize_fp8_workspace(
    *,
    x: Tensor,
    out: Tensor,
    scale: Tensor,
    cu_seqlens: Tensor | None = None,
    seqused: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_offset: Tensor | None = None,
    seed: int = 0,
    rotate: bool = False,
    rotary_interleaved: bool = False,
    transposed: bool = False,
    device: tuple[int, int] = (0, 0),
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    backend: int = 0,
    num_threads: int = 0,
    sm_margin: int = 0,
    needs_grad: bool = False,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[int, int]:
    """(bytes, alignment) of the scratch memory that the run needs."""

def version() -> str:
    """Version of the library, such as '0.1.0'."""

def dtype_name(dtype: int) -> str:
    """'bf16'; 'unknown dtype'."""

def prepare(device: tuple[int, int]) -> None:
    """Does once what a first call on this device would do, so that later ones can be captured in a CUDA graph."""

def backend_name(backend: int) -> str:
    """'tiled'; 'unknown backend'."""

def backend_available(backend: int, device: tuple[int, int]) -> tuple[bool, str]:
    """(True, '') or (False, why not)."""

def backend_select(requested: int, device: tuple[int, int]) -> int:
    """The backend that a call with these settings runs on, environment variable TANDEM_BACKEND included."""

def backend_description(backend: int, device: tuple[int, int]) -> str:
    """One line about what the backend runs on, or why it cannot."""
