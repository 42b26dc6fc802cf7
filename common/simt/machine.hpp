// The emulator's own state, for its .cpp files alone. One machine per process; launches take turns.
#pragma once

#include <algorithm>
#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/simt/counters.hpp"
#include "common/simt/runtime.hpp"

namespace flash::simt {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kWarp = 32;
inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kSharedCapacity = std::size_t{256} * 1024;
inline constexpr std::size_t kSharedRoom = std::size_t{1} << 20;  // addresses around and of shared memory
inline constexpr std::size_t kStackBytes = std::size_t{256} * 1024;

// False where plain accesses are not seen, so that nothing is known about what was written.
#if defined(FLASH_STEPS_ASAN)
inline constexpr bool kHooks = false;
#else
inline constexpr bool kHooks = true;
#endif

// ---- Memory

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
// the upper 20 bits and a thread in the lower 10; time goes on at every barrier and start of a block, so
// stamps of a block that has ended are old.
struct Cell {
    std::uint32_t write;  // flags: kByAtomic; kInFlight, whose stamp is kMaxStamp
    std::uint32_t read;   // flags: kReadByWarp (several threads of one warp), kReadByBlock (of several warps)
};
inline constexpr std::uint32_t kThreadMask = 0x3ff;
inline constexpr std::uint32_t kInFlight = 0x400, kByAtomic = 0x800;
inline constexpr std::uint32_t kReadByWarp = 0x400, kReadByBlock = 0x800;
inline constexpr std::uint32_t kStampShift = 12, kMaxStamp = (1u << 20) - 1;

// The addresses of emulated memory, and what is known about each. First comes shared memory, in the middle of
// its room, then device memory.
struct Arena {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    Line* lines = nullptr;  // one for every 64 bytes
    Cell* cells = nullptr;  // one for every 2 bytes
};
extern Arena arena;
void reserve_arena();  // unless that has been done

inline Line* line_at(std::uintptr_t address) {
    return arena.lines + (address - arena.begin) / kLineBytes;
}
inline Cell* cell_at(std::uintptr_t address) {
    return arena.cells + (address - arena.begin) / 2;
}
// body(address, bytes) for the part of a range in each of its lines.
template <class Body> void for_each_line(std::uintptr_t address, std::size_t bytes, Body body) {
    for (const std::uintptr_t end = address + bytes; address < end;) {
        const std::size_t part = std::min(end - address, kLineBytes - address % kLineBytes);
        body(address, part);
        address += part;
    }
}
// The bits of a line for bytes of it that begin at an address.
inline std::uint64_t bits_of_line(std::uintptr_t address, std::size_t bytes) {
    return (~std::uint64_t{0} >> (kLineBytes - bytes)) << (address % kLineBytes);
}
std::uint64_t allocated_bits_of_line(std::uintptr_t address);

enum class Kind : std::uint8_t { kRead, kWrite, kAtomic };
struct Access {
    std::uintptr_t address;
    std::size_t bytes;
    Kind kind;
    const void* site;  // the instruction, or null
};
// Checks, notes and counts an access of the running thread, whatever memory it goes to.
void check_access(const Access& access);
[[noreturn]] void fail_misaligned(const Access& access);

// A new point in time: accesses before it are ordered before those after it, for the block or for one warp.
std::uint32_t advance_time();

// ---- Threads

enum class State : std::uint8_t { kReady, kAtBarrier, kAtMbarrier, kAtWarpOperation, kExited };

// For each warp, a time: what its threads did before then happened before what is done now.
using Clock = std::array<std::uint32_t, kMaxThreads / kWarp>;

// What stands behind the 8 bytes of an mbarrier.
struct Mbarrier {
    int arrivals = 0;  // that complete a phase
    int pending = 0;
    int phase = 0;             // the current one
    std::uint32_t warps = 0;   // that have arrived in it
    Clock released{};          // by all phases so far, to those who wait
    std::vector<int> waiting;  // thread ids
};

struct PendingCopy {
    std::uint32_t shared_offset;
    int bytes;
    const void* source;
    std::uint64_t group;
};

struct Thread {
    boost::context::detail::fcontext_t context = nullptr;
    std::byte* stack = nullptr;  // lowest address; null before the start and after the end
    uint3 index{};
    int id = 0;
    State state = State::kReady;
    const char* operation = nullptr;  // what it waits at, its place and its mask
    Site site{};
    std::uint32_t mask = 0;
    void* operand = nullptr;  // the mbarrier, or what it brings to the warp operation, on its own stack
    Clock before{};           // what it has waited for, at barriers of any kind
    std::vector<PendingCopy> copies;
    std::uint64_t committed_groups = 0;
    std::vector<Access> accesses;  // since the warp's were counted
};
// Threads meet where they wait at the same operation in the same place.
inline bool same_place(const Thread& a, const Thread& b) {
    return a.state == b.state && a.operation == b.operation && a.site.line == b.site.line &&
           (a.site.file == b.site.file || std::strcmp(a.site.file, b.site.file) == 0);
}

struct Warp {
    std::uint32_t ready = 0;    // lanes that can run
    std::uint32_t waiting = 0;  // lanes at a warp operation
    std::uint32_t stamp = 0;    // time of the latest __syncwarp of the whole warp
};

struct Machine {
    // Read at every access.
    std::uintptr_t stack_begin = 0;  // of the running thread
    std::uintptr_t shared_begin = 0;
    std::size_t shared_bytes = 0;
    std::uint32_t thread_id = 0;    // of the running thread
    std::uint32_t stamp = 0;        // the time now
    std::uint32_t order_stamp = 0;  // latest block barrier or mbarrier phase
    std::uint32_t block_stamp = 0;  // latest block barrier
    std::uint32_t block_start = 0;
    std::uint64_t block_serial = 0, launch_serial = 0;  // first block of the launch
    bool notes_accesses = false;                        // inside count()
    Counters counters;

    Launch launch{};
    std::span<Thread> threads;                                  // of a block of this launch
    std::size_t live = 0;                                       // threads that have not left the kernel
    std::map<std::uint32_t, Mbarrier> mbarriers;                // by shared offset
    std::vector<std::pair<std::uint32_t, uint3>> block_starts;  // stamp and index of this launch's blocks
    std::string error;                                          // the launch is lost once this is set

    Thread* running = nullptr;
    Thread all_threads[kMaxThreads];
    Warp warps[kMaxThreads / kWarp];

    int warp_count() const { return (static_cast<int>(threads.size()) + kWarp - 1) / kWarp; }
};
extern Machine machine;

// True while kernel code runs on this OS thread; otherwise the hooks return at once.
extern constinit thread_local bool in_kernel __attribute__((tls_model("initial-exec")));

// While it lives, the hooks are off: the runtime's own memory is no business of the kernel's checks.
struct RuntimeScope {
    RuntimeScope() : outside(std::exchange(in_kernel, false)) {}
    ~RuntimeScope() { in_kernel = outside; }
    RuntimeScope(const RuntimeScope&) = delete;
    RuntimeScope& operator=(const RuntimeScope&) = delete;

  private:
    bool outside;
};

inline Warp& running_warp() {
    return machine.warps[machine.thread_id / kWarp];
}
inline Thread* lanes_of_warp(int warp) {
    return machine.all_threads + warp * kWarp;
}
inline std::uint32_t lanes_in_use(int warp) {
    return ~0u >> (kWarp - std::min(kWarp, static_cast<int>(machine.threads.size()) - warp * kWarp));
}

// Fibers. A dropped one is never resumed; its stack is used again.
void start_fiber(Thread& thread);
void drop_fiber(Thread& thread);
void switch_to_thread(Thread& thread);
void switch_to_scheduler(Thread& thread);

// Says where the running thread stops; then switch_to_scheduler() lets others run until somebody makes it
// ready.
Thread& stop_at(State state, const char* operation, Site site, void* operand);
void make_ready(Thread& thread);

// Forgets what a thread of the block before has issued and never waited for.
void abandon_copies(Thread& thread);

// ---- Counters

// Puts the noted accesses of a warp's lanes together and counts them.
void note_access(const Access& access);
void count_warp_accesses(int warp);
// At the start of a launch; and when it has ended without an error.
void begin_counting();
void add_to_totals();

// ---- Errors

// The launch ends with this sentence about a thread.
void report(const Thread& thread, const void* site, const std::string& what);
// The same about the running thread, whose fiber is dropped where it stands, without destructors: describe()
// makes the text here so that it leaves nothing behind.
template <class Describe> [[noreturn]] void fail(const void* site, const Describe& describe) {
    in_kernel = false;
    report(*machine.running, site, describe());
    for (;;) switch_to_scheduler(*machine.running);
}

// In words, for messages.
std::string describe_address(std::uintptr_t address);
std::string kernel_name(const void* kernel);
std::string source_line(const void* site);  // "attention.cu:87", or nothing
std::string index_name(const uint3& index);
std::string thread_name(const Thread& thread);
std::string hex(std::uintptr_t value);

}  // namespace flash::simt
