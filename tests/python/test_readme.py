"""The README's examples run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("code", [pytest.param(code, id=f"block{n}") for n, code in enumerate(blocks("python"))])
def test_python(code: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code)
    run(sys.executable, "example.py", cwd=tmp_path)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (BUILD / "cmake_install.cmake").exists(), f"{BUILD} is not a build folder: './run build' makes one"
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--component", "library", "--prefix", prefix)
    return prefix


def test_cmake(prefix: Path, tmp_path: Path) -> None:
    (code,) = blocks("cpp")
    (lists,) = blocks("cmake")
    (tmp_path / "main.cpp").write_text(code)
    (tmp_path / "CMakeLists.txt").write_text(lists)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build/example") == "0.5\n"


def test_pkg_config(prefix: Path, tmp_path: Path) -> None:
    (command,) = re.findall(r"^g\+\+ .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    (package,) = prefix.rglob("tandem.pc")
    (tmp_path / "main.cpp").write_text(blocks("cpp")[0])
    command = command.replace("~/tandem/lib/pkgconfig", str(package.parent))
    run("sh", "-c", command, cwd=tmp_path)
    library = package.parent.parent
    assert run(tmp_path / "a.out", env={**os.environ, "LD_LIBRARY_PATH": str(library)}) == "0.5\n"
