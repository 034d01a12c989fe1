"""Exceptions of Tandem: one class for each status code of the C interface."""

from __future__ import annotations

__all__ = [
    "DeviceError",
    "InternalError",
    "InvalidArgumentError",
    "NoDeviceError",
    "OutOfMemoryError",
    "TandemError",
    "UnsupportedError",
    "WorkspaceTooSmallError",
]


class TandemError(RuntimeError):
    """A call that Tandem refused or could not finish.

    Attributes:
        code: the ``tandem_status`` number.
        status_name: its name, such as ``"TANDEM_UNSUPPORTED"``.
    """

    def __init__(self, message: str, code: int = 7, status_name: str = "TANDEM_INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.code = code
        self.status_name = status_name

    def __reduce__(self) -> tuple[type[TandemError], tuple[str, int, str]]:
        # Exceptions cross process borders (multiprocessing) pickled; the default would lose code and name.
        return type(self), (str(self), self.code, self.status_name)


class InvalidArgumentError(TandemError, ValueError):
    """The arguments contradict each other or the contract."""


class UnsupportedError(TandemError, NotImplementedError):
    """The call is valid, but no backend, or not the forced one, can run it."""


class WorkspaceTooSmallError(TandemError):
    """The scratch memory handed in is missing, misaligned or too small."""


class NoDeviceError(TandemError):
    """No such device, no driver, or a GPU of another generation."""


class DeviceError(TandemError):
    """The driver refused a launch."""


class OutOfMemoryError(TandemError, MemoryError):
    """Host memory ran out."""


class InternalError(TandemError):
    """A bug in Tandem; please report it."""


_CLASSES: dict[int, type[TandemError]] = {
    1: InvalidArgumentError,
    2: UnsupportedError,
    3: WorkspaceTooSmallError,
    4: NoDeviceError,
    5: DeviceError,
    6: OutOfMemoryError,
    7: InternalError,
}


def error_from_status(code: int, status_name: str, message: str) -> TandemError:
    """The exception for a status code; ``_core`` calls it."""
    return _CLASSES.get(code, TandemError)(message, code, status_name)
