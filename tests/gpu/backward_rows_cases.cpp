#include "backward_rows_case.h"

namespace tandem::gpu_test {

std::vector<RowsCase> rows_cases() {
  std::vector<RowsCase> cases;
  const auto add = [&cases](const char* name, const std::function<void(RowsCase&)>& change) {
    RowsCase test;
    test.name = name;
    test.seed = cases.size() + 1;
    change(test);
    if (test.tiles_row() >= 0) cases.push_back(test);
  };
  for (const int64_t headdim : {8, 64, 72, 96, 128, 192, 200, 256}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      add("every head dim", [&](RowsCase& t) {
        t.headdim = t.headdim_v = headdim;
        t.dtype = dtype;
        t.dlse = dtype == DType::kFp16;
      });
    }
  }
  const auto pack = [](RowsCase& t) {  // gaps before and behind, sequences without rows, without keys, without both
    t.cu_seqlens_q = {5, 5, 140, 140, 141, 230, 230};
    t.cu_seqlens_k = {3, 60, 61, 70, 70, 150, 150};
    t.total_q = 240;
    t.total_k = 290;
  };
  add("head dims that differ", [](RowsCase& t) { t.headdim_v = 128; });
  add("head dims that differ", [](RowsCase& t) { t.headdim = 128; });
  add("rows apart", [](RowsCase& t) { t.padding = 8; });
  add("heads before rows", [](RowsCase& t) { t.head_major = true; });
  add("used lengths", [](RowsCase& t) {
    t.batch = 4;
    t.seqused_q = {70, 0, 64, 1000};
    t.seqused_k = {90, 90, 0, -5};
    t.dlse = true;
  });
  add("infinite LSE", [](RowsCase& t) { t.infinite_lse = t.dlse = t.sink = true; });
  add("no rows", [](RowsCase& t) { t.seqlen_q = 0; });
  add("no rows, a sink", [](RowsCase& t) { t.seqlen_q = 0, t.sink = true; });
  add("causal, more rows than keys", [](RowsCase& t) { t.mask.causal = true, t.seqlen_q = 100, t.dlse = true; });
  add("sink", [](RowsCase& t) { t.sink = t.dlse = t.mask.causal = true, t.seqlen_q = 140; });
  add("window, sink", [](RowsCase& t) { t.sink = true, t.mask.window_left = 9, t.mask.window_right = 3; });
  add("intervals", [](RowsCase& t) { t.lo = t.hi = true; });
  add("intervals from below", [](RowsCase& t) { t.lo = t.mask.causal = true, t.headdim = t.headdim_v = 128; });
  add("intervals from above, used lengths", [](RowsCase& t) {
    t.hi = true;
    t.seqused_q = {70, 30};
    t.seqused_k = {90, 17};
    t.mask.attention_chunk = 32;
  });
  add("packed", pack);
  add("packed, fp16", [&](RowsCase& t) {
    pack(t);
    t.seqused_k = {57, 0, 9, 0, 80, 0};
    t.dtype = DType::kFp16;
    t.headdim = t.headdim_v = 128;
  });
  add("packed, everything", [&](RowsCase& t) {
    pack(t);
    t.seqused_q = {0, 100, 0, 1, 89, 0};
    t.seqused_k = {57, 1, 9, 0, 33, 0};
    t.lo = t.hi = t.sink = t.dlse = t.head_major = true;
    t.mask.window_left = 40;
    t.padding = 16;
  });
  add("packed, offsets of no order", [](RowsCase& t) {
    t.cu_seqlens_q = {-7, 90, 30, 500, 100};
    t.cu_seqlens_k = {20, 10, 80, 40, 1000};
    t.total_q = 130;
    t.total_k = 95;
    t.seqused_q = {50, 100, -1, 5};
  });
  add("packed, many sequences", [](RowsCase& t) {
    t.nheads_q = 1;
    t.headdim = t.headdim_v = 8;
    for (int i = 0; i <= 1100; ++i) {
      t.cu_seqlens_q.push_back(i / 100);
      t.cu_seqlens_k.push_back(i / 4);
    }
    t.total_q = 20;
    t.total_k = 300;
  });
  add("packed, no sequences", [](RowsCase& t) {
    t.cu_seqlens_q = t.cu_seqlens_k = {0};
    t.total_q = 70;
    t.total_k = 80;
    t.sink = true;
  });
  return cases;
}

}  // namespace tandem::gpu_test
