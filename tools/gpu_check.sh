#!/usr/bin/env bash
# Checks on a machine with a Hopper GPU, in parts of under 8 minutes each, for machines that are lent by the minute.
#
#   tools/gpu_check.sh [--build FOLDER] [--log FILE] [--commit HASH] [--again] [--bench 'OPTIONS OF compare.py'] PART...
#
#   unit       every wrapper of src/sm90/ptx against the ISA; what this GPU gives is kept for the host model (golden file)
#   op         the operator tests of the forward in every instance of the kernels, side by side in one process for each
#              core, then what takes most of the memory; with TANDEM_GPU_QUICK=1 a part of them, in less than a minute
#   fp8        the same of the forward in e4m3, which the part op leaves out; a refusal is a fault
#   quantize   the quantiser's: its operator tests, bits, graphs, sizes; the test program has it before the library does
#   backward   the operator tests with gradients, in the same way. It begins with a list of what the backend
#              differentiates; the rest is skipped, or a fault if TANDEM_REQUIRE_BACKWARD says so (64,128,192/128,
#              deterministic, all, none; tests/gpu/op_targets.h)
#   sanitizer  compute-sanitizer over both: accesses within bounds, nothing read unwritten, barriers used rightly
#              (not racecheck: docs/SCHEDULE.md says what it makes of mbarriers)
#   python     the Python tests marked `cuda`, with the module compiled on this machine; tools/gpu_python.sh says what must
#              have been packed for it; what an eager call costs goes to the end of bench/results/eager_overhead.jsonl
#   train      a small model trained through tandem.torch and through PyTorch's attention (bench/train.py), with what the
#              part `python` needs; its lines of results go to the end of bench/results/training.jsonl
#   bench      speed beside PyTorch's attention, by bench/compare.py (python3 with torch); its lines of results go to the
#              end of bench/results/forward.jsonl, from which tools/figures.py writes the documents
#   bench-backward  the same of the backward, and of forward and backward together; bench/results/backward.jsonl
#   bench-fp8  the same of the forward in e4m3, beside bf16; bench/results/forward_fp8.jsonl
#   bench-quantize  the quantiser beside a plain copy (bench/quantize.py), once the library offers it;
#              bench/results/quantize.jsonl
#   errors     how far attention is from double (bench/errors.py), with what the part `python` needs; its lines go to the
#              end of bench/results/errors_cuda.jsonl
#
# The programs come from FOLDER/tests/gpu (default: build), the library from FOLDER, made here or elsewhere; if they are
# not there and nvcc is, they are built first. The log (default: FOLDER/gpu_check.log) gets a line for each part: date,
# commit, part, result, seconds. A part that has passed with the same programs, says the log, is not run again, unless
# --again: so take the log along from one machine to the next, and bring home tests/model/golden and bench/results.
# --commit: of the programs, where there is no git to ask. --bench: other options of compare.py in the parts bench (in
# place of the usual cells and libraries), bench-backward and bench-fp8 (after the usual ones), such as controls by
# --other.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

build=build
log=
again=no
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
bench_options=
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --log) log=$2; shift 2 ;;
    --commit) commit=$2; shift 2 ;;
    --again) again=yes; shift ;;
    --bench) bench_options=$2; shift 2 ;;
    unit | op | fp8 | quantize | backward | sanitizer | python | train | bench | bench-backward | bench-fp8 | bench-quantize | errors) parts+=("$1"); shift ;;
    *) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(unit op fp8 quantize backward sanitizer python train bench bench-backward bench-fp8 bench-quantize errors)
programs=$build/tests/gpu
log=${log:-$build/gpu_check.log}
export TANDEM_REQUIRE_GPU=1

die() { echo "gpu_check: $*" >&2; exit 1; }

build_programs() {
  [ -x "$programs/gpu_wrapper_test" ] && return
  [[ " ${parts[*]} " =~ ' '(unit|op|fp8|quantize|backward|sanitizer)' ' ]] || return 0
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || die "no programs in $programs, and no nvcc to build them"
  cmake -S . -B "$build" -DTANDEM_CUDA=ON -DTANDEM_BUILD_CLI=OFF >/dev/null || die 'cmake failed'
  cmake --build "$build" -j "$(nproc)" --target tandem wrapper_bits gpu_wrapper_test gpu_merge_test \
    gpu_backward_rows_test gpu_backend_test gpu_op_test >/dev/null || die 'the build failed'
}

# The parts are called by name.
# shellcheck disable=SC2317
part_unit() {
  "$programs/gpu_wrapper_test" --gtest_brief=1 &&
    "$programs/wrapper_bits" --seed 7 --output tests/model/golden/wrappers_seed7.bin
}

# gpu_op_test in a process for each core: run_shards NAME FILTER
# shellcheck disable=SC2317
run_shards() {
  local name=$1 filter=$2 shards index status=0 pids=()
  shards=$(nproc)
  [ "$shards" -le 16 ] || shards=16
  rm -f "$build/gpu_$name"_*.log
  for ((index = 0; index < shards; ++index)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$index "$programs/gpu_op_test" --gtest_brief=1 \
      --gtest_filter="$filter" >"$build/gpu_${name}_$index.log" 2>&1 &
    pids+=($!)
  done
  for index in "${!pids[@]}"; do
    wait "${pids[$index]}" && continue
    status=1
    echo "-- of $build/gpu_${name}_$index.log:"
    grep -m 2 -A 8 ': Failure' "$build/gpu_${name}_$index.log" | cut -c1-600
    grep '^\[  FAILED  \]' "$build/gpu_${name}_$index.log" | sort -u | head -12
    grep 'has not ended' "$build/gpu_${name}_$index.log"
  done
  awk '/ ran\. / {tests += $2} /  SKIPPED / {skipped += $4} END {print tests + 0 " tests in '"$shards"' processes, " skipped + 0 " skipped"}' \
    "$build/gpu_$name"_*.log
  return "$status"
}

# shellcheck disable=SC2317
part_op() {
  local status=0
  export TANDEM_FORWARD_ONLY=1
  "$programs/gpu_merge_test" --gtest_brief=1 || status=1
  "$programs/gpu_backend_test" --gtest_brief=1 || status=1
  run_shards op '-*Beyond31Bits.*:*Backward*:*e4m3*:*Fp8*:*Quantize*' || status=1
  if [ "${TANDEM_GPU_QUICK:-0}" != 1 ]; then
    "$programs/gpu_op_test" --gtest_brief=1 --gtest_filter=Beyond31Bits.* || status=1
  fi
  return "$status"
}

# shellcheck disable=SC2317
part_fp8() {
  local status=0
  export TANDEM_FORWARD_ONLY=1 TANDEM_REQUIRE_FP8=1
  run_shards fp8 '*e4m3*:*Fp8*-*Beyond31Bits.*:*Backward*' || status=1
  if [ "${TANDEM_GPU_QUICK:-0}" != 1 ]; then
    "$programs/gpu_op_test" --gtest_brief=1 --gtest_filter=Fp8Beyond31Bits.* || status=1
  fi
  return "$status"
}

# shellcheck disable=SC2317
part_quantize() {
  local status=0
  run_shards quantize '*Quantize*-*Beyond31Bits.*' || status=1
  if [ "${TANDEM_GPU_QUICK:-0}" != 1 ]; then
    "$programs/gpu_op_test" --gtest_brief=1 --gtest_filter=QuantizeBeyond31Bits.* || status=1
  fi
  return "$status"
}

# shellcheck disable=SC2317
part_backward() {
  local status=0 suites='*Backward*:*/Contract.*:*/ContractRules.*:*/Case*:*/NumericRange.*:*/GradientRange.*'
  "$programs/gpu_backward_rows_test" --gtest_brief=1 || status=1
  "$programs/gpu_op_test" --list_backward_targets || status=1
  run_shards backward "$suites-BackwardBeyond31Bits.*:*e4m3*" || status=1
  if [ "${TANDEM_GPU_QUICK:-0}" != 1 ]; then
    "$programs/gpu_op_test" --gtest_brief=1 --gtest_filter=BackwardBeyond31Bits.* || status=1
  fi
  return "$status"
}

# shellcheck disable=SC2317
part_sanitizer() {
  local tool program filter
  export TANDEM_GPU_QUICK=1 TANDEM_TEST_COUNT=10
  for tool in memcheck initcheck synccheck; do
    for program in gpu_wrapper_test gpu_merge_test gpu_backward_rows_test gpu_op_test; do
      filter='*'
      [ "$program" != gpu_op_test ] || filter='*/Contract.*:*/Quantize.RandomProblems/*:*/RandomProblems.Of*Tiles/0:*/RandomProblems.OfEveryLayout/0:*/BackwardRandom.Of*Tiles/0:*/BackwardRandom.OfEveryLayout/0'
      echo "-- $tool $program"
      compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/$program" --gtest_brief=1 \
        --gtest_filter="$filter" || return 1
    done
  done
}

# shellcheck disable=SC2317
part_python() {
  tools/gpu_python.sh test "$build" &&
    tools/gpu_python.sh eager "$build" --commit "$commit" --output bench/results/eager_overhead.jsonl
}

# shellcheck disable=SC2317
part_bench() {
  mkdir -p bench/results
  # shellcheck disable=SC2086 # several words
  python3 bench/compare.py --library "$build/libtandem.so" --commit "$commit" --output bench/results/forward.jsonl \
    ${bench_options:---cells table,fp16,gqa,headdims,packed,masks --libraries tandem,cudnn,fa2,fa3,flex}
}

# shellcheck disable=SC2317
part_bench-backward() {
  local run=(python3 bench/compare.py --library "$build/libtandem.so" --commit "$commit"
    --output bench/results/backward.jsonl --deterministic --cells table --libraries 'tandem,cudnn,fa2,fa3')
  mkdir -p bench/results
  # shellcheck disable=SC2086 # several words
  "${run[@]}" --ops backward $bench_options && "${run[@]}" --ops forward_backward --runs 1 $bench_options
}

# shellcheck disable=SC2317
part_bench-fp8() {
  mkdir -p bench/results
  # shellcheck disable=SC2086 # several words
  python3 bench/compare.py --library "$build/libtandem.so" --commit "$commit" --output bench/results/forward_fp8.jsonl \
    --cells fp8 --libraries 'tandem,cudnn,cudnn-graph,fa3' $bench_options
}

# shellcheck disable=SC2317
part_bench-quantize() {
  mkdir -p bench/results
  python3 bench/quantize.py --library "$build/libtandem.so" --commit "$commit" --output bench/results/quantize.jsonl
}

# shellcheck disable=SC2317
part_errors() {
  mkdir -p bench/results
  tools/gpu_python.sh errors "$build" --output bench/results/errors_cuda.jsonl
}

# shellcheck disable=SC2317
part_train() {
  mkdir -p bench/results
  tools/gpu_python.sh train "$build" --commit "$commit" --output bench/results/training.jsonl
}

build_programs
mkdir -p tests/model/golden
fingerprint=$(cat "$programs"/{wrapper_bits,gpu_wrapper_test,gpu_merge_test,gpu_backward_rows_test,gpu_backend_test,gpu_op_test} "$build"/{,python_gpu/install/lib/}libtandem.so 2>/dev/null | sha256sum | cut -c1-16)
failed=0
for part in "${parts[@]}"; do
  name=$part
  [ "${TANDEM_GPU_QUICK:-0}" != 1 ] || name=quick-$part
  if [ $again = no ] && grep -q " $name passed .*$fingerprint" "$log" 2>/dev/null; then
    echo "$part: passed before with these programs"
    continue
  fi
  begin=$SECONDS
  echo "== $part"
  if timeout 480 bash -c "$(declare -f "part_$part" run_shards); $(declare -p programs build commit bench_options); part_$part"; then
    result=passed
  else
    result=failed
    failed=1
  fi
  echo "$(date -u +%FT%TZ) $commit $name $result $((SECONDS - begin))s $fingerprint" | tee -a "$log"
done
exit $failed
