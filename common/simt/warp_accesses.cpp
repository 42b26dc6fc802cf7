// The accesses of a warp's lanes, put together to the requests that memory sees.
#include <algorithm>
#include <array>
#include <map>

#include "common/simt/memory_access.hpp"

namespace flash::simt {

namespace {

using Lanes = std::array<const NotedAccess*, kWarp>;  // null: the lane is not part of the request

// The different multiples of `unit` bytes that the lanes [first, first + count) touch.
void find_units(const Lanes& lanes, int first, int count, std::uintptr_t unit,
                std::vector<std::uintptr_t>& units) {
    units.clear();
    for (int i = first; i < first + count; ++i) {
        const NotedAccess* lane = lanes[static_cast<std::size_t>(i)];
        if (lane == nullptr) continue;
        const std::uintptr_t last = (lane->address + lane->bytes - 1) / unit;
        for (std::uintptr_t u = lane->address / unit; u <= last; ++u) units.push_back(u);
    }
    if (!std::is_sorted(units.begin(), units.end())) std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
}

void count_request(const Lanes& lanes, std::vector<std::uintptr_t>& units) {
    const NotedAccess& any = **std::find_if(lanes.begin(), lanes.end(), [](auto* lane) { return lane; });
    Counters& c = machine.counters;
    if (any.address - arena.begin < arena.bytes) {
        find_units(lanes, 0, kWarp, 32, units);
        ++(any.is_load ? c.global_load_requests : c.global_store_requests);
        (any.is_load ? c.global_load_sectors : c.global_store_sectors) += units.size();
        return;
    }
    ++(any.is_load ? c.shared_load_requests : c.shared_store_requests);
    const int together = std::clamp(128 / static_cast<int>(any.bytes), 1, kWarp);
    for (int lane = 0; lane < kWarp; lane += together) {
        find_units(lanes, lane, together, 4, units);
        std::array<std::uint64_t, 32> words_of_bank{};
        for (const std::uintptr_t word : units) ++words_of_bank[word % 32];
        const std::uint64_t passes = *std::max_element(words_of_bank.begin(), words_of_bank.end());
        c.shared_bank_conflicts += std::max<std::uint64_t>(passes, 1) - 1;
    }
}

}  // namespace

// A copy reads and writes at one site, which is then two.
void note_access(std::uintptr_t address, std::size_t bytes, Access access, const void* site) {
    const bool is_global = address - arena.begin < arena.bytes, is_load = access == Access::kRead;
    if (!is_global && address - machine.shared_begin >= machine.shared_bytes) return;
    const RuntimeScope scope;
    machine.running->accesses.push_back({static_cast<const char*>(site) + (is_load ? 0 : 1), address,
                                         static_cast<std::uint32_t>(bytes), is_load});
}

void count_warp_accesses(int warp) {
    if (!machine.notes_accesses) return;
    Thread* const threads = machine.threads + warp * kWarp;
    const auto& longest = std::max_element(threads, threads + kWarp, [](const Thread& a, const Thread& b) {
                              return a.accesses.size() < b.accesses.size();
                          })->accesses;
    // Most often all lanes that did anything did the same: the n-th accesses belong together. If not, the
    // n-th of each site do.
    const bool same = std::all_of(threads, threads + kWarp, [&](const Thread& lane) {
        return lane.accesses.empty() ||
               std::equal(lane.accesses.begin(), lane.accesses.end(), longest.begin(), longest.end(),
                          [](const auto& a, const auto& b) { return a.site == b.site; });
    });
    std::vector<std::uintptr_t> units;
    std::map<std::pair<const void*, std::size_t>, Lanes> requests;
    for (std::size_t n = 0; same && n < longest.size(); ++n) {
        Lanes lanes;
        std::transform(threads, threads + kWarp, lanes.begin(), [n](const Thread& lane) {
            return lane.accesses.empty() ? nullptr : &lane.accesses[n];
        });
        count_request(lanes, units);
    }
    for (std::size_t lane = 0; !same && lane < kWarp; ++lane) {
        std::map<const void*, std::size_t> turns;
        for (const NotedAccess& access : threads[lane].accesses)
            requests[{access.site, turns[access.site]++}][lane] = &access;
    }
    for (const auto& [key, lanes] : requests) count_request(lanes, units);
    for (int lane = 0; lane < kWarp; ++lane) threads[lane].accesses.clear();
}

}  // namespace flash::simt
