// Counts of whole launches, and of whole warps: their lanes' accesses put together to the requests that
// memory sees.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <map>

#include "common/simt/machine.hpp"

namespace flash::simt {

namespace {

Counters latest, sum;
std::atomic<int> counting{0};  // calls of count() under way

template <class Operation> Counters combine(const Counters& a, const Counters& b, Operation operation) {
    using Numbers = std::array<std::uint64_t, sizeof(Counters) / sizeof(std::uint64_t)>;
    auto result = std::bit_cast<Numbers>(a);
    const auto other = std::bit_cast<Numbers>(b);
    std::transform(result.begin(), result.end(), other.begin(), result.begin(), operation);
    return std::bit_cast<Counters>(result);
}

using Lanes = std::array<const Access*, kWarp>;  // null: the lane is not part of the request

// The different multiples of `unit` bytes that the lanes [first, first + count) touch.
std::vector<std::uintptr_t> find_units(const Lanes& lanes, int first, int count, std::uintptr_t unit) {
    std::vector<std::uintptr_t> units;
    units.reserve(kWarp);
    for (int i = first; i < first + count; ++i) {
        const Access* lane = lanes[static_cast<std::size_t>(i)];
        if (lane == nullptr) continue;
        const std::uintptr_t last = (lane->address + lane->bytes - 1) / unit;
        for (std::uintptr_t u = lane->address / unit; u <= last; ++u) units.push_back(u);
    }
    if (!std::is_sorted(units.begin(), units.end())) std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
    return units;
}

void count_request(const Lanes& lanes) {
    const Access& any = **std::find_if(lanes.begin(), lanes.end(), [](auto* lane) { return lane; });
    const bool is_load = any.kind == Kind::kRead;
    Counters& c = machine.counters;
    if (any.address - arena.begin >= kSharedRoom) {
        ++(is_load ? c.global_load_requests : c.global_store_requests);
        (is_load ? c.global_load_sectors : c.global_store_sectors) += find_units(lanes, 0, kWarp, 32).size();
        return;
    }
    ++(is_load ? c.shared_load_requests : c.shared_store_requests);
    const int together = std::clamp(128 / static_cast<int>(any.bytes), 1, kWarp);
    for (int lane = 0; lane < kWarp; lane += together) {
        std::array<std::uint64_t, 32> words_of_bank{};
        for (const std::uintptr_t word : find_units(lanes, lane, together, 4)) ++words_of_bank[word % 32];
        const std::uint64_t passes = *std::max_element(words_of_bank.begin(), words_of_bank.end());
        c.shared_bank_conflicts += std::max<std::uint64_t>(passes, 1) - 1;
    }
}

}  // namespace

void note_access(const Access& access) {
    machine.running->accesses.push_back(access);
}

void count_warp_accesses(int warp) {
    if (!machine.notes_accesses) return;
    // The n-th accesses of the lanes by one instruction belong together. A copy's read and its write are two.
    using Instruction = std::pair<const void*, bool>;
    const std::span lanes(lanes_of_warp(warp), kWarp);
    const auto& longest = std::max_element(lanes.begin(), lanes.end(), [](const Thread& a, const Thread& b) {
                              return a.accesses.size() < b.accesses.size();
                          })->accesses;
    // Most often all lanes that did anything did the same, so that simply their n-th accesses do.
    const bool same = std::all_of(lanes.begin(), lanes.end(), [&](const Thread& lane) {
        return lane.accesses.empty() ||
               std::equal(lane.accesses.begin(), lane.accesses.end(), longest.begin(), longest.end(),
                          [](const auto& a, const auto& b) { return a.site == b.site && a.kind == b.kind; });
    });
    std::map<std::pair<Instruction, std::size_t>, Lanes> requests;
    for (std::size_t n = 0; same && n < longest.size(); ++n) {
        Lanes request;
        std::transform(lanes.begin(), lanes.end(), request.begin(), [n](const Thread& lane) {
            return lane.accesses.empty() ? nullptr : &lane.accesses[n];
        });
        count_request(request);
    }
    for (std::size_t lane = 0; !same && lane < kWarp; ++lane) {
        std::map<Instruction, std::size_t> turns;
        for (const Access& access : lanes[lane].accesses) {
            const Instruction instruction(access.site, access.kind == Kind::kRead);
            requests[{instruction, turns[instruction]++}][lane] = &access;
        }
    }
    for (const auto& [key, request] : requests) count_request(request);
    for (Thread& lane : lanes) lane.accesses.clear();
}

void begin_counting() {
    machine.counters = {.launches = 1};
    machine.notes_accesses = counting > 0;
}
void add_to_totals() {
    latest = machine.counters;
    sum = combine(sum, latest, std::plus<>());
}

Counters last_launch() {
    return latest;
}
Counters total() {
    return sum;
}
void reset() {
    latest = sum = {};
}
Counters count(const std::function<void()>& call) {
    const struct Counting {
        Counting() { ++counting; }
        ~Counting() { --counting; }
    } scope;
    const Counters before = sum;
    call();
    return combine(sum, before, std::minus<>());
}

}  // namespace flash::simt
