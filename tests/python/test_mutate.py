"""tools/mutate.py: which statements it takes out, and what it writes of them."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
mutate = importlib.import_module("mutate")

SOURCE = """
// release(barrier);
template <int kStages>
TANDEM_DEVICE void wait(uint32_t full, PipelineState<kStages> state) {
  ptx::mbarrier_wait(barrier_at(full, state.index), state.phase);
}
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, (Smem<Traits>::kBlocks))
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


ACCESSES = """
TANDEM_DEVICE void hand(uint32_t barrier) {
  if (lane > 0) ptx::mbarrier_arrive(barrier);
}
TANDEM_DEVICE float read() { return ptx::load_shared<float>(0); }
TANDEM_DEVICE void write(uint32_t place) { ptx::store_shared(place, 1.0f); }
TANDEM_DEVICE void all() {
  write(0);  // past the fence
  float x = read();
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    write(i);
  }
  read();  // is not fenced
  ptx::fence_proxy_async_shared();
  const auto last = [&] {
    if (x > 0) write(1);
    read();
    hand(barrier_at(full, stage));
  };
  write(2);
  while (x > 1) hand(0);
  compute(read());
  take_turn<Traits>(w);
  hand(0);
  write(3);
}
"""


def test_accesses_are_moved_past_what_hands_them_over() -> None:
    code = mutate.blanked(ACCESSES)
    moves = mutate.Moves({"file": code})
    assert [
        (mutate.shown(code[begin:end]), mutate.shown(code[past:after]))
        for begin, end, past, after in sorted(moves.of("file"))
    ] == [
        ("write(0);", "ptx::fence_proxy_async_shared();"),
        ("TANDEM_UNROLL for (int i = 0; i < 2; ++i) { ... }", "ptx::fence_proxy_async_shared();"),
        ("if (x > 0) write(1);", "hand(barrier_at(full, stage));"),
        ("read();", "hand(barrier_at(full, stage));"),
    ]


def test_an_access_that_is_moved() -> None:
    text = "{ write(a,  // why\n    b); fence(); }"
    begin, end = text.index("write"), text.index(" fence")
    place = mutate.Place("kernel", "file", "f", "write(a, b);", begin, end, "fence();", len(text) - 2, number=7)
    assert mutate.changed(text, [place]) == (
        "{ { if (::tandem::model::kept(7)) { write(a,  // why\n    b); } } "
        "fence(); { if (!::tandem::model::kept(7)) { write(a, b); } } }"
    )


def test_rows_are_read_as_they_are_written() -> None:
    place = mutate.Place("kernel", "file", "f", "if (a || b) write(0);", 0, 1, "fence();", 2, nth=2)
    row = mutate.row_of(place, mutate.Findings(runs=3, named=3))
    assert mutate.rows_of(row) == {place.key: row}


def test_copies_keep_their_lines(tmp_path: Path) -> None:
    mutate.write_overlay(tmp_path)
    places = mutate.places()
    assert [place.number for place in places] == list(range(len(places)))
    assert len({place.key for place in places}) == len(places)
    for file in {place.file for place in places}:
        copy = (tmp_path / "sm90" / file).read_text(encoding="utf-8")
        source = (mutate.ROOT / "src/sm90" / file).read_text(encoding="utf-8")
        assert copy.count("\n") == source.count("\n")
        asked = sum(2 if place.past else 1 for place in places if place.file == file)
        assert copy.count("::tandem::model::kept(") == asked


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
