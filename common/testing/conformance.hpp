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
#include <optional>
#include <string>
#include <vector>

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
        // An empty tensor is passed as null: the contract allows it.
        const auto upload = []<class U>(std::optional<Buffer<U>>& buffer, const std::vector<U>& memory) {
            if (memory.empty()) return static_cast<U*>(nullptr);
            buffer.emplace(memory.size());
            buffer->copy_from_host(memory.data());
            return buffer->data();
        };
        const auto download = []<class U>(const std::optional<Buffer<U>>& buffer, std::vector<U>& memory) {
            if (buffer) buffer->copy_to_host(memory.data());
        };
        std::optional<Buffer<T>> q, k, v, o;
        std::optional<Buffer<float>> lse;
        auto args = call.args(upload(q, call.q.memory), upload(k, call.k.memory), upload(v, call.v.memory),
                              upload(o, call.o.memory), upload(lse, call.lse));
        if (edit) edit(args);
        const auto download_all = [&] {
            download(q, call.q.memory);
            download(k, call.k.memory);
            download(v, call.v.memory);
            download(o, call.o.memory);
            download(lse, call.lse);
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
