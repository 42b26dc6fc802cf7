// One forward call on the device, and what the emulator counts of it.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "common/gpu/device.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/conformance.hpp"
#include "questions.hpp"

namespace flash::predict {

template <class T> using Forward = void (*)(const ForwardArgs<T>&);
template <class T> using Call = testing::ForwardCall<T>;

// Runs a step on the tensors of a call and brings O and L back.
template <class T> void run(Call<T>& call, Forward<T> forward) {
    testing::execute_on<T, gpu::DeviceBuffer>(forward)(call, {});
}

// The counters of whatever f launches.
inline simt::Counters count(const std::function<void()>& f) {
    if (!simt::hooks_enabled()) throw NothingCounted{};
    return simt::count(f);
}

// The counters of one call on standard normal inputs, or on those that `edit` leaves.
template <class T>
simt::Counters count(Forward<T> forward, const Shape& shape, const Mask& mask = Mask::none(),
                     const std::function<void(Call<T>&)>& edit = {}) {
    auto call = testing::make_call<T>({"", shape, mask}, true);
    if (edit) edit(call);
    return count([&] { run(call, forward); });
}

inline double bytes_per_block(const simt::Counters& c) {
    return static_cast<double>(c.global_load_bytes_distinct_per_block +
                               c.global_store_bytes_distinct_per_block);
}
inline double bytes_per_launch(const simt::Counters& c) {
    return static_cast<double>(c.global_load_bytes_distinct_per_launch +
                               c.global_store_bytes_distinct_per_launch);
}

// Several numbers of a question come from one run, which is made when the first of them is asked for.
inline std::function<simt::Counters()> once(std::function<simt::Counters()> f) {
    auto cache = std::make_shared<std::map<int, simt::Counters>>();
    return [cache, f = std::move(f)] {
        if (cache->empty()) cache->emplace(0, f());
        return cache->at(0);
    };
}

inline constexpr const char* kCounted = "counted by the emulator";

}  // namespace flash::predict
