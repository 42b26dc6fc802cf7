// What the threads of a block or warp do together: barriers, shuffles, votes; and atomics.
#include <algorithm>
#include <functional>
#include <utility>

#include "common/simt/machine.hpp"
#include "common/simt/warp_operation.hpp"

namespace flash::simt {

void sync_block(Site site) {
    const RuntimeScope scope;
    Thread& thread = *machine.running;
    thread.operation = "__syncthreads";
    thread.site = site;
    ++machine.at_barrier;
    suspend(State::kAtBarrier);
}

void sync_warp(std::uint32_t mask, Site site) {
    const RuntimeScope scope;
    int nothing = 0;
    warp_operation("__syncwarp", mask, site, nothing, [mask](int* const*) {
        Warp& warp = running_warp();
        const int lanes = std::min(kWarp, machine.thread_count - machine.running->id / kWarp * kWarp);
        const std::uint32_t all = lanes == kWarp ? ~0u : (1u << lanes) - 1u;
        if ((mask & all) == all) machine.warp_stamp = warp.stamp = advance_time();
    });
}

namespace {

Mbarrier& mbarrier_at(std::uint32_t shared, const char* operation, Site site) {
    machine.running->operation = operation;
    machine.running->site = site;
    const auto found = machine.mbarriers.find(shared);
    if (found == machine.mbarriers.end())
        fail([=] {
            return std::string(operation) + " at shared offset " + std::to_string(shared) +
                   ", where no mbarrier_init has run";
        });
    check_access(machine.shared_begin + shared, 8, Access::kAtomic, nullptr);
    return found->second;
}

}  // namespace

void mbarrier_init(std::uint32_t shared, int arrivals, Site site) {
    const RuntimeScope scope;
    machine.running->site = site;
    if (shared % 8 != 0 || arrivals <= 0)
        fail([=] {
            return "mbarrier_init at shared offset " + std::to_string(shared) + " for " +
                   std::to_string(arrivals) + " arrivals; it takes a multiple of 8 and at least 1";
        });
    check_access(machine.shared_begin + shared, 8, Access::kWrite, nullptr);
    Mbarrier& barrier = machine.mbarriers[shared] = {};
    barrier.arrivals = barrier.pending = arrivals;
}

void mbarrier_arrive(std::uint32_t shared, Site site) {
    const RuntimeScope scope;
    Mbarrier& barrier = mbarrier_at(shared, "mbarrier_arrive", site);
    barrier.warps |= 1u << (machine.running->id / kWarp);
    if (--barrier.pending > 0) return;
    const std::uint32_t now = machine.order_stamp = advance_time();
    for_each_lane(barrier.warps, [&](int warp) { barrier.released.before[warp] = now; });
    barrier.pending = barrier.arrivals;
    barrier.warps = 0;
    ++barrier.phase;
    ++machine.counters.mbarrier_phases;
    for (const int id : std::exchange(barrier.waiting, {})) make_ready(machine.threads[id]);
}

void mbarrier_wait(std::uint32_t shared, int parity, Site site) {
    const RuntimeScope scope;
    Mbarrier& barrier = mbarrier_at(shared, "mbarrier_wait", site);
    while (barrier.phase % 2 == parity) {
        barrier.waiting.push_back(machine.running->id);
        suspend(State::kAtMbarrier);
    }
    Acquired& mine = machine.running->acquired;
    for (int w = 0; w < kMaxThreads / kWarp; ++w)
        mine.before[w] = std::max(mine.before[w], barrier.released.before[w]);
}

std::uint64_t shuffle(std::uint32_t mask, std::uint64_t value, int source_lane, Site site) {
    const RuntimeScope scope;
    struct Operand {
        std::uint64_t value;
        int source;
        std::uint64_t result;
    } mine{value, source_lane, 0};
    if ((mask >> source_lane & 1u) == 0) {
        machine.site = __builtin_return_address(0);
        fail([=] {
            return "a shuffle reads lane " + std::to_string(source_lane) + ", which its mask leaves out";
        });
    }
    warp_operation("a shuffle", mask, site, mine, [mask](Operand* const* lanes) {
        for_each_lane(mask, [lanes](int lane) { lanes[lane]->result = lanes[lanes[lane]->source]->value; });
    });
    return mine.result;
}

std::uint32_t ballot(std::uint32_t mask, bool vote, Site site) {
    const RuntimeScope scope;
    struct Operand {
        bool vote;
        std::uint32_t result;
    } mine{vote, 0};
    warp_operation("a vote", mask, site, mine, [mask](Operand* const* lanes) {
        std::uint32_t votes = 0;
        for_each_lane(mask, [&](int lane) { votes |= (lanes[lane]->vote ? 1u : 0u) << lane; });
        for_each_lane(mask, [&](int lane) { lanes[lane]->result = votes; });
    });
    return mine.result;
}

int lane_id() {
    return machine.running->id % kWarp;
}

namespace {

// Threads take turns between hooks only, so a plain update is atomic.
template <class T, class Update> T atomic(T* address, T value, const void* site, Update update) {
    check_access(reinterpret_cast<std::uintptr_t>(address), sizeof(T), Access::kAtomic, site);
    ++machine.counters.atomics;
    const T before = *address;
    *address = static_cast<T>(update(before, value));
    return before;
}
constexpr auto kLarger = [](auto a, auto b) { return std::max(a, b); };

}  // namespace

}  // namespace flash::simt

int atomicAdd(int* address, int value) {  // wraps around
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<unsigned>());
}
unsigned atomicAdd(unsigned* address, unsigned value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
float atomicAdd(float* address, float value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), std::plus<>());
}
int atomicMax(int* address, int value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), flash::simt::kLarger);
}
unsigned atomicMax(unsigned* address, unsigned value) {
    return flash::simt::atomic(address, value, __builtin_return_address(0), flash::simt::kLarger);
}
