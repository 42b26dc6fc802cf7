// What the emulator counted: exact numbers where a GPU would need a profiler.
//
// Global-memory traffic comes as three numbers, and a formula says which one it means:
//   issued               every load or store of every thread
//   distinct per block   each byte once per block: at best, what caches and shared memory inside a block save
//   distinct per launch  each byte once per launch: what an L2 that never misses twice leaves for memory
// A request is one load or store instruction of one warp, the accesses of its 32 lanes together: lanes meet
// in one request by instruction and by how often each has executed it since the warp's latest operation of 32
// lanes or __syncthreads. Device memory serves a request in sectors of 32 bytes: 4 for 32 neighbouring
// floats, 32 when they lie far apart.
// Shared memory serves it in passes: it has 32 banks of 4 bytes, and a pass takes one word of each (any
// number of lanes may share the word). 32 lanes with up to 4 bytes each are one pass at best, 16 with 8
// bytes, 8 with 16; passes beyond that are bank conflicts.
//
// Plain loads and stores are seen through the compiler's instrumentation, after optimisation: exact counts
// are stated for one compiler at -O2. Where the hooks are off (hooks_enabled() is false) plain loads and
// stores are not counted, and no bytes, requests or sectors of device memory at all. Always counted are
// operations, cp_async_bytes, and what the runtime itself does in shared memory (atomics, cp.async,
// ldmatrix).
#pragma once

#include <cstdint>
#include <functional>

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
    std::uint64_t cp_async_bytes = 0;   // read from global memory by cp.async; also in the loads above
    std::uint64_t mma = 0;              // warp instructions
    std::uint64_t ldmatrix = 0;         // warp instructions
    std::uint64_t exp2 = 0;             // exponentials, per thread: exp2_approx, __expf and expf
    std::uint64_t barriers = 0;         // __syncthreads completed, per block
    std::uint64_t mbarrier_phases = 0;  // completed, per mbarrier
    std::uint64_t atomics = 0;          // per thread

    // Grouping lanes takes time, so these stay zero outside of count(). ldmatrix and atomics are included,
    // and cp.async in the global loads and the shared stores.
    std::uint64_t global_load_requests = 0, global_load_sectors = 0;
    std::uint64_t global_store_requests = 0, global_store_sectors = 0;
    std::uint64_t shared_load_requests = 0, shared_store_requests = 0;
    std::uint64_t shared_bank_conflicts = 0;
};

// Runs the call with everything counted, and returns what its launches add up to.
Counters count(const std::function<void()>& call);

Counters last_launch();  // of the latest launch that ended without an error
Counters total();        // since the start or the latest reset()
void reset();

// True when device code in this build is instrumented, so that the emulator sees its plain loads and stores.
bool hooks_enabled();

}  // namespace flash::simt
