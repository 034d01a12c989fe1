// Who may touch memory after whom: whatever orders accesses makes them right, and where nothing does the model says so,
// however the run went.

#include "sm90/ptx/cluster.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/ptx/warp.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

constexpr uint32_t kBarrier = kBase;
constexpr uint32_t kOther = kBase + 8;
constexpr uint32_t kData = kBase + 1024;
constexpr uint64_t kSeeds = 5;

using Order = std::function<void()>;

// Each seed must give the same verdict.
void expect_race(const std::function<RunResult(Machine&)>& run, const std::string& words) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Options options;
    options.seed = seed;
    Machine machine(options);
    expect_report(run(machine), ReportKind::kRace, words);
  }
}
void expect_order(const std::function<RunResult(Machine&)>& run) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Options options;
    options.seed = seed;
    Machine machine(options);
    expect_finished(run(machine));
  }
}

void init_barriers(uint32_t arrivals) {
  if (ptx::thread_rank() == 0) {
    ptx::mbarrier_init(kBarrier, arrivals);
    ptx::mbarrier_init(kOther, arrivals);
    ptx::fence_mbarrier_init();
  }
  ptx::block_sync();
}

// Thread 0 writes, does `release`; thread 32 does `acquire`, and reads.
std::function<RunResult(Machine&)> hand_over(Order release, Order acquire) {
  return [=](Machine& machine) {
    return run_micro(machine, {64}, [=] {
      init_barriers(1);
      if (ptx::thread_rank() == 0) {
        ptx::store_shared(kData, 7u);
        release();
      }
      if (ptx::thread_rank() == 32) {
        acquire();
        EXPECT_EQ(ptx::load_shared<uint32_t>(kData), 7u);
      }
    });
  };
}

TEST(Order, AnMbarrierHandsOver) {
  const Order arrive = [] { ptx::mbarrier_arrive(kBarrier); };
  const Order wait = [] { ptx::mbarrier_wait(kBarrier, 0); };
  expect_order(hand_over(arrive, wait));
  expect_order(hand_over(arrive, [] {
    while (!ptx::mbarrier_test(kBarrier, 0)) {
    }
  }));
  // By way of a second one, whose phase the first waiter completes.
  expect_order([](Machine& machine) {
    return run_micro(machine, {96}, [] {
      init_barriers(1);
      if (ptx::thread_rank() == 0) {
        ptx::store_shared(kData, 7u);
        ptx::mbarrier_arrive(kBarrier);
      } else if (ptx::thread_rank() == 32) {
        ptx::mbarrier_wait(kBarrier, 0);
        ptx::mbarrier_arrive(kOther);
      } else if (ptx::thread_rank() == 64) {
        ptx::mbarrier_wait(kOther, 0);
        ptx::load_shared<uint32_t>(kData);
      }
    });
  });
}

// The reader sees the value by luck only: it waits for something else.
TEST(Order, AnotherBarrierDoesNot) {
  const auto run = [](Machine& machine) {
    return run_micro(machine, {96}, [] {
      init_barriers(1);
      if (ptx::thread_rank() == 0) ptx::store_shared(kData, 7u);
      if (ptx::thread_rank() == 64) ptx::mbarrier_arrive(kOther);
      if (ptx::thread_rank() == 32) {
        ptx::mbarrier_wait(kOther, 0);
        ptx::store_shared(kData, 8u);
      }
    });
  };
  expect_race(run, "4 bytes at shared 0x800 of shared memory, written in store_shared at order_test.cpp");
}

// A write after a read: nothing is lost, but the reader may see either.
TEST(Order, AReadBeforeAWrite) {
  const auto run = [](bool release) {
    return [=](Machine& machine) {
      return run_micro(machine, {64}, [=] {
        init_barriers(1);
        if (ptx::thread_rank() == 0) {
          ptx::store_shared(kData, 7u);
          ptx::mbarrier_arrive(kBarrier);
          if (release) ptx::mbarrier_wait(kOther, 0);
          ptx::store_shared(kData, 8u);
        } else if (ptx::thread_rank() == 32) {
          ptx::mbarrier_wait(kBarrier, 0);
          ptx::load_shared<uint32_t>(kData);
          ptx::mbarrier_arrive(kOther);
        }
      });
    };
  };
  expect_order(run(true));
  expect_race(run(false), "no barrier orders that before");
}

// One lane arrives for the warp: the others must have come first, by warp_sync(). A shuffle orders no memory.
TEST(Order, ALaneThatArrivesForItsWarp) {
  const auto run = [](Order gather) {
    return [=](Machine& machine) {
      return run_micro(machine, {64}, [=] {
        init_barriers(1);
        const auto lane = static_cast<uint32_t>(ptx::lane_index());
        if (ptx::thread_rank() < 32) {
          ptx::store_shared(kData + 4 * lane, lane);
          gather();
          ptx::mbarrier_arrive_if(kBarrier, lane == 0);
        } else {
          ptx::mbarrier_wait(kBarrier, 0);
          ptx::load_shared<uint32_t>(kData + 4 * (31 - lane));
        }
      });
    };
  };
  expect_order(run([] { ptx::warp_sync(); }));
  expect_race(run([] {}), "written in store_shared");
  expect_race(run([] { ptx::shuffle_xor(1u, 1); }), "written in store_shared");
}

// Those who arrive at a named barrier hand over; only those who sync take.
TEST(Order, NamedBarriers) {
  const auto run = [](bool reader_syncs) {
    return [=](Machine& machine) {
      return run_micro(machine, {64}, [=] {
        const bool writes = ptx::warp_index() == 0;
        if (writes && ptx::lane_index() == 0) ptx::store_shared(kData, 7u);
        if (writes == reader_syncs) {
          ptx::named_barrier_arrive(1, 64);
        } else {
          ptx::named_barrier_sync(1, 64);
        }
        if (!writes) ptx::store_shared(kData + 4 * static_cast<uint32_t>(ptx::lane_index()), 8u);
      });
    };
  };
  expect_order(run(true));
  expect_race(run(false), "store_shared");
}

// Bytes that lie side by side are different places.
TEST(Order, NeighboursDoNotRace) {
  expect_order([](Machine& machine) {
    return run_micro(machine, {64},
                     [] { ptx::store_shared(kData + 4 * static_cast<uint32_t>(ptx::thread_rank()), 1u); });
  });
}

TEST(Order, AcrossACluster) {
  const auto run = [](bool wait) {
    return [=](Machine& machine) {
      return run_micro(machine, {32, 2, 2}, [=] {
        const uint32_t own = ptx::dynamic_shared_base();
        if (ptx::lane_index() == 0) ptx::store_shared(own, 1u);
        if (wait) {
          ptx::cluster_arrive();
          ptx::cluster_wait();
        }
        if (ptx::lane_index() == 0) ptx::store_cluster_shared(ptx::map_shared(own, 1 - ptx::cluster_rank()), 2u);
        ptx::cluster_arrive();
        ptx::cluster_wait();
      });
    };
  };
  expect_order(run(true));
  expect_race(run(false), "4 bytes at shared 0x400");
}

// A copy has landed, and who reads it has not waited for that.
TEST(Order, ACopyThatHasLanded) {
  const auto run = [](bool wait) {
    return [=](Machine& machine) {
      const auto* source = machine.global().upload("source", std::vector<uint32_t>(16, 7));
      return run_micro(machine, {64}, [=] {
        init_barriers(1);
        if (ptx::thread_rank() == 0) {
          ptx::mbarrier_arrive_expect_tx(kBarrier, 64);
          ptx::bulk_load(kData, source, 64, kBarrier);
          ptx::mbarrier_wait(kBarrier, 0);
        } else if (ptx::thread_rank() == 32) {
          if (wait) ptx::mbarrier_wait(kBarrier, 0);
          ptx::store_shared(kData, 1u);
        }
      });
    };
  };
  expect_order(run(true));
  expect_race(run(false), "at shared 0x800 of shared memory");
}

// A fence counts once a barrier has told of it: one that comes after the barrier comes too late, even where the writer
// has ended by then.
TEST(Order, AFenceAfterTheBarrier) {
  const auto run = [](bool told) {
    Machine machine(Options{});
    auto* target = machine.global().allocate("target", 16);
    return run_micro(machine, {64}, [=] {
      init_barriers(1);
      if (ptx::thread_rank() == 0) {
        ptx::store_shared(kData, uint64_t{1});
        ptx::store_shared(kData + 8, uint64_t{1});
        ptx::mbarrier_arrive(kBarrier);
        ptx::fence_proxy_async_shared();
        ptx::mbarrier_arrive(kOther);
      } else if (ptx::thread_rank() == 32) {
        ptx::mbarrier_wait(kBarrier, 0);
        if (told) ptx::mbarrier_wait(kOther, 0);
        for (int i = 0; i < 1'000; ++i) ptx::mbarrier_test(kBarrier, 1);
        ptx::bulk_store(target, kData, 16);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
      }
    });
  };
  expect_finished(run(true));
  expect_report(run(false), ReportKind::kMissingProxyFence, "written in store_shared");
}

// A staging buffer, filled and sent twice: by a store, or by a reduction onto the same sums.
std::function<RunResult(Machine&)> send_twice(bool reduce, Order wait) {
  return [=](Machine& machine) {
    auto* target = machine.global().upload("target", std::vector<float>(16, 0.0f));
    return run_micro(machine, {1}, [=] {
      for (int round = 0; round < 2; ++round) {
        for (uint32_t i = 0; i < 16; ++i) ptx::store_shared(kData + 4 * i, 1.0f);
        ptx::fence_proxy_async_shared();
        if (reduce) {
          ptx::bulk_reduce_add_f32(target, kData, 64);
        } else {
          ptx::bulk_store(target, kData, 64);
        }
        ptx::bulk_commit();
        wait();
      }
      ptx::bulk_wait<0>();
      EXPECT_EQ(ptx::load_global(target + 3), reduce ? 2.0f : 1.0f);
    });
  };
}

TEST(Order, AStagingBufferThatIsFilledAgain) {
  const Order read = [] { ptx::bulk_wait_read<0>(); };
  const Order written = [] { ptx::bulk_wait<0>(); };
  expect_order(send_twice(true, read));
  expect_order(send_twice(true, written));
  expect_order(send_twice(false, written));
  expect_race(send_twice(true, [] {}), "a bulk store reads; nobody has waited for that");
  expect_race(send_twice(false, [] {}), "a bulk store reads; nobody has waited for that");
}

// Two stores in one place come in any order, unless the first is waited for until it is written; reductions may.
TEST(Order, TwoStoresInOnePlace) {
  expect_race(send_twice(false, [] { ptx::bulk_wait_read<0>(); }), "at target + 0, written in bulk_store");
}

// Blocks talk through a flag. `release` and `acquire` get it; block 0 writes before, block 1 reads after.
std::function<RunResult(Machine&)> talk(std::function<void(uint32_t*)> release,
                                        std::function<void(uint32_t*)> acquire) {
  return [=](Machine& machine) {
    auto* flag = machine.global().upload("flag", std::vector<uint32_t>(1, 0));
    auto* data = static_cast<uint32_t*>(machine.global().allocate("data", 4));
    return run_micro(machine, {1, 2}, [=] {
      if (ptx::block_index() == 0) {
        ptx::store_global(data, 7u);
        release(flag);
      } else {
        acquire(flag);
        EXPECT_EQ(ptx::load_global(data), 7u);
      }
    });
  };
}

TEST(Order, Flags) {
  const auto acquire = [](uint32_t* flag) {
    while (ptx::load_acquire(flag) == 0) {
    }
  };
  const auto relaxed = [](uint32_t* flag) {
    while (ptx::atomic_add(flag, 0) == 0) {
    }
  };
  const auto add = [](uint32_t* flag) { ptx::atomic_add(flag, 1); };
  const auto fenced_add = [](uint32_t* flag) {
    ptx::fence_gpu();
    ptx::atomic_add(flag, 1);
  };
  expect_order(talk([](uint32_t* flag) { ptx::store_release(flag, 1); }, acquire));
  expect_order(talk([](uint32_t* flag) { ptx::reduce_add_release(flag, 1); }, acquire));
  expect_order(talk(fenced_add, acquire));
  expect_order(talk(fenced_add, [=](uint32_t* flag) {
    relaxed(flag);
    ptx::fence_gpu();
  }));
  expect_race(talk(add, acquire), "4 bytes at data + 0, written in store_global");
  expect_race(talk(fenced_add, relaxed), "4 bytes at data + 0, written in store_global");
  expect_race(talk([](uint32_t* flag) { ptx::store_global(flag, 1u); }, acquire), "at flag + 0");
}

// What a reduction has written another block may read once its issuer has waited for it and set a flag.
TEST(Order, AReductionAndAFlag) {
  const auto run = [](bool written) {
    return [=](Machine& machine) {
      auto* sums = machine.global().upload("sums", std::vector<float>(4, 1.0f));
      auto* flag = machine.global().upload("flag", std::vector<uint32_t>(1, 0));
      return run_micro(machine, {1, 2}, [=] {
        if (ptx::block_index() == 0) {
          for (uint32_t i = 0; i < 4; ++i) ptx::store_shared(kData + 4 * i, 1.0f);
          ptx::fence_proxy_async_shared();
          ptx::bulk_reduce_add_f32(sums, kData, 16);
          ptx::bulk_commit();
          if (written) {
            ptx::bulk_wait<0>();
          } else {
            ptx::bulk_wait_read<0>();
          }
          ptx::store_release(flag, 1);
        } else {
          while (ptx::load_acquire(flag) == 0) {
          }
          for (int i = 0; i < 1'000; ++i) ptx::load_acquire(flag);
          EXPECT_EQ(ptx::load_global(sums), 2.0f);
        }
      });
    };
  };
  expect_order(run(true));
  expect_race(run(false), "at sums + 0, written in bulk_reduce_add_f32");
}

// Two blocks add to the same place: atomically, so that they need no order, unless the sum is to have its bits.
TEST(Order, SumsInOrder) {
  const auto run = [](bool in_order, bool acquire, bool fence) {
    return [=](Machine& machine) {
      auto* sums = machine.global().upload("sums", std::vector<float>(4, 1.0f));
      auto* flag = machine.global().upload("flag", std::vector<uint32_t>(1, 0));
      if (in_order) machine.global().sum_in_order(sums, 16);
      return run_micro(machine, {1, 2}, [=] {
        while (acquire && ptx::block_index() == 1 && ptx::load_acquire(flag) == 0) {
        }
        for (uint32_t i = 0; i < 4; ++i) ptx::store_shared(kData + 4 * i, 1.0f);
        if (fence) {
          ptx::fence_proxy_async();
        } else {
          ptx::fence_proxy_async_shared();
        }
        ptx::bulk_reduce_add_f32(sums, kData, 16);
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
        if (ptx::block_index() == 0) ptx::store_release(flag, 1);
      });
    };
  };
  expect_order(run(true, true, true));
  expect_order(run(false, false, false));
  expect_race(run(true, false, true), "at sums + 0, written in bulk_reduce_add_f32");
  Machine machine(Options{});
  expect_report(run(true, true, false)(machine), ReportKind::kMissingProxyFence, "acquired a flag");
}

TEST(Order, BarriersAreInitializedFirst) {
  const auto run = [](bool sync, bool fence) {
    Machine machine(Options{});
    const auto* source = machine.global().upload("source", std::vector<uint32_t>(4, 7));
    return run_micro(machine, {64}, [=] {
      if (ptx::thread_rank() == 0) {
        ptx::mbarrier_init(kBarrier, 1);
        if (fence) ptx::fence_mbarrier_init();
      }
      if (sync) ptx::block_sync();
      if (ptx::thread_rank() == 33) {
        ptx::mbarrier_arrive_expect_tx(kBarrier, 16);
        ptx::bulk_load(kData, source, 16, kBarrier);
        ptx::mbarrier_wait(kBarrier, 0);
      }
    });
  };
  expect_finished(run(true, true));
  expect_report(run(true, false), ReportKind::kMissingProxyFence, "neither fence_mbarrier_init()");
  expect_report(run(false, true), ReportKind::kBarrierMisuse, "initialized");
}

// Waits of one thread: for each phase, once, in turn.
RunResult wait_for(const std::vector<uint32_t>& parities, int arrivals_before) {
  Machine machine(Options{});
  machine.names().mbarrier("full", kBarrier, 1, true);
  return run_micro(machine, {1}, [=] {
    ptx::mbarrier_init(kBarrier, 1);
    for (int i = 0; i < arrivals_before; ++i) ptx::mbarrier_arrive(kBarrier);
    for (const uint32_t parity : parities) ptx::mbarrier_wait(kBarrier, parity);
  });
}

TEST(Phases, AreWaitedForOnce) {
  expect_report(wait_for({0, 0}, 1), ReportKind::kWrongPhase, "full[0], parity 0: the thread's last wait was");
  expect_report(wait_for({1, 1}, 0), ReportKind::kWrongPhase, "for phase -1");
}

TEST(Phases, AreNotSkipped) {
  expect_report(wait_for({0}, 2), ReportKind::kWrongPhase, "phase 0 has been over for a whole phase");
}

// Of 4 warpgroups, in which order they take the numbers of a counter.
std::vector<int> order_under(Bias bias) {
  Options options;
  options.bias = bias;
  Machine machine(options);
  auto* counter = machine.global().upload("counter", std::vector<uint32_t>(1, 0));
  std::vector<int> order;
  expect_finished(run_micro(machine, {512}, [&] {
    for (int i = 0; i < 5; ++i) {
      ptx::atomic_add(counter, 1);
      if (ptx::lane_index() == 0) order.push_back(ptx::thread_rank() / 128);
    }
  }));
  return order;
}

TEST(Bias, FavouredAndStarved) {
  Bias bias;
  bias.favoured = 2;
  const std::vector<int> favoured = order_under(bias);
  for (size_t i = 0; i < favoured.size(); ++i) EXPECT_EQ(favoured[i] == 2, i < 20) << i;
  bias.favoured = -1;
  bias.starved = 1;
  const std::vector<int> starved = order_under(bias);
  for (size_t i = 0; i < starved.size(); ++i) EXPECT_EQ(starved[i] == 1, i >= starved.size() - 20) << i;
}

// A copy comes when nobody can go on without.
TEST(Bias, LateCompletions) {
  Options options;
  options.bias.late = true;
  Machine machine(options);
  const auto* source = machine.global().upload("source", std::vector<uint32_t>(4, 7));
  auto* counter = machine.global().upload("counter", std::vector<uint32_t>(1, 0));
  expect_finished(run_micro(machine, {64}, [&] {
    init_barriers(1);
    if (ptx::thread_rank() == 0) {
      ptx::mbarrier_arrive_expect_tx(kBarrier, 16);
      ptx::bulk_load(kData, source, 16, kBarrier);
      ptx::mbarrier_wait(kBarrier, 0);
      EXPECT_EQ(ptx::atomic_add(counter, 1), 32 * 500u);
    } else if (ptx::thread_rank() >= 32) {
      for (int i = 0; i < 500; ++i) ptx::atomic_add(counter, 1);
    }
  }));
}

// Threads that poll for what a starved warpgroup must do do not keep it from doing it.
TEST(Bias, PollingEnds) {
  Options options;
  options.bias.starved = 1;
  options.bias.late = true;
  Machine machine(options);
  auto* flag = machine.global().upload("flag", std::vector<uint32_t>(1, 0));
  expect_finished(run_micro(machine, {256}, [&] {
    if (ptx::thread_rank() == 128) ptx::store_release(flag, 1);
    while (ptx::thread_rank() < 128 && ptx::load_acquire(flag) == 0) {
    }
  }));
}

}  // namespace
}  // namespace tandem::model
