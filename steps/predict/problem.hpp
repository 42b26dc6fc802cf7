// One forward call on the device, and what the emulator counts of it.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "common/gpu/device.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/forward_case.hpp"
#include "questions.hpp"

namespace flash::predict {

template <class T> using Forward = void (*)(const ForwardArgs<T>&);
template <class T> using Call = testing::ForwardCall<T>;

// Runs a step on the tensors of a call and brings O and L back.
template <class T> void run(Call<T>& call, Forward<T> forward) {
    gpu::DeviceBuffer<T> q(call.q.memory.size()), k(call.k.memory.size()), v(call.v.memory.size()),
        o(call.o.memory.size());
    gpu::DeviceBuffer<float> lse(call.lse.size());
    q.copy_from_host(call.q.memory.data());
    k.copy_from_host(call.k.memory.data());
    v.copy_from_host(call.v.memory.data());
    o.copy_from_host(call.o.memory.data());
    lse.copy_from_host(call.lse.data());
    forward(call.args(q.data(), k.data(), v.data(), o.data(), lse.data()));
    gpu::synchronize();
    o.copy_to_host(call.o.memory.data());
    lse.copy_to_host(call.lse.data());
}

template <class T> void set(testing::HostTensor<T>& t, const std::function<float(int n, int d)>& value) {
    for (int b = 0; b < t.batch; ++b)
        for (int h = 0; h < t.heads; ++h)
            for (int n = 0; n < t.len; ++n)
                for (int d = 0; d < t.head_dim; ++d)
                    t.memory[static_cast<std::size_t>(t.index(b, h, n, d))] = from_float<T>(value(n, d));
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
