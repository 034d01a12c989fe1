#!/usr/bin/env bash
# The Python tests that need a GPU, on a machine whose Python is not that of the machine that built the library, and that
# may have neither Highway nor a network.
#
#   tools/gpu_python.sh pack BUILD                      where libtandem was built in BUILD: writes BUILD/python_gpu
#   tools/gpu_python.sh test BUILD [PYTEST_OPTION...]   where the GPU is, with BUILD/python_gpu there
#   tools/gpu_python.sh eager BUILD [OPTION...]         bench/eager_overhead.py --device cuda
#   tools/gpu_python.sh train BUILD [OPTION...]         bench/train.py
#   tools/gpu_python.sh errors BUILD [OPTION...]        bench/errors.py --device cuda
#
# pack puts the installed libtandem, the command line if it was built, Highway's library, and nanobind (of $PYTHON,
# python3 by default) into BUILD/python_gpu. test compiles the module (python/) against them, with the python3 that has
# torch and the headers of Python, and runs the tests marked `cuda`; a GPU that is missing is a failure. eager, train
# and errors compile the module if test has not. ($PYTHON names another python3.)
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2; }
[ $# -ge 2 ] || usage
command=$1
folder=$2/python_gpu
python=${PYTHON:-python3}

pack() { # BUILD
  local library hwy
  rm -rf "$folder"
  cmake --install "$1" --prefix "$folder/install" --component library --strip >/dev/null
  library=$(echo "$folder"/install/lib*/libtandem.so)
  hwy=$(ldd "$library" | sed -n 's/.*libhwy\.so[^ ]* => \([^ ]*\) .*/\1/p')
  [ -z "$hwy" ] || cp -L "$hwy" "$(dirname "$library")/$(objdump -p "$library" | sed -n 's/ *NEEDED *\(libhwy.*\)/\1/p')"
  mkdir "$folder/install/bin"
  [ ! -x "$1/cli/tandem" ] || install -s "$1/cli/tandem" "$folder/install/bin"
  cp -r "$("$python" -c 'import nanobind, pathlib; print(pathlib.Path(nanobind.__file__).parent)')" "$folder/nanobind"
  find "$folder" -name __pycache__ -exec rm -rf {} +
  du -sh "$folder"
}

build_module() {
  local site=$folder/site/tandem file
  cmake -S python -B "$folder/module" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" \
    -DCMAKE_PREFIX_PATH="$PWD/$folder/install" -Dnanobind_ROOT="$PWD/$folder/nanobind/cmake" --log-level=WARNING
  cmake --build "$folder/module"
  mkdir -p "$site"
  for file in python/tandem/*; do
    ln -sfn "$PWD/$file" "$site/$(basename "$file")"
  done
  cp "$folder"/module/_core.*.so "$site/"
}

run_python() { # ARGUMENT...
  local library program=$PWD/$folder/install/bin/tandem
  library=$(dirname "$(echo "$PWD/$folder"/install/lib*/libtandem.so)")
  [ ! -x "$program" ] || export TANDEM_CLI=$program
  TANDEM_REQUIRE_GPU=1 LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$PWD/$folder/site \
    PYTHONDONTWRITEBYTECODE=1 "$python" "$@"
}

need_module() { compgen -G "$folder/site/tandem/_core.*.so" >/dev/null || build_module; }

case $command in
  pack) pack "$2" ;;
  test)
    [ -d "$folder/install" ] || { echo "gpu_python: $folder/install is missing: run 'tools/gpu_python.sh pack' first" >&2; exit 1; }
    build_module
    run_python -m pytest -q -p no:cacheprovider -m cuda --durations=5 "${@:3}" tests/python/test_cuda_*.py
    ;;
  eager)
    need_module
    run_python bench/eager_overhead.py --device cuda "${@:3}"
    ;;
  train)
    need_module
    run_python bench/train.py --device cuda "${@:3}"
    ;;
  errors)
    need_module
    run_python bench/errors.py --device cuda "${@:3}"
    ;;
  *) usage ;;
esac
