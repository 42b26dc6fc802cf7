// The tests that every step's forward must pass, called from the step's test.cpp:
//
//   run_forward_conformance<float, HostBuffer>({.step = "step 03"}, &step03::attention_forward);
//
// Buffer is HostBuffer for a CPU step, flash::gpu::DeviceBuffer from step 04 on. Each case allocates, fills,
// calls and judges; a failure says all that is needed to repeat it. The check_* functions return what they
// found, so that tests/reference can show that wrong kernels are caught; the run_* functions hand it to
// doctest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/testing/device_copy.hpp"
#include "common/testing/forward_case.hpp"
#include "common/testing/host_buffer.hpp"
#include "common/testing/wide_offsets.hpp"

namespace flash::testing {

// A change to the arguments just before the call, for calls that must be refused. May be empty.
template <class T> using Edit = std::function<void(ForwardArgs<T>&)>;

// Runs a step on the tensors of a call: inputs copied in, all memories copied back out, also when it throws.
template <class T> using Execute = std::function<void(ForwardCall<T>&, const Edit<T>&)>;

struct Report {
    int cases = 0;                 // run; cases beyond the step's max_work are left out
    std::int64_t compared = 0;     // elements of O and L
    double worst_error_share = 0;  // largest error divided by what is allowed
    double worst_twin_share = 0;   // largest error of the twin divided by what theory allows it
    std::vector<std::string> failures;
};

// The common cases: shapes x masks x storage orders x value patterns.
std::vector<ForwardCase> forward_cases(const Capabilities& capabilities);

// A random small case, a function of the seed alone.
ForwardCase fuzz_case(const Capabilities& capabilities, std::uint64_t seed);

// A head dimension that the step supports, as close to the wanted one as possible.
int supported_head_dim(int head_dim, const Capabilities& capabilities);

template <class T> Report check_forward_conformance(const Capabilities&, const Execute<T>&);

// Random small shapes, masks, storages and patterns. Case n is a function of seed + n alone.
template <class T>
Report check_forward_fuzz(const Capabilities&, const Execute<T>&, std::uint64_t seed, int cases);

// One thing to check, named by a sentence.
struct NamedCheck {
    std::string title;                   // "A5: a query that sees no key has L = -inf and O = 0"
    std::function<std::string()> check;  // what is wrong; empty when the step does right
};

// Calls that break the contract or the step's limits: each must be refused by a sentence that names the
// argument, with nothing written.
template <class T> std::vector<NamedCheck> bad_arguments(const Capabilities&, const Execute<T>&);

// Faults that others have met in kernels like these, each by its id.
template <class T> std::vector<NamedCheck> public_faults(const Capabilities&, const Execute<T>&);

// What the check finds wrong, or what it threw.
std::string outcome_of(const NamedCheck& check);

// One doctest subcase per check.
void expect_all(const std::vector<NamedCheck>& checks, const std::string& title);

// Prints a summary line; fails the current doctest test case for every failure and when no case ran.
void expect_clean(const Report& report, const std::string& title);

// FLASH_STEPS_SEED and FLASH_STEPS_FUZZ (number of cases), with their defaults; nonsense in them is an error.
std::uint64_t fuzz_seed();
int fuzz_cases();

template <class T, template <class> class Buffer>
Execute<T> execute_on(void (*forward)(const ForwardArgs<T>&)) {
    return [forward](ForwardCall<T>& call, const Edit<T>& edit) {
        DeviceCopy<Buffer, T> q(call.q.memory), k(call.k.memory), v(call.v.memory), o(call.o.memory);
        DeviceCopy<Buffer, float> lse(call.lse);
        auto args = call.args(q.data(), k.data(), v.data(), o.data(), lse.data());
        if (edit) edit(args);
        const auto download_all = [&] {
            for (auto* copy : {&q, &k, &v, &o}) copy->download();
            lse.download();
        };
        try {
            forward(args);
        } catch (...) {
            download_all();
            throw;
        }
        download_all();
    };
}

template <class T, template <class> class Buffer>
void run_forward_conformance(const Capabilities& capabilities, void (*forward)(const ForwardArgs<T>&)) {
    expect_clean(check_forward_conformance<T>(capabilities, execute_on<T, Buffer>(forward)),
                 std::string(capabilities.step) + " " + dtype_name<T>() + " conformance");
}

template <class T, template <class> class Buffer>
void run_forward_fuzz(const Capabilities& capabilities, void (*forward)(const ForwardArgs<T>&)) {
    const auto seed = fuzz_seed();
    expect_clean(check_forward_fuzz<T>(capabilities, execute_on<T, Buffer>(forward), seed, fuzz_cases()),
                 std::string(capabilities.step) + " " + dtype_name<T>() +
                     " fuzz, FLASH_STEPS_SEED=" + std::to_string(seed));
}

template <class T, template <class> class Buffer>
void run_bad_arguments(const Capabilities& capabilities, void (*forward)(const ForwardArgs<T>&)) {
    expect_all(bad_arguments<T>(capabilities, execute_on<T, Buffer>(forward)),
               std::string(capabilities.step) + " " + dtype_name<T>());
}

template <class T, template <class> class Buffer>
void run_public_faults(const Capabilities& capabilities, void (*forward)(const ForwardArgs<T>&)) {
    auto faults = public_faults<T>(capabilities, execute_on<T, Buffer>(forward));
    faults.push_back({"B6: offsets beyond 2^31 elements reach the right rows",
                      [&] { return check_wide_offsets<T, Buffer>(capabilities, forward); }});
    expect_all(faults, std::string(capabilities.step) + " " + dtype_name<T>());
}

}  // namespace flash::testing
