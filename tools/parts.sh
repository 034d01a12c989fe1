# Sourced by ./run and .ci/run: a script made of named parts that says how long each took and stops at the first failure.
# shellcheck shell=bash
set -euo pipefail

parts_title=$(basename "$0")
parts_lines=()
part_name=
part_started=0
parts_scratch= # a folder to remove at the end

# part NAME COMMAND [ARGUMENT...]
part() {
  part_name=$1
  part_started=$SECONDS
  shift
  printf '\n==> %s\n' "$part_name"
  # Not inside an if or ||: bash would switch errexit off in everything the command calls.
  "$@"
  parts_lines+=("$(printf '%6d s  %s' $((SECONDS - part_started)) "$part_name")")
  part_name=
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Compilers are run through ccache, where it is. Build folders directly below the root, with the same options, have the
# same objects: those of a clone elsewhere too.
use_ccache() { # ROOT
  command -v ccache >/dev/null || return 0
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$1
}

# With these the Python package's objects are those of build/.
# shellcheck disable=SC2034
settings_of_build=(--config-settings cmake.define.CMAKE_CXX_COMPILER="${CXX:-c++}"
  --config-settings cmake.define.TANDEM_WERROR=ON --config-settings cmake.define.TANDEM_PTXAS_REPORT=ON)

parts_report() {
  local status=$? failed=0
  [ -z "$parts_scratch" ] || rm -rf "$parts_scratch"
  [ "${#parts_lines[@]}" -gt 0 ] || [ -n "$part_name" ] || exit "$status"
  printf '\n%s: time of each part\n' "$parts_title"
  [ "${#parts_lines[@]}" -eq 0 ] || printf '%s\n' "${parts_lines[@]}"
  if [ -n "$part_name" ]; then
    printf '%6d s  %s: FAILED (exit status %d)\n' $((SECONDS - part_started)) "$part_name" "$status"
    failed=1
  fi
  printf '%6d s  in all\n' "$SECONDS"
  printf 'parts: %d passed, %d failed\n' "${#parts_lines[@]}" "$failed"
  exit "$status"
}
trap parts_report EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
