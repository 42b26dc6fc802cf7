// Where threads wait for each other: barriers, mbarriers, shuffles, votes.
#include <algorithm>
#include <utility>

#include "common/simt/warp_operation.hpp"

namespace flash::simt {

void sync_block(Site site) {
    const RuntimeScope scope;
    switch_to_scheduler(stop_at(State::kAtBarrier, "__syncthreads", site, nullptr));
}

void sync_warp(std::uint32_t mask, Site site) {
    const RuntimeScope scope;
    int nothing = 0;
    warp_operation("__syncwarp", mask, site, nothing, [mask](int* const*) {
        const int warp = machine.running->id / kWarp;
        if ((mask & lanes_in_use(warp)) != lanes_in_use(warp)) return;
        const std::uint32_t now = machine.warps[warp].stamp = advance_time();
        for_each_lane(lanes_in_use(warp), [=](int lane) { lanes_of_warp(warp)[lane].before[warp] = now; });
    });
}

namespace {

Mbarrier& mbarrier_at(std::uint32_t shared, const char* operation) {
    const auto found = machine.mbarriers.find(shared);
    if (found == machine.mbarriers.end())
        fail(nullptr, [=] {
            return std::string(operation) + " at shared offset " + std::to_string(shared) +
                   ", where no mbarrier_init has run";
        });
    check_access({machine.shared_begin + shared, 8, Kind::kAtomic, nullptr});
    return found->second;
}

}  // namespace

void mbarrier_init(std::uint32_t shared, int arrivals) {
    const RuntimeScope scope;
    if (shared % 8 != 0 || arrivals <= 0)
        fail(nullptr, [=] {
            return "mbarrier_init at shared offset " + std::to_string(shared) + " for " +
                   std::to_string(arrivals) + " arrivals; it takes a multiple of 8 and at least 1";
        });
    check_access({machine.shared_begin + shared, 8, Kind::kWrite, nullptr});
    Mbarrier& barrier = machine.mbarriers[shared] = {};
    barrier.arrivals = barrier.pending = arrivals;
}

void mbarrier_arrive(std::uint32_t shared) {
    const RuntimeScope scope;
    Mbarrier& barrier = mbarrier_at(shared, "mbarrier_arrive");
    barrier.warps |= 1u << (machine.running->id / kWarp);
    if (--barrier.pending > 0) return;
    const std::uint32_t now = machine.order_stamp = advance_time();
    for_each_lane(barrier.warps, [&](int warp) { barrier.released[warp] = now; });
    barrier.pending = barrier.arrivals;
    barrier.warps = 0;
    ++barrier.phase;
    ++machine.counters.mbarrier_phases;
    for (const int id : std::exchange(barrier.waiting, {})) make_ready(machine.threads[id]);
}

void mbarrier_wait(std::uint32_t shared, int parity, Site site) {
    const RuntimeScope scope;
    Mbarrier& barrier = mbarrier_at(shared, "mbarrier_wait");
    Thread& self = *machine.running;
    while (barrier.phase % 2 == parity) {
        barrier.waiting.push_back(self.id);
        switch_to_scheduler(stop_at(State::kAtMbarrier, "mbarrier_wait", site, &barrier));
    }
    for (std::size_t w = 0; w < self.before.size(); ++w)
        self.before[w] = std::max(self.before[w], barrier.released[w]);
}

std::uint64_t shuffle(std::uint32_t mask, std::uint64_t value, int source_lane, Site site) {
    const RuntimeScope scope;
    struct Operand {
        std::uint64_t value;
        int source;
        std::uint64_t result;
    } mine{value, source_lane, 0};
    if ((mask >> source_lane & 1u) == 0) {
        fail(__builtin_return_address(0), [=] {
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

}  // namespace flash::simt
