// B6 for a backward: tensors whose heads lie more than 2^31 elements apart (see wide_offsets.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/testing/backward_case.hpp"
#include "common/testing/wide_offsets.hpp"

namespace flash::testing {

// The bits of dQ, dK and dV of a call with two heads, where the inputs' heads or the outputs' lie far apart.
template <class T, template <class> class Buffer>
std::vector<std::uint32_t> spread_gradients(const BackwardCall<T>& call, bool far_inputs, bool far_outputs,
                                            void (*backward)(const BackwardArgs<T>&)) {
    using Regions = TwoRegions<T, Buffer>;
    const Shape& s = call.shape;
    Buffer<float> lse(call.lse.size());
    lse.copy_from_host(call.lse.data());
    Buffer<std::byte> workspace(call.workspace.size());
    workspace.copy_from_host(call.workspace.data());
    // An output may not lie between another's heads, so each has its own memory.
    Regions inputs(far_inputs), dq(far_outputs), dk(far_outputs), dv(far_outputs);
    const auto offset_of = [](int slot) { return slot * Regions::kRegion / 8; };
    const auto input = [&](const HostTensor<T>& t, int slot) {
        for (int h = 0; h < 2; ++h)
            inputs.write(h, offset_of(slot), t.memory.data() + t.index(0, h, 0, 0), t.stride_head);
        return TensorView<const T>{inputs.data() + offset_of(slot), 0, inputs.distance(), t.stride_row};
    };
    const auto output = [&](Regions& regions) {
        return TensorView<T>{regions.data(), 2 * regions.distance(), regions.distance(), s.head_dim};
    };
    BackwardArgs<T> args;
    args.shape = s;
    args.q = input(call.q, 0);
    args.k = input(call.k, 1);
    args.v = input(call.v, 2);
    args.o = input(call.o, 3);
    args.d_o = input(call.d_o, 4);
    args.lse = lse.data();
    args.dq = output(dq);
    args.dk = output(dk);
    args.dv = output(dv);
    args.mask = call.mask;
    args.scale = call.scale;
    args.workspace = workspace.data() + BackwardCall<T>::kWorkspaceGuard;
    args.workspace_bytes = call.workspace_bytes;
    args.deterministic = call.deterministic;
    backward(args);

    std::vector<std::uint32_t> bits;
    for (auto* gradient : {&dq, &dk, &dv}) {
        std::vector<T> head(static_cast<std::size_t>(gradient == &dq ? s.len_q : s.len_kv) *
                            static_cast<std::size_t>(s.head_dim));
        for (int h = 0; h < 2; ++h) {
            gradient->read(h, head.data(), static_cast<std::int64_t>(head.size()));
            for (const T x : head) bits.push_back(bits_of(x));
        }
    }
    return bits;
}

// A call whose heads lie far apart must give the gradients of a dense one, bit for bit, which it does in
// deterministic mode. Empty when it does, else what is wrong.
template <class T, template <class> class Buffer>
std::string check_backward_wide_offsets(const Capabilities& can, void (*backward)(const BackwardArgs<T>&),
                                        std::int64_t (*workspace_bytes)(const Shape&, bool)) {
    const std::string skip = why_no_wide_offsets<T, Buffer>();
    if (!skip.empty()) {
        std::printf("SKIP: B6 of the backward is left out: %s\n", skip.c_str());
        return "";
    }
    const int head_dim = can.head_dim_multiple > 8 ? can.head_dim_multiple : 8;
    const Shape shape{1, 2, 2, 5, 7, head_dim};
    const BackwardCase c{{"", shape, Mask::causal_bottom_right(shape)}};
    auto call = make_backward_call<T>(c, can.aligned);
    expect_gradients(call, c.forward.seed);  // fills in O and L
    call.choose_mode(true, workspace_bytes(shape, true));
    const auto want = spread_gradients<T, Buffer>(call, false, false, backward);
    if (spread_gradients<T, Buffer>(call, true, false, backward) != want)
        return "inputs with heads more than 2^31 elements apart give other gradients";
    if (spread_gradients<T, Buffer>(call, false, true, backward) != want)
        return "gradients with heads more than 2^31 elements apart get other values";
    return "";
}

}  // namespace flash::testing
