// What the threads of a block or warp do together: barriers, shuffles, votes; and atomics.
#include <algorithm>
#include <functional>

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

void named_barrier(int id, int threads, bool waits, Site site) {
    const RuntimeScope scope;
    Thread& thread = *machine.running;
    thread.operation = waits ? "named_barrier_sync" : "named_barrier_arrive";
    thread.site = site;
    if (id < 1 || id >= kNamedBarriers || threads <= 0 || threads % kWarp != 0) {
        fail([=] {
            return "a named barrier with id " + std::to_string(id) + " and " + std::to_string(threads) +
                   " threads; ids are 1 to 15, threads a multiple of 32";
        });
    }
    NamedBarrier& barrier = machine.named[id];
    if (barrier.arrived > 0 && barrier.threads != threads) {
        fail([=, expected = barrier.threads] {
            return "named barrier " + std::to_string(id) + " is told to wait for " + std::to_string(threads) +
                   " threads, others said " + std::to_string(expected);
        });
    }
    barrier.threads = threads;
    barrier.warps |= 1u << (thread.id / kWarp);
    if (waits) barrier.waiting.push_back(thread.id);
    if (++barrier.arrived == threads) {
        const Acquired acquired{barrier.warps, advance_time()};
        for (const int id_of_waiting : barrier.waiting) {
            machine.threads[id_of_waiting].acquired = acquired;
            if (id_of_waiting != thread.id) make_ready(machine.threads[id_of_waiting]);
        }
        if (waits) machine.acquired = acquired;
        barrier = {};
    } else if (waits) {
        suspend(State::kAtNamedBarrier);
    }
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
