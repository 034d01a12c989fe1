"""The package as it is installed: import, metadata, symbols, types, threads and processes."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tandem
from tandem import _core, errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(tandem.__file__).parent


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------------ import and metadata


def test_C110_import_takes_less_than_two_seconds() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        run_python("import tandem")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 2


def test_C110_import_needs_numpy_and_nothing_else() -> None:
    loaded = run_python("import tandem, sys; print(*sys.modules)").split()
    assert not {"torch", "transformers", "ml_dtypes", "cupy", "jax"} & set(loaded)


def test_C109_the_distribution_is_found() -> None:
    assert "tandem-attention" in importlib.metadata.packages_distributions()["tandem"]
    assert importlib.metadata.version("tandem-attention") == tandem.__version__


def test_the_version_is_written_once() -> None:
    written = re.search(r"project\(tandem VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert written is not None
    assert written[1] == tandem.__version__ == _core.version() == tandem.info()["version"]


def test_info() -> None:
    info = tandem.info()
    assert set(info["backends"]) == {"reference", "tiled", "sm90"}
    assert info["backends"]["tiled"]["available"]
    assert info["backends"]["reference"]["available"]
    assert all(backend["description"] for backend in info["backends"].values())


def test_C103_no_gpu_is_said_in_a_sentence() -> None:
    sm90 = tandem.info()["backends"]["sm90"]
    if sm90["available"]:
        pytest.skip("a GPU is here; this is about machines without one")
    assert "kernel image" not in sm90["description"]
    assert len(sm90["description"].split()) > 3


def test_backend_auto_is_the_default() -> None:
    arrays = inputs(3)
    np.testing.assert_array_equal(tandem.attention(*arrays, backend="auto"), tandem.attention(*arrays))


def test_the_environment_forces_a_backend() -> None:
    code = "import os; os.environ['TANDEM_BACKEND'] = {!r}; import tandem; print(tandem.info()['default'])"
    assert run_python(code.format("reference")).strip() == "reference"
    assert run_python(code.format("tiled")).strip() == "tiled"
    assert run_python(code.format("sm90")).strip() == "None"


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_C107_the_module_exports_its_init_function_only() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["PyInit__core"]


def test_mypy_strict_accepts_a_use_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text(
        "import numpy as np\nimport tandem\n"
        "x = np.zeros((1, 2, 1, 4), np.float32)\n"
        "shape: tuple[int, ...] = tandem.attention(x, x, x, causal=True).shape\n"
        "out, lse = tandem.attention(x, x, x, return_lse=True)\n"
        "out = tandem.attention(x, x, x, casual=True)  # type: ignore[call-overload]\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(user)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_names_what_the_module_has() -> None:
    stub = (PACKAGE / "_core.pyi").read_text()
    written = set(re.findall(r"^(?:def |class )?(\w+)[(:]", stub, re.MULTILINE)) - {"from"}
    assert written == {name for name in dir(_core) if not name.startswith("__")}


def test_minimal_example() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "minimal.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "out (2, 128, 8, 64), lse (2, 8, 128), dq (2, 128, 8, 64), dk (2, 128, 2, 64)" in done.stdout
    assert done.stdout.rstrip().endswith("True")


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (1, errors.InvalidArgumentError, ValueError),
        (2, errors.UnsupportedError, NotImplementedError),
        (3, errors.WorkspaceTooSmallError, RuntimeError),
        (4, errors.NoDeviceError, RuntimeError),
        (5, errors.DeviceError, RuntimeError),
        (6, errors.OutOfMemoryError, MemoryError),
        (7, errors.InternalError, RuntimeError),
        (99, errors.TandemError, RuntimeError),
    ],
)
def test_status_codes_become_exceptions(code: int, kind: type[Exception], builtin: type[Exception]) -> None:
    error = errors.error_from_status(code, "TANDEM_NAME", "A sentence.")
    assert type(error) is kind
    assert isinstance(error, (builtin, tandem.TandemError))
    assert isinstance(error, builtin)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.code, copy.status_name) == (kind, "A sentence.", code, "TANDEM_NAME")


def test_an_error_carries_code_name_and_sentence() -> None:
    x = np.zeros((1, 2, 1, 4), np.float32)
    with pytest.raises(tandem.InvalidArgumentError) as caught:
        tandem.attention(x, x, x, softcap=-1.0)
    assert caught.value.code == 1
    assert caught.value.status_name == "TANDEM_INVALID_ARGUMENT"
    assert "softcap" in str(caught.value)


# ------------------------------------------------------------------------------------------------ threads and processes


def inputs(seed: int, rows: int = 96) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, rows, 4, 32), dtype=np.float32) for _ in range(3))
    return q, k, v


def test_calls_from_several_threads(backend: str) -> None:
    expected = [tandem.attention(*inputs(seed), causal=True, backend=backend).tobytes() for seed in range(8)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(5):
            ours = tandem.attention(*inputs(seed), causal=True, backend=backend, num_threads=2).tobytes()
            try:
                tandem.attention(*inputs(seed), softcap=-float(seed + 1), backend=backend)
            except tandem.InvalidArgumentError as error:  # the text is this thread's own
                right_text = str(seed + 1) in str(error)
            if ours != expected[seed] or not right_text:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_other_threads_run_during_a_call() -> None:
    """The GIL is released: a counting thread makes progress while one long call runs."""
    q, k, v = inputs(0, rows=1500)
    ticks = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.0005)

    counter = threading.Thread(target=count)
    counter.start()
    before = ticks
    tandem.attention(q, k, v, backend="reference", num_threads=1)
    during = ticks - before
    stop.set()
    counter.join()
    assert during > 10


def _forked(backend: str, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(tandem.attention(*inputs(1), backend=backend, num_threads=2).tobytes())


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_after_a_threaded_call_can_call(backend: str) -> None:
    """As a DataLoader's worker does: the parent's pool of threads does not exist in the child."""
    expected = tandem.attention(*inputs(1), backend=backend, num_threads=2).tobytes()
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bytes] = context.Queue()
    child = context.Process(target=_forked, args=(backend, queue))
    child.start()
    try:
        assert queue.get(timeout=60) == expected
    finally:
        child.join(timeout=10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0
    assert tandem.attention(*inputs(1), backend=backend, num_threads=2).tobytes() == expected
