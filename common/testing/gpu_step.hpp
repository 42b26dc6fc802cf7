// What the tests of the GPU steps share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "common/gpu/device.hpp"
#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/conformance.hpp"

namespace flash::testing {

// Capabilities::max_work: what the emulator gets through in seconds; the larger cases run on a GPU.
inline std::int64_t device_max_work(std::int64_t on_emulator = 520'000) {
    return gpu::device_info().is_emulator ? on_emulator : 300'000'000'000;
}

// A device with no more shared memory for a block than this, while it lives.
struct SharedLimit {
    explicit SharedLimit(std::size_t bytes) { simt::set_shared_memory_limit(bytes); }
    ~SharedLimit() { simt::set_shared_memory_limit(simt::kDefaultSharedLimit); }
    SharedLimit(const SharedLimit&) = delete;
};

// The emulator's counters of what `work` launches, or a SKIP line where nothing is counted.
inline bool count_into(simt::Counters& counters, const std::function<void()>& work) {
    if (!simt::hooks_enabled()) {
        std::printf("SKIP: this build counts no memory accesses\n");
        return false;
    }
    counters = simt::count(work);
    return true;
}

template <class T> using Forward = void (*)(const ForwardArgs<T>&);
template <class T> using CallEdit = std::function<void(ForwardCall<T>&)>;

// What is wrong with a forward's answer to a case; empty when nothing is. `edit` changes the inputs first.
template <class T>
std::string forward_failure(Forward<T> forward, const ForwardCase& c, bool aligned,
                            const CallEdit<T>& edit = {}) {
    auto call = make_call<T>(c, aligned);
    if (edit) edit(call);
    const auto before = call;
    execute_on<T, gpu::DeviceBuffer>(forward)(call, {});
    const std::string failure = judge(before, call, c.pattern, c.seed).failure;
    return failure.empty() ? failure : describe(c, dtype_name<T>()) + ": " + failure;
}

// Whether O and L have the same bits in whatever order the emulator runs warps, and every time on a GPU.
template <class T> bool same_in_every_order(Forward<T> forward, const ForwardCase& c, bool aligned) {
    const auto call = make_call<T>(c, aligned);
    const auto execute = execute_on<T, gpu::DeviceBuffer>(forward);
    auto first = call;
    execute(first, {});
    const std::uint64_t seed = simt::seed();
    bool same = true;
    for (std::uint64_t run = 1; run <= 4; ++run) {
        simt::set_seed(seed + run);
        auto again = call;
        execute(again, {});
        same = same && same_bits(again.o.memory, first.o.memory) && same_bits(again.lse, first.lse);
    }
    simt::set_seed(seed);
    return same;
}

}  // namespace flash::testing
