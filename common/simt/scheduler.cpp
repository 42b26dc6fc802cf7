// Runs a grid: one fiber per thread, block by block, on the OS thread that called launch().
//
// A fiber runs until it waits for other threads or ends. Warps are picked in a seeded random order, lanes of
// a warp in ascending order. When no fiber can run and some still wait, the block is stuck: that is an error,
// never a hang.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "common/gpu/launch_checks.hpp"
#include "common/simt/control.hpp"
#include "common/simt/machine.hpp"
#include "common/whole_number.hpp"

namespace flash::simt {

BuiltIns built_ins;
Machine machine;
constinit thread_local Machine* active __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

std::mutex launch_mutex;
std::size_t shared_limit = kDefaultSharedLimit;
Counters last, sum;
std::atomic<int> counting{0};  // calls of count() under way

std::uint64_t& chosen_seed() {
    static std::uint64_t value = whole_number_from_environment("FLASH_STEPS_SIMT_SEED", 0);
    return value;
}

// splitmix64
struct Random {
    std::uint64_t state;
    std::uint64_t next() {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
};

struct Failure {
    std::string (*describe)(const void*) = nullptr;
    const void* closure = nullptr;
};
Failure failure;  // of the fiber that has just called fail()

void set_error(const Thread& thread, const std::string& what) {
    const std::string line = source_line(machine.site);
    machine.error = "kernel " + symbol_name(machine.launch.kernel) + ", block " +
                    index_name(built_ins.block_idx) + ", " + thread_name(thread) +
                    (line.empty() ? "" : ", " + line) + ": " + what + " [warp order seed " +
                    std::to_string(chosen_seed()) + "]";
}

void resume(Thread& thread) {
    if (thread.state == State::kFresh) start_fiber(thread);
    thread.state = State::kReady;
    machine.running = &thread;
    machine.thread_id = static_cast<std::uint32_t>(thread.id);
    machine.stack_begin = reinterpret_cast<std::uintptr_t>(thread.stack);
    machine.warp_stamp = running_warp().stamp;
    machine.acquired = &thread.acquired;
    built_ins.thread_idx = thread.index;
    switch_to_thread(thread);
    if (failure.describe != nullptr) {
        const Failure latest = std::exchange(failure, {});
        set_error(thread, latest.describe(latest.closure));
    } else if (thread.state == State::kExited) {
        drop_fiber(thread);
        --machine.live;
    }
}

// "thread (3,0,0) waits at __syncthreads (attention.cu:31)", or what else it does.
std::string doing(const Thread& thread) {
    if (thread.state == State::kExited) return thread_name(thread) + " has left the kernel";
    return thread_name(thread) + " waits at " + thread.operation + " (" + thread.site.file + ":" +
           std::to_string(thread.site.line) + ")";
}

bool same_place(const Thread& a, const Thread& b) {
    return a.state == b.state && a.operation == b.operation && a.site.line == b.site.line &&
           std::strcmp(a.site.file, b.site.file) == 0;
}

// Why the operation that a thread waits at never completes; empty when nothing speaks against it.
std::string why_stuck(const Thread& waiting) {
    if (waiting.state == State::kAtMbarrier) {
        for (const auto& [offset, barrier] : machine.mbarriers) {
            if (std::find(barrier.waiting.begin(), barrier.waiting.end(), waiting.id) !=
                barrier.waiting.end())
                return std::to_string(barrier.arrivals - barrier.pending) + " of " +
                       std::to_string(barrier.arrivals) + " arrivals have come";
        }
    }
    const bool in_warp = waiting.state == State::kAtWarpOperation;
    const int first = in_warp ? waiting.id / kWarp * kWarp : 0;
    const int count = in_warp ? kWarp : machine.thread_count;
    for (int i = 0; i < count; ++i) {
        if (in_warp && (waiting.mask >> i & 1u) == 0) continue;
        if (first + i >= machine.thread_count)
            return "the block has no lane " + std::to_string(i) + " in this warp";
        const Thread& other = machine.threads[first + i];
        if (!same_place(waiting, other)) return doing(other);
        if (waiting.mask != other.mask) return thread_name(other) + " names another mask";
    }
    return {};
}

// Nothing can run: names a thread that waits and what keeps it waiting.
void report_stuck_block() {
    for (const State state : {State::kAtWarpOperation, State::kAtMbarrier, State::kAtBarrier}) {
        for (int i = 0; i < machine.thread_count; ++i) {
            const Thread& thread = machine.threads[i];
            const std::string reason = thread.state == state ? why_stuck(thread) : "";
            if (!reason.empty()) return set_error(thread, doing(thread) + " for ever: " + reason);
        }
    }
    set_error(machine.threads[0], "no thread of the block can go on");
}

// When every thread of the block waits at the same barrier, all of them go on.
bool release_barrier() {
    if (machine.at_barrier != machine.thread_count) return false;
    for (int i = 1; i < machine.thread_count; ++i) {
        if (!same_place(machine.threads[0], machine.threads[i])) return false;
    }
    machine.at_barrier = 0;
    machine.order_stamp = machine.block_stamp = advance_time();
    ++machine.counters.barriers;
    for (int i = 0; i < machine.thread_count; ++i) {
        make_ready(machine.threads[i]);
    }
    for (int w = 0; w * kWarp < machine.thread_count; ++w) count_warp_accesses(w);
    return true;
}

void run_warp(Warp& warp, int first_thread) {
    while (warp.ready != 0 && machine.error.empty()) {
        const int lane = std::countr_zero(warp.ready);
        warp.ready &= ~(1u << lane);
        resume(machine.threads[first_thread + lane]);
    }
}

void begin_block() {
    machine.order_stamp = machine.block_stamp = machine.block_start = advance_time();
    machine.block_starts.emplace_back(machine.block_start, built_ins.block_idx);
    ++machine.block_serial;
    machine.live = machine.thread_count;
    machine.at_barrier = 0;
    machine.mbarriers.clear();
    std::memset(reinterpret_cast<void*>(machine.shared_begin), 0xff, machine.shared_bytes);
    for (int i = 0; i < machine.thread_count; ++i) {
        Thread& thread = machine.threads[i];
        thread.state = State::kFresh;
        thread.acquired = {};
    }
    for (int w = 0; w * kWarp < machine.thread_count; ++w) {
        const int lanes = std::min(kWarp, machine.thread_count - w * kWarp);
        machine.warps[w].ready = lanes == kWarp ? ~0u : (1u << lanes) - 1u;
        machine.warps[w].waiting = 0;
        machine.warps[w].stamp = machine.block_start;
    }
}

void run_block(Random& random) {
    begin_block();
    int order[kMaxThreads / kWarp];
    const int warps = (machine.thread_count + kWarp - 1) / kWarp;
    std::iota(order, order + warps, 0);
    while (machine.live > 0) {
        for (int i = warps - 1; i > 0; --i)
            std::swap(order[i], order[random.next() % static_cast<std::uint64_t>(i + 1)]);
        bool any = false;
        for (int i = 0; i < warps && machine.error.empty(); ++i) {
            any |= machine.warps[order[i]].ready != 0;
            run_warp(machine.warps[order[i]], order[i] * kWarp);
        }
        if (!machine.error.empty()) return;
        if (machine.live > 0 && !release_barrier() && !any) return report_stuck_block();
    }
    for (int w = 0; w < warps; ++w) count_warp_accesses(w);
    for (int i = 0; i < machine.thread_count; ++i) abandon_copies(machine.threads[i]);
}

void set_thread_indices(const dim3& block) {
    machine.thread_count = static_cast<int>(block.x * block.y * block.z);
    for (int i = 0; i < machine.thread_count; ++i) {
        const unsigned id = static_cast<unsigned>(i);
        machine.threads[i].id = i;
        machine.threads[i].index = {id % block.x, id / block.x % block.y, id / block.x / block.y};
    }
}

// Blocks run in an order that visits each once: a seeded start, and a seeded stride with no factor in common.
void run_grid(const dim3& grid) {
    Random random{chosen_seed()};
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    std::uint64_t stride = random.next() % blocks + 1;
    while (std::gcd(stride, blocks) != 1) ++stride;
    std::uint64_t index = random.next() % blocks;
    for (std::uint64_t n = 0; n < blocks && machine.error.empty(); ++n) {
        built_ins.block_idx = {static_cast<unsigned>(index % grid.x),
                               static_cast<unsigned>(index / grid.x % grid.y),
                               static_cast<unsigned>(index / grid.x / grid.y)};
        run_block(random);
        index = (index + stride) % blocks;
    }
}

template <class Update> void each(Counters& to, const Counters& from, Update update) {
    static_assert(sizeof(Counters) % sizeof(std::uint64_t) == 0);
    auto* a = reinterpret_cast<std::uint64_t*>(&to);
    const auto* b = reinterpret_cast<const std::uint64_t*>(&from);
    for (std::size_t i = 0; i < sizeof(Counters) / sizeof(std::uint64_t); ++i) update(a[i], b[i]);
}

}  // namespace

void make_ready(Thread& thread) {
    thread.state = State::kReady;
    machine.warps[thread.id / kWarp].ready |= 1u << (thread.id % kWarp);
}

void suspend(State state) {
    Thread& thread = *machine.running;
    thread.state = state;
    switch_to_scheduler(thread);
}

void run(const Launch& launch) {
    const std::lock_guard lock(launch_mutex);
    const std::string illegal =
        gpu::detail::why_launch_is_illegal(launch.grid, launch.block, launch.shared_bytes, shared_limit);
    if (!illegal.empty()) throw gpu::DeviceError("kernel " + symbol_name(launch.kernel) + ": " + illegal);
    init_memory();
    machine.launch = launch;
    machine.shared_bytes = launch.shared_bytes;
    machine.error.clear();
    machine.site = nullptr;
    machine.counters = {};
    machine.counters.launches = 1;
    machine.launch_serial = machine.block_serial + 1;
    machine.block_starts.clear();
    machine.notes_accesses = counting > 0;
    built_ins.block_dim = launch.block;
    built_ins.grid_dim = launch.grid;
    set_thread_indices(launch.block);
    run_grid(launch.grid);
    if (!machine.error.empty()) {
        for (Thread& thread : machine.threads) {
            drop_fiber(thread);
            abandon_copies(thread);
            thread.accesses.clear();
        }
        throw EmulatorError(machine.error);
    }
    last = machine.counters;
    each(sum, last, [](std::uint64_t& all, std::uint64_t one) { all += one; });
}

void fail_with(std::string (*describe)(const void*), const void* closure) {
    active = nullptr;
    failure = {describe, closure};
    for (;;) switch_to_scheduler(*machine.running);
}

std::string index_name(const uint3& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
std::string thread_name(const Thread& thread) {
    return "thread " + index_name(thread.index);
}

void set_seed(std::uint64_t value) {
    chosen_seed() = value;
}
std::uint64_t seed() {
    return chosen_seed();
}
void set_shared_memory_limit(std::size_t bytes) {
    shared_limit = std::min(bytes, kSharedCapacity);
}
std::size_t shared_memory_limit() {
    return shared_limit;
}
Counters last_launch() {
    return last;
}
Counters total() {
    return sum;
}
void reset() {
    last = sum = {};
}
Counters count(const std::function<void()>& call) {
    const struct Counting {
        Counting() { ++counting; }
        ~Counting() { --counting; }
    } scope;
    const Counters before = sum;
    call();
    Counters difference = sum;
    each(difference, before, [](std::uint64_t& now, std::uint64_t then) { now -= then; });
    return difference;
}

}  // namespace flash::simt
