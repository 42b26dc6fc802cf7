// Runs a grid: one fiber per thread, block by block, on the OS thread that called launch().
//
// A fiber runs until it waits for other threads or ends. Warps are picked in a seeded random order, of a warp
// the lowest lane that is ready; who comes last to a warp operation just goes on. When no fiber can run and
// some still wait, the block is stuck: that is an error, never a hang.
#include <algorithm>
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
constinit thread_local bool in_kernel __attribute__((tls_model("initial-exec"))) = false;

namespace {

std::mutex launch_mutex;

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

void resume(Thread& thread) {
    if (thread.stack == nullptr) start_fiber(thread);
    machine.running = &thread;
    machine.thread_id = static_cast<std::uint32_t>(thread.id);
    machine.stack_begin = reinterpret_cast<std::uintptr_t>(thread.stack);
    built_ins.thread_idx = thread.index;
    switch_to_thread(thread);
    if (thread.state == State::kExited) {
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

// Why the operation that a thread waits at never completes; empty when nothing speaks against it.
std::string why_stuck(const Thread& waiting) {
    if (waiting.state == State::kAtMbarrier) {
        const auto& barrier = *static_cast<const Mbarrier*>(waiting.operand);
        return std::to_string(barrier.arrivals - barrier.pending) + " of " +
               std::to_string(barrier.arrivals) + " arrivals have come";
    }
    const bool in_warp = waiting.state == State::kAtWarpOperation;
    const std::size_t first = in_warp ? static_cast<std::size_t>(waiting.id / kWarp * kWarp) : 0;
    const std::size_t count = in_warp ? kWarp : machine.threads.size();
    for (std::size_t i = 0; i < count; ++i) {
        if (in_warp && (waiting.mask >> i & 1u) == 0) continue;
        if (first + i >= machine.threads.size())
            return "the block has no lane " + std::to_string(i) + " in this warp";
        const Thread& other = machine.threads[first + i];
        if (!same_place(waiting, other)) return doing(other);
        if (in_warp && waiting.mask != other.mask) return thread_name(other) + " names another mask";
    }
    return {};
}

// Nothing can run: names a thread that waits and what keeps it waiting.
void report_stuck_block() {
    for (const State state : {State::kAtWarpOperation, State::kAtMbarrier, State::kAtBarrier}) {
        for (const Thread& thread : machine.threads) {
            const std::string reason = thread.state == state ? why_stuck(thread) : "";
            if (!reason.empty()) return report(thread, nullptr, doing(thread) + " for ever: " + reason);
        }
    }
    report(machine.threads[0], nullptr, "no thread of the block can go on");
}

// All that the block has done happened before all that it does from now on.
void order_block() {
    machine.order_stamp = machine.block_stamp = advance_time();
    for (Thread& thread : machine.threads) thread.before.fill(machine.block_stamp);
}

// When every thread of the block waits at the same barrier, all of them go on.
bool release_barrier() {
    const Thread& first = machine.threads[0];
    if (first.state != State::kAtBarrier ||
        !std::all_of(machine.threads.begin(), machine.threads.end(),
                     [&](const Thread& other) { return same_place(first, other); }))
        return false;
    order_block();
    ++machine.counters.barriers;
    for (Thread& thread : machine.threads) make_ready(thread);
    for (int w = 0; w < machine.warp_count(); ++w) count_warp_accesses(w);
    return true;
}

void run_warp(int w) {
    Warp& warp = machine.warps[w];
    while (warp.ready != 0 && machine.error.empty()) {
        const int lane = std::countr_zero(warp.ready);
        warp.ready &= ~(1u << lane);
        resume(lanes_of_warp(w)[lane]);
    }
}

void begin_block() {
    order_block();
    machine.block_start = machine.block_stamp;
    machine.block_starts.emplace_back(machine.block_start, built_ins.block_idx);
    ++machine.block_serial;
    machine.live = machine.threads.size();
    machine.mbarriers.clear();
    std::memset(shared_memory(), 0xff, machine.shared_bytes);
    for (Thread& thread : machine.threads) thread.state = State::kReady;
    for (int w = 0; w < machine.warp_count(); ++w)
        machine.warps[w] = {.ready = lanes_in_use(w), .waiting = 0, .stamp = machine.block_start};
}

void run_block(Random& random) {
    begin_block();
    int order[kMaxThreads / kWarp];
    const int warps = machine.warp_count();
    std::iota(order, order + warps, 0);
    while (machine.live > 0) {
        for (int i = warps - 1; i > 0; --i)
            std::swap(order[i], order[random.next() % static_cast<std::uint64_t>(i + 1)]);
        bool any = false;
        for (int i = 0; i < warps && machine.error.empty(); ++i) {
            any |= machine.warps[order[i]].ready != 0;
            run_warp(order[i]);
        }
        if (!machine.error.empty()) return;
        if (machine.live > 0 && !release_barrier() && !any) return report_stuck_block();
    }
    for (int w = 0; w < warps; ++w) count_warp_accesses(w);
    for (Thread& thread : machine.threads) abandon_copies(thread);
}

void set_thread_indices(const dim3& block) {
    machine.threads = std::span(machine.all_threads, block.x * block.y * block.z);
    for (unsigned id = 0; Thread & thread : machine.threads) {
        thread.id = static_cast<int>(id);
        thread.index = {id % block.x, id / block.x % block.y, id / block.x / block.y};
        ++id;
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

}  // namespace

void report(const Thread& thread, const void* site, const std::string& what) {
    const std::string line = source_line(site);
    machine.error = "kernel " + kernel_name(machine.launch.kernel) + ", block " +
                    index_name(built_ins.block_idx) + ", " + thread_name(thread) +
                    (line.empty() ? "" : ", " + line) + ": " + what + " [warp order seed " +
                    std::to_string(chosen_seed()) + "]";
}

Thread& stop_at(State state, const char* operation, Site site, void* operand) {
    Thread& thread = *machine.running;
    thread.state = state;
    thread.operation = operation;
    thread.site = site;
    thread.operand = operand;
    return thread;
}

void make_ready(Thread& thread) {
    thread.state = State::kReady;
    machine.warps[thread.id / kWarp].ready |= 1u << (thread.id % kWarp);
}

void run(const Launch& launch) {
    const std::lock_guard lock(launch_mutex);
    const std::string illegal = gpu::detail::why_launch_is_illegal(
        launch.grid, launch.block, launch.shared_bytes, gpu::device_info().shared_per_block_optin);
    if (!illegal.empty()) throw gpu::DeviceError("kernel " + kernel_name(launch.kernel) + ": " + illegal);
    reserve_arena();
    machine.launch = launch;
    machine.shared_bytes = launch.shared_bytes;
    machine.error.clear();
    machine.launch_serial = machine.block_serial + 1;
    machine.block_starts.clear();
    built_ins.block_dim = launch.block;
    built_ins.grid_dim = launch.grid;
    set_thread_indices(launch.block);
    begin_counting();
    run_grid(launch.grid);
    if (!machine.error.empty()) {
        for (Thread& thread : machine.threads) {
            drop_fiber(thread);
            abandon_copies(thread);
            thread.accesses.clear();
        }
        throw EmulatorError(machine.error);
    }
    add_to_totals();
}

void set_seed(std::uint64_t value) {
    chosen_seed() = value;
}
std::uint64_t seed() {
    return chosen_seed();
}

}  // namespace flash::simt
