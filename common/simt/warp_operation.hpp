// How lanes meet: each brings an operand on its own stack, the last to come does the work for all.
#pragma once

#include <bit>

#include "common/simt/machine.hpp"

namespace flash::simt {

template <class Body> void for_each_lane(std::uint32_t mask, Body body) {
    for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

// Lanes meet only in the same operation with the same mask at the same place. combine(Operand* const
// lanes[32]) runs once, when all lanes of the mask are there.
template <class Operand, class Combine>
void warp_operation(const char* name, std::uint32_t mask, Site site, Operand& mine, Combine combine) {
    Thread& self = stop_at(State::kAtWarpOperation, name, site, &mine);
    self.mask = mask;
    Warp& warp = running_warp();
    Thread* const lanes = lanes_of_warp(self.id / kWarp);
    const std::uint32_t my_bit = 1u << (self.id % kWarp);
    if ((mask & my_bit) == 0)
        fail(nullptr, [=] { return std::string(name) + " names a mask that leaves the calling lane out"; });
    warp.waiting |= my_bit;
    bool complete = (warp.waiting & mask) == mask;
    if (complete) {
        for_each_lane(
            mask, [&](int lane) { complete &= same_place(lanes[lane], self) && lanes[lane].mask == mask; });
    }
    if (!complete) return switch_to_scheduler(self);
    warp.waiting &= ~mask;
    if (mask == ~0u) count_warp_accesses(self.id / kWarp);
    Operand* operands[kWarp] = {};
    for_each_lane(mask, [&](int lane) { operands[lane] = static_cast<Operand*>(lanes[lane].operand); });
    combine(operands);
    self.state = State::kReady;
    for_each_lane(mask & ~my_bit, [&](int lane) { make_ready(lanes[lane]); });
}

}  // namespace flash::simt
