// What the emulator counted: exact numbers where a GPU would need a profiler.
//
// Global-memory traffic comes as three numbers, and a formula says which one it means:
//   issued               every load or store of every thread
//   distinct per block   each byte once per block: what caches and shared memory inside a block can save at
//   best distinct per launch  each byte once per launch: what an L2 that never misses twice leaves for memory
// Plain loads and stores are seen through the compiler's instrumentation, after optimisation: exact counts
// are stated for one compiler at -O2. Where the hooks are off (hooks_enabled() is false) the byte counts of
// plain loads and stores stay zero; what the runtime does itself (atomics, cp.async, ldmatrix) is counted
// always.
#pragma once

#include <cstdint>

namespace flash::simt {

struct Counters {
    std::uint64_t launches = 0;
    std::uint64_t global_load_bytes_issued = 0;
    std::uint64_t global_load_bytes_distinct_per_block = 0;
    std::uint64_t global_load_bytes_distinct_per_launch = 0;
    std::uint64_t global_store_bytes_issued = 0;  // atomics count here, not as loads
    std::uint64_t global_store_bytes_distinct_per_block = 0;
    std::uint64_t global_store_bytes_distinct_per_launch = 0;
    std::uint64_t shared_load_bytes = 0;
    std::uint64_t shared_store_bytes = 0;
    std::uint64_t cp_async_bytes = 0;         // read from global memory by cp.async; also in the loads above
    std::uint64_t mma = 0;                    // warp instructions
    std::uint64_t ldmatrix = 0;               // warp instructions
    std::uint64_t shared_bank_conflicts = 0;  // extra passes over shared memory of ldmatrix and cp.async
    std::uint64_t exp2 = 0;                   // calls of exp2_approx, per thread
    std::uint64_t barriers = 0;               // __syncthreads completed, per block
    std::uint64_t atomics = 0;                // per thread
};

Counters last_launch();  // of the latest launch that ended without an error
Counters total();        // since the start or the latest reset()
void reset();

// True when device code in this build is instrumented, so that the emulator sees its plain loads and stores.
bool hooks_enabled();

}  // namespace flash::simt
