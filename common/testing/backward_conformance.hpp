// The tests that every backward must pass, called from the step's test.cpp:
//
//   run_backward_conformance<bf16, DeviceBuffer>({.step = "step 09"}, &step09::attention_backward,
//                                                &step09::backward_workspace_bytes);
//
// Buffer is HostBuffer for a CPU step, flash::gpu::DeviceBuffer for a GPU step. O and L come from an exact
// forward, rounded to the call's types, so that the backward is judged alone. Every case runs in fast and in
// deterministic mode. As in conformance.hpp, check_* and the lists return what they found, run_* hands it to
// doctest.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/simt/control.hpp"
#include "common/testing/backward_case.hpp"
#include "common/testing/backward_wide_offsets.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/device_copy.hpp"

namespace flash::testing {

using WorkspaceBytes = std::int64_t (*)(const Shape&, bool deterministic);
template <class T> using BackwardEdit = std::function<void(BackwardArgs<T>&)>;

// A backward as the checks see it.
template <class T> struct BackwardStep {
    // Runs it on the tensors of a call: inputs copied in, all memories copied back out, also when it throws.
    std::function<void(BackwardCall<T>&, const BackwardEdit<T>&)> execute;
    std::function<std::int64_t(const Shape&, bool deterministic)> workspace_bytes;
    std::function<void(int run)> before_run;  // another order of warps on the emulator, for repeated runs
};

// The common cases: those of the forward, and some values of dO.
std::vector<BackwardCase> backward_cases(const Capabilities& capabilities);

template <class T> Report check_backward_conformance(const Capabilities&, const BackwardStep<T>&);

// Random small shapes, masks, storages and patterns. Case n is a function of seed + n alone.
template <class T>
Report check_backward_fuzz(const Capabilities&, const BackwardStep<T>&, std::uint64_t seed, int cases);

// Calls that must be refused, and faults that others have met: see conformance.hpp.
template <class T>
std::vector<NamedCheck> backward_bad_arguments(const Capabilities&, const BackwardStep<T>&);
template <class T>
std::vector<NamedCheck> backward_public_faults(const Capabilities&, const BackwardStep<T>&);

template <class T, template <class> class Buffer>
BackwardStep<T> backward_step(void (*backward)(const BackwardArgs<T>&), WorkspaceBytes workspace_bytes) {
    const auto execute = [backward](BackwardCall<T>& call, const BackwardEdit<T>& edit) {
        DeviceCopy<Buffer, T> q(call.q.memory), k(call.k.memory), v(call.v.memory), o(call.o.memory),
            d_o(call.d_o.memory), dq(call.dq.memory), dk(call.dk.memory), dv(call.dv.memory);
        DeviceCopy<Buffer, float> lse(call.lse);
        DeviceCopy<Buffer, std::byte> workspace(call.workspace);
        auto args = call.args({q.data(), k.data(), v.data(), o.data(), d_o.data(), lse.data(), dq.data(),
                               dk.data(), dv.data(), workspace.data()});
        if (edit) edit(args);
        const auto download_all = [&] {
            for (auto* copy : {&q, &k, &v, &o, &d_o, &dq, &dk, &dv}) copy->download();
            lse.download();
            workspace.download();
        };
        try {
            backward(args);
        } catch (...) {
            download_all();
            throw;
        }
        download_all();
    };
    BackwardStep<T> step{execute, workspace_bytes, [](int) {}};
    if constexpr (std::is_same_v<Buffer<T>, gpu::DeviceBuffer<T>>)
        step.before_run = [first = simt::seed()](int run) {
            simt::set_seed(first + static_cast<std::uint64_t>(run));
        };
    return step;
}

template <class T, template <class> class Buffer>
void run_backward_conformance(const Capabilities& capabilities, void (*backward)(const BackwardArgs<T>&),
                              WorkspaceBytes workspace_bytes) {
    expect_clean(
        check_backward_conformance<T>(capabilities, backward_step<T, Buffer>(backward, workspace_bytes)),
        std::string(capabilities.step) + " backward " + dtype_name<T>() + " conformance");
}

template <class T, template <class> class Buffer>
void run_backward_fuzz(const Capabilities& capabilities, void (*backward)(const BackwardArgs<T>&),
                       WorkspaceBytes workspace_bytes) {
    const auto seed = fuzz_seed();
    expect_clean(check_backward_fuzz<T>(capabilities, backward_step<T, Buffer>(backward, workspace_bytes),
                                        seed, fuzz_cases()),
                 std::string(capabilities.step) + " backward " + dtype_name<T>() +
                     " fuzz, FLASH_STEPS_SEED=" + std::to_string(seed));
}

template <class T, template <class> class Buffer>
void run_backward_bad_arguments(const Capabilities& capabilities, void (*backward)(const BackwardArgs<T>&),
                                WorkspaceBytes workspace_bytes) {
    expect_all(backward_bad_arguments<T>(capabilities, backward_step<T, Buffer>(backward, workspace_bytes)),
               std::string(capabilities.step) + " backward " + dtype_name<T>());
}

template <class T, template <class> class Buffer>
void run_backward_public_faults(const Capabilities& capabilities, void (*backward)(const BackwardArgs<T>&),
                                WorkspaceBytes workspace_bytes) {
    auto faults =
        backward_public_faults<T>(capabilities, backward_step<T, Buffer>(backward, workspace_bytes));
    faults.push_back(
        {"B6: offsets beyond 2^31 elements reach the right rows",
         [&] { return check_backward_wide_offsets<T, Buffer>(capabilities, backward, workspace_bytes); }});
    expect_all(faults, std::string(capabilities.step) + " backward " + dtype_name<T>());
}

}  // namespace flash::testing
