// The emulator's own state, for its .cpp files alone. One machine per process; launches take turns.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/counters.hpp"
#include "common/simt/runtime.hpp"

namespace flash::simt {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kWarp = 32;
inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kSharedReserve = std::size_t{1} << 20;  // address room around shared memory
inline constexpr std::size_t kSharedCapacity = std::size_t{256} * 1024;
inline constexpr std::size_t kStackBytes = std::size_t{256} * 1024;

// What is known about 64 bytes of device memory, one bit per byte. Stores include atomics.
struct alignas(64) Line {
    std::uint64_t valid;                       // inside an allocation, once touched
    std::uint64_t written;                     // by the host or by any kernel since
    std::uint64_t load_block, load_earlier;    // by this block, by earlier blocks of the launch
    std::uint64_t store_block, store_earlier;  // likewise
    std::uint64_t plain_stores;                // of this launch, by something else than an atomic
    std::uint64_t block_serial;                // what "this block" means above
};

// The latest write and the latest read of 2 bytes of shared or device memory. Both words hold a time stamp in
// the upper 20 bits and a thread in the lower 10; time is the number of barriers so far, so stamps of a block
// that has ended are old.
struct Cell {
    std::uint32_t write;  // flags: kByAtomic; kInFlight, whose stamp is kMaxStamp
    std::uint32_t read;   // flags: kReadByWarp (several threads of one warp), kReadByBlock (of several warps)
};
inline constexpr std::uint32_t kThreadMask = 0x3ff;
inline constexpr std::uint32_t kInFlight = 0x400, kByAtomic = 0x800;
inline constexpr std::uint32_t kReadByWarp = 0x400, kReadByBlock = 0x800;
inline constexpr std::uint32_t kStampShift = 12, kMaxStamp = (1u << 20) - 1;

// Device memory: one reserved address range, and what is known about it. Allocations lie far apart.
struct Arena {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    Line* lines = nullptr;  // one for every 64 bytes
    Cell* cells = nullptr;  // one for every 2 bytes
};
extern Arena arena;

// The bits of a line for bytes of it that begin at an address.
inline std::uint64_t bits_of_line(std::uintptr_t address, std::size_t bytes) {
    return (~std::uint64_t{0} >> (kLineBytes - bytes)) << (address % kLineBytes);
}
std::uint64_t allocated_bits_of_line(std::uintptr_t address);

enum class State : std::uint8_t { kFresh, kReady, kAtBarrier, kAtMbarrier, kAtWarpOperation, kExited };

// For each warp, the time before which its accesses are ordered before those of a thread that has waited at
// mbarriers.
struct Acquired {
    std::uint32_t before[kMaxThreads / kWarp] = {};
};

// What stands behind the 8 bytes of an mbarrier.
struct Mbarrier {
    int arrivals = 0;  // that complete a phase
    int pending = 0;
    int phase = 0;             // the current one
    std::uint32_t warps = 0;   // that have arrived in it
    Acquired released;         // by all phases so far
    std::vector<int> waiting;  // thread ids
};

struct PendingCopy {
    std::uint32_t shared_offset;
    int bytes;
    const void* source;
    std::uint64_t group;
};

// One access of a thread, until the warp's accesses are counted.
struct NotedAccess {
    const void* site;  // the instruction
    std::uintptr_t address;
    std::uint32_t bytes;
    bool is_load;
};

struct Thread {
    boost::context::detail::fcontext_t context = nullptr;
    std::byte* stack = nullptr;  // lowest address; null before the start and after the end
    uint3 index{};
    int id = 0;
    State state = State::kFresh;
    const char* operation = nullptr;  // what it waits at, its mask and its place
    std::uint32_t mask = 0;
    Site site{};
    void* operand = nullptr;  // of the warp operation it waits at, on its own stack
    Acquired acquired;
    std::vector<PendingCopy> copies;
    std::uint64_t committed_groups = 0;
    std::vector<NotedAccess> accesses;  // since the warp's were counted
    void* asan_fake_stack = nullptr;
};

struct Warp {
    std::uint32_t ready = 0;    // lanes that can run
    std::uint32_t waiting = 0;  // lanes at a warp operation
    std::uint32_t stamp = 0;    // time of the latest __syncwarp of the whole warp
};

struct Machine {
    // Read by every hook.
    std::uintptr_t stack_begin = 0;  // of the running thread
    std::uintptr_t shared_begin = 0;
    std::size_t shared_bytes = 0;
    std::uint32_t stamp = 0, block_stamp = 0,
                  block_start = 0;  // time: now, latest block barrier, start of the block
    std::uint32_t warp_stamp = 0;
    const Acquired* acquired = nullptr;  // by the running thread
    std::uint32_t order_stamp = 0;       // latest block barrier or mbarrier phase
    std::uint32_t thread_id = 0;
    std::uint64_t block_serial = 0, launch_serial = 0;  // first block of the launch
    Cell* cells = nullptr;
    bool notes_accesses = false;  // inside count()
    const void* site = nullptr;   // the instruction whose access is being looked at, while it is
    Counters counters;

    Launch launch{};
    int thread_count = 0;
    int live = 0, at_barrier = 0;
    std::map<std::uint32_t, Mbarrier> mbarriers;  // by shared offset
    Thread* running = nullptr;
    Thread threads[kMaxThreads];
    Warp warps[kMaxThreads / kWarp];
    boost::context::detail::fcontext_t scheduler = nullptr;
    void* asan_fake_stack = nullptr;
    const void* asan_scheduler_stack = nullptr;
    std::size_t asan_scheduler_bytes = 0;
    std::string error;                                          // the launch is lost once this is set
    std::vector<std::pair<std::uint32_t, uint3>> block_starts;  // stamp and index of this launch's blocks
};
extern Machine machine;

// The machine while kernel code runs on this OS thread, else null: then the hooks return at once.
extern constinit thread_local Machine* active __attribute__((tls_model("initial-exec")));

// While it lives, the hooks are off: the runtime's own memory is no business of the kernel's checks.
struct RuntimeScope {
    RuntimeScope() : outside(std::exchange(active, nullptr)) {}
    ~RuntimeScope() { active = outside; }
    RuntimeScope(const RuntimeScope&) = delete;
    RuntimeScope& operator=(const RuntimeScope&) = delete;

  private:
    Machine* outside;
};

inline Warp& running_warp() {
    return machine.warps[machine.running->id / kWarp];
}

// Ends the launch with an error about the running thread. Its fiber is dropped where it stands, without
// destructors, so the text is made by the scheduler: describe() returns it.
[[noreturn]] void fail_with(std::string (*describe)(const void*), const void* closure);
template <class Describe> [[noreturn]] void fail(const Describe& describe) {
    fail_with([](const void* closure) -> std::string { return (*static_cast<const Describe*>(closure))(); },
              &describe);
}
// Fibers. A dropped one is never resumed; its stack is used again.
void start_fiber(Thread& thread);
void drop_fiber(Thread& thread);
void switch_to_thread(Thread& thread);
void switch_to_scheduler(Thread& thread);
// Lets other threads run until somebody makes this one ready.
void suspend(State state);
void make_ready(Thread& thread);

enum class Access { kRead, kWrite, kAtomic };
// Checks and counts one aligned access of the running thread by the instruction at `site`, whatever memory it
// goes to.
void check_access(std::uintptr_t address, std::size_t bytes, Access access, const void* site);
// Collects what the threads of a warp access, and counts it warp instruction by warp instruction.
void note_access(std::uintptr_t address, std::size_t bytes, Access access, const void* site);
void count_warp_accesses(int warp);

// Where an address lies, in words, for messages.
std::string describe_address(std::uintptr_t address);
std::string describe_device_address(std::uintptr_t address);
std::string symbol_name(const void* function);
std::string source_line(const void* site);  // "attention.cu:87", or nothing
std::string index_name(const uint3& index);
std::string thread_name(const Thread& thread);
std::string hex(std::uintptr_t value);

// A new point in time: accesses before it are ordered before those after it, for the block or for one warp.
std::uint32_t advance_time();

// Forgets what a thread of the block before has issued and never waited for.
void abandon_copies(Thread& thread);

void* reserve(
    std::size_t bytes);  // address room that reads as zeros and takes memory when written; null on failure
void init_memory();
std::size_t shared_memory_limit();

}  // namespace flash::simt
