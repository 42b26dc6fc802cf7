#include <cstdint>
#include <vector>

#include "common/testing/backward_case.hpp"
#include "problem.hpp"
#include "steps/09_fa2_backward/attention.hpp"

namespace flash::predict {
namespace {

double as_number(std::uint64_t n) {
    return static_cast<double>(n);
}

// The counters of one backward on standard normal inputs. No count depends on O and L, which stay zero.
simt::Counters count_backward(const Shape& s, const Mask& mask, bool deterministic) {
    auto call = testing::make_backward_call<bf16>({{"", s, mask}}, true);
    const auto on_device = [](const std::vector<bf16>& memory) {
        gpu::DeviceBuffer<bf16> buffer(memory.size());
        buffer.copy_from_host(memory.data());
        return buffer;
    };
    const auto q = on_device(call.q.memory), k = on_device(call.k.memory), v = on_device(call.v.memory),
               o = on_device(call.o.memory), d_o = on_device(call.d_o.memory);
    auto dq = on_device(call.dq.memory), dk = on_device(call.dk.memory), dv = on_device(call.dv.memory);
    gpu::DeviceBuffer<float> lse(call.lse.size());
    lse.copy_from_host(call.lse.data());
    gpu::DeviceBuffer<std::byte> workspace(
        static_cast<std::size_t>(step09::backward_workspace_bytes(s, deterministic)));
    BackwardArgs<bf16> args{s,
                            call.q.view(q.data()),
                            call.k.view(k.data()),
                            call.v.view(v.data()),
                            call.o.view(o.data()),
                            lse.data(),
                            call.d_o.view(d_o.data()),
                            call.dq.view(dq.data()),
                            call.dk.view(dk.data()),
                            call.dv.view(dv.data()),
                            mask,
                            call.scale,
                            workspace.data(),
                            static_cast<std::int64_t>(workspace.size()),
                            deterministic};
    return count([&] {
        step09::attention_backward(args);
        gpu::synchronize();
    });
}

constexpr Shape kCausal{1, 1, 1, 1024, 1024, 128};
constexpr Shape kWhole{1, 1, 1, 512, 512, 128};
constexpr int kBlockQ = 64, kBlockKv = 128;  // step 09's tile at D = 128

double workspace_bytes(bool deterministic) {
    return static_cast<double>(step09::backward_workspace_bytes({1, 1, 1, 4096, 4096, 128}, deterministic));
}

}  // namespace

std::vector<Question> questions_09() {
    const auto causal = once([] { return count_backward(kCausal, Mask::causal_top_left(), false); });
    const auto whole = once([] { return count_backward(kWhole, Mask::none(), false); });
    return {
        {"09",
         1,
         {{"tiles walked", [causal] { return as_number(causal().exp2) / (kBlockQ * kBlockKv); }, kCounted},
          {"mma", [causal] { return as_number(causal().mma); }, kCounted}}},
        {"09",
         2,
         {{"mma in the deterministic mode",
           [] { return as_number(count_backward(kCausal, Mask::causal_top_left(), true).mma); }, kCounted}}},
        {"09",
         3,
         {{"bytes in the fast mode", [] { return workspace_bytes(false); },
           "computed by step 09's backward_workspace_bytes"},
          {"bytes in the deterministic mode", [] { return workspace_bytes(true); },
           "computed by step 09's backward_workspace_bytes"}}},
        {"09",
         4,
         {{"additions to an element of dQ",
           [whole] { return as_number(whole().atomics) / (kWhole.len_q * kWhole.head_dim); }, kCounted},
          {"bytes that the blocks move", [whole] { return bytes_per_block(whole()); }, kCounted}}},
    };
}

}  // namespace flash::predict
