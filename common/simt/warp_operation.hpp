// How lanes meet: each brings an operand on its own stack, the last to come does the work for all.
#pragma once

#include <bit>
#include <cstring>

#include "common/simt/machine.hpp"

namespace flash::simt {

template <class Body> void for_each_lane(std::uint32_t mask, Body body) {
    for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

// Lanes meet only in the same operation with the same mask at the same place. combine(Operand* const
// lanes[32]) runs once, when all lanes of the mask are there.
template <class Operand, class Combine>
void warp_operation(const char* name, std::uint32_t mask, Site site, Operand& mine, Combine combine) {
    Thread& self = *machine.running;
    Warp& warp = running_warp();
    Thread* const lanes = machine.threads + self.id / kWarp * kWarp;
    const std::uint32_t my_bit = 1u << (self.id % kWarp);
    if ((mask & my_bit) == 0)
        fail([=] { return std::string(name) + " names a mask that leaves the calling lane out"; });
    self.operation = name;
    self.site = site;
    self.mask = mask;
    self.operand = &mine;
    warp.waiting |= my_bit;
    bool complete = (warp.waiting & mask) == mask;
    if (complete) {
        for_each_lane(mask & ~my_bit, [&](int lane) {
            const Thread& other = lanes[lane];
            complete &= other.operation == name && other.mask == mask && other.site.line == site.line &&
                        (other.site.file == site.file || std::strcmp(other.site.file, site.file) == 0);
        });
    }
    if (!complete) return suspend(State::kAtWarpOperation);
    Operand* operands[kWarp] = {};
    for_each_lane(mask, [&](int lane) { operands[lane] = static_cast<Operand*>(lanes[lane].operand); });
    warp.waiting &= ~mask;
    if (mask == ~0u) count_warp_accesses(self.id / kWarp);
    combine(operands);
    for_each_lane(mask & ~my_bit, [&](int lane) { make_ready(lanes[lane]); });
}

}  // namespace flash::simt
