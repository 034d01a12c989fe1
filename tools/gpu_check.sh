#!/usr/bin/env bash
# Checks on a machine with a Hopper GPU, in parts of under 8 minutes each, for machines that are lent by the minute.
#
#   tools/gpu_check.sh [--build FOLDER] [--log FILE] [--commit HASH] [--again] [--bench 'OPTIONS OF compare.py'] PART...
#
#   unit       every wrapper of src/sm90/ptx against the ISA; what this GPU gives is kept for the host model (golden file)
#   op         the kernels against double attention
#   sanitizer  compute-sanitizer over both: accesses within bounds, nothing read unwritten, barriers used rightly
#              (not racecheck: docs/SCHEDULE.md says what it makes of mbarriers)
#   bench      speed beside PyTorch's attention, by bench/compare.py (python3 with torch); its lines of results go to the
#              end of bench/results/forward.jsonl, from which tools/figures.py writes the documents
#
# The programs come from FOLDER/tests/gpu (default: build), the library from FOLDER, made here or elsewhere; if they are
# not there and nvcc is, they are built first. The log (default: FOLDER/gpu_check.log) gets a line for each part: date,
# commit, part, result, seconds. A part that has passed with the same programs, says the log, is not run again, unless
# --again: so take the log along from one machine to the next, and bring home tests/model/golden and bench/results.
# --commit: of the programs, where there is no git to ask.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

build=build
log=
again=no
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
bench_options='--cells table,fp16,gqa,headdims,packed,masks --libraries tandem,cudnn,fa2,fa3,flex'
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --log) log=$2; shift 2 ;;
    --commit) commit=$2; shift 2 ;;
    --again) again=yes; shift ;;
    --bench) bench_options=$2; shift 2 ;;
    unit | op | sanitizer | bench) parts+=("$1"); shift ;;
    *) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(unit op sanitizer bench)
programs=$build/tests/gpu
log=${log:-$build/gpu_check.log}
export TANDEM_REQUIRE_GPU=1

die() { echo "gpu_check: $*" >&2; exit 1; }

build_programs() {
  [ -x "$programs/gpu_wrapper_test" ] && return
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || die "no programs in $programs, and no nvcc to build them"
  cmake -S . -B "$build" -DTANDEM_CUDA=ON -DTANDEM_BUILD_CLI=OFF >/dev/null || die 'cmake failed'
  cmake --build "$build" -j "$(nproc)" --target tandem gpu_wrapper_test gpu_forward_test wrapper_bits >/dev/null ||
    die 'the build failed'
}

# The parts are called by name.
# shellcheck disable=SC2317
part_unit() {
  "$programs/gpu_wrapper_test" --gtest_brief=1 &&
    "$programs/wrapper_bits" --seed 7 --output tests/model/golden/wrappers_seed7.bin
}

# shellcheck disable=SC2317
part_op() { "$programs/gpu_forward_test" --gtest_brief=1; }

# shellcheck disable=SC2317
part_sanitizer() {
  local tool program
  for tool in memcheck initcheck synccheck; do
    for program in gpu_wrapper_test gpu_forward_test; do
      echo "-- $tool $program"
      compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/$program" --gtest_brief=1 \
        --gtest_filter=-Forward.SameBitsEveryTime || return 1
    done
  done
}

# shellcheck disable=SC2317
part_bench() {
  mkdir -p bench/results
  # shellcheck disable=SC2086 # several words
  python3 bench/compare.py --library "$build/libtandem.so" --commit "$commit" --output bench/results/forward.jsonl \
    $bench_options
}

build_programs
mkdir -p tests/model/golden
fingerprint=$(cat "$programs"/{gpu_wrapper_test,gpu_forward_test,wrapper_bits} "$build/libtandem.so" | sha256sum | cut -c1-16)
failed=0
for part in "${parts[@]}"; do
  if [ $again = no ] && grep -q " $part passed .*$fingerprint" "$log" 2>/dev/null; then
    echo "$part: passed before with these programs"
    continue
  fi
  begin=$SECONDS
  echo "== $part"
  if timeout 480 bash -c "$(declare -f "part_$part"); $(declare -p programs build commit bench_options); part_$part"; then
    result=passed
  else
    result=failed
    failed=1
  fi
  echo "$(date -u +%FT%TZ) $commit $part $result $((SECONDS - begin))s $fingerprint" | tee -a "$log"
done
exit $failed
