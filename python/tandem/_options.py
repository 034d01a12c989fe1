"""Options of the public functions: their types, and what each is allowed to be, in words."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from tandem import _core
from tandem.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem._arrays import Array

Alignment = Literal["bottom-right", "top-left"]

_BACKENDS = (_core.BACKEND_REFERENCE, _core.BACKEND_TILED, _core.BACKEND_SM90)
BACKEND_NUMBERS = {_core.backend_name(number): number for number in _BACKENDS}
BACKEND_CHOICES = {_core.backend_name(_core.BACKEND_AUTO): _core.BACKEND_AUTO, **BACKEND_NUMBERS}


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of tandem.attention but for return_lse."""

    causal: bool
    window: tuple[int, int]
    attention_chunk: int
    softmax_scale: float | None
    softcap: float
    sink: Array | None
    lo: Array | None
    hi: Array | None
    seqused_q: Array | Sequence[int] | None
    seqused_k: Array | Sequence[int] | None
    alignment: Alignment
    q_scale: Array | None
    k_scale: Array | None
    v_scale: Array | None
    v_transposed: bool
    out: Array | None
    out_dtype: Any
    backend: str | None
    num_threads: int | None
    checked: bool


class VarlenAttentionOptions(AttentionOptions, total=False):
    """Keyword arguments of tandem.attention_varlen but for return_lse."""

    max_seqlen_q: int | None
    max_seqlen_k: int | None


def read_options(**given: object) -> dict[str, Any]:
    """The public options, checked, as arguments of _core."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        core_name, read = _READERS[name]
        if value is not None or name not in _OPTIONAL:
            options[core_name] = read(name, value)
    return options


def _backend(name: str, value: object) -> int:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, not {type(value).__name__}")
    if value not in BACKEND_CHOICES:
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: {', '.join(map(repr, BACKEND_CHOICES))}")
    return BACKEND_CHOICES[value]


def _integer(name: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)):  # an int to Python, but here a mixed-up argument
        raise TypeError(f"{name} must be an int, not bool")
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    if not -(2**63) <= result < 2**63:
        raise InvalidArgumentError(f"{name} is {result}, which does not fit into 64 bits")
    return result


def _count(name: str, value: object) -> int:
    result = _integer(name, value)
    if not 0 <= result < 2**31:
        raise InvalidArgumentError(f"{name} is {result}; allowed: 0 to {2**31 - 1}")
    return result


def _seed(name: str, value: object) -> int:
    result = _integer(name, value)
    if result < 0:
        raise InvalidArgumentError(f"{name} is {result}; allowed: 0 to {2**63 - 1}")
    return result


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return bool(value)


def _window(name: str, value: object) -> tuple[int, int] | None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} must be a (left, right) pair of ints, -1 for an open side, not {value!r}")
    left, right = _integer(f"{name}[0]", value[0]), _integer(f"{name}[1]", value[1])
    return None if left == right == -1 else (left, right)


def _top_left(name: str, value: object) -> bool:
    if value not in ("bottom-right", "top-left"):
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: 'bottom-right', 'top-left'")
    return value == "top-left"


_OPTIONAL = ("softmax_scale", "max_seqlen_q", "max_seqlen_k", "backend", "num_threads")  # None: the default

# Public name: name in _core, reader.
_READERS: dict[str, tuple[str, Callable[[str, object], Any]]] = {
    "causal": ("causal", _flag),
    "window": ("window", _window),
    "attention_chunk": ("attention_chunk", _integer),
    "alignment": ("top_left", _top_left),
    "softmax_scale": ("softmax_scale", _number),
    "softcap": ("softcap", _number),
    "max_seqlen_q": ("max_seqlen_q", _integer),
    "max_seqlen_k": ("max_seqlen_k", _integer),
    "backend": ("backend", _backend),
    "num_threads": ("num_threads", _count),
    "deterministic": ("deterministic", _flag),
    "checked": ("checked", _flag),
    "v_transposed": ("v_transposed", _flag),
    "rotate": ("rotate", _flag),
    "seed": ("seed", _seed),
    "rotary_interleaved": ("rotary_interleaved", _flag),
    "transposed": ("transposed", _flag),
}
