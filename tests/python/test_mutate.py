"""tools/mutate.py: which statements it takes out, and what it writes of them."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "tools/mutate.py"
SPEC = importlib.util.spec_from_file_location("mutate", PATH)
mutate = importlib.util.module_from_spec(SPEC)
sys.modules["mutate"] = mutate
SPEC.loader.exec_module(mutate)

SOURCE = """
// release(barrier);
template <int kStages>
TANDEM_DEVICE void wait(uint32_t full, PipelineState<kStages> state) {
  ptx::mbarrier_wait(barrier_at(full, state.index), state.phase);
}
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, 1)
    some_kernel(const TANDEM_GRID_CONSTANT Params params) {
  if (lane == 0) ptx::bulk_wait_read<0>();
  const auto finish = [&] { ptx::wgmma_wait<1>(); };
  if constexpr (kTurns) take_turn<Traits>(w); else pass_turn<Traits>(w);
  while (!ptx::mbarrier_test(barrier, 0)) reader_.release_by_warp();  // no loop without ptx::warp_sync();
  ptx::mbarrier_arrive_if(
      barrier_at(full, stage), lane == 0);
  ptx::wgmma_fence_operand(acc);
}
"""


def test_statements() -> None:
    found = [" ".join(SOURCE[begin:end].split()) for begin, end in mutate.statements(SOURCE)]
    assert found == [
        "ptx::mbarrier_wait(barrier_at(full, state.index), state.phase);",
        "ptx::bulk_wait_read<0>();",
        "ptx::wgmma_wait<1>();",
        "take_turn<Traits>(w);",
        "pass_turn<Traits>(w);",
        "reader_.release_by_warp();",
        "ptx::mbarrier_arrive_if( barrier_at(full, stage), lane == 0);",
    ]


def test_functions() -> None:
    names = [mutate.function_at(SOURCE, begin) for begin, _ in mutate.statements(SOURCE)]
    assert names == ["wait"] + ["some_kernel"] * 6


def test_copies_keep_their_lines(tmp_path: Path) -> None:
    mutate.write_overlay(tmp_path)
    places = mutate.places()
    assert [place.number for place in places] == list(range(len(places)))
    assert len({place.key for place in places}) == len(places)
    for file in {place.file for place in places}:
        copy = (tmp_path / "sm90" / file).read_text(encoding="utf-8")
        source = (mutate.ROOT / "src/sm90" / file).read_text(encoding="utf-8")
        assert copy.count("\n") == source.count("\n")
        assert copy.count("::tandem::model::kept(") == sum(place.file == file for place in places)


@pytest.mark.parametrize(
    ("message", "short"),
    [
        (
            "block 0, warpgroup 1, warp 4 (consumer 0), thread 128, wgmma at attend.cuh:70 (issue_qk): "
            "16 bytes at k[0] of shared memory, to which a copy is under way",
            "consumer 0, wgmma in issue_qk: 16 bytes at k[0] of shared memory, to which a copy is under way",
        ),
        ("nobody can go on\nblock 0:\n", "nobody can go on"),
    ],
)
def test_messages_are_shortened(message: str, short: str) -> None:
    assert mutate.shortened(message) == short
