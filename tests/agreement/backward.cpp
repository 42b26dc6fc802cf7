// Step 09's backward, in both types and both modes, beside its tiled backward on the CPU in fp32, which gets
// the values that the narrower types can represent: only arithmetic differs and never the input.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/reference.hpp"
#include "common/testing/backward_conformance.hpp"
#include "common/testing/backward_rows.hpp"
#include "common/testing/needs_device.hpp"
#include "common/testing/tolerance.hpp"
#include "steps/09_fa2_backward/attention.hpp"
#include "steps/09_fa2_backward/backward_cpu.hpp"

namespace {

using namespace flash;
using namespace flash::testing;

const std::vector<ForwardCase> kProblems = {
    {"one query, one key", {1, 1, 1, 1, 1, 8}},
    {"whole tiles", {1, 2, 2, 128, 128, 64}},
    {"whole tiles, causal", {1, 2, 2, 128, 128, 64}, Mask::causal(0)},
    {"ragged, grouped heads, last query sees every key", {2, 4, 2, 37, 53, 32}, Mask::causal(53 - 37)},
    {"more queries than keys: the first rows see no key", {1, 3, 1, 70, 20, 40}, Mask::causal(20 - 70)},
    {"wide head, several key tiles", {1, 1, 1, 17, 130, 128}},
    {"widest head", {1, 1, 1, 70, 80, 256}, Mask::causal(10)},
};

template <class T> void copy_values(const HostTensor<T>& from, HostTensor<float>& to) {
    for (int b = 0; b < from.batch; ++b)
        for (int h = 0; h < from.heads; ++h)
            for (int n = 0; n < from.len; ++n)
                for (int d = 0; d < from.head_dim; ++d)
                    to.memory[static_cast<std::size_t>(to.index(b, h, n, d))] =
                        to_float(from.memory[static_cast<std::size_t>(from.index(b, h, n, d))]);
}

double largest(const std::vector<float>& values) {
    double worst = 0;
    for (const float x : values) worst = std::max(worst, std::abs(double{x}));
    return worst;
}

// max |a - b|; NaN when any is.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double error = std::abs(double{a[i]} - double{b[i]});
        worst = std::isnan(worst) || std::isnan(error) ? NAN : std::max(worst, error);
    }
    return worst;
}

// Whether two results differ by no more than three times what an honest backward in type T is from double
// precision, and a few ulps.
template <class T>
bool agree(const HostTensor<T>& a, const HostTensor<float>& b, const std::vector<float>& twin,
           const std::vector<double>& reference) {
    const std::vector<float> exact(reference.begin(), reference.end());
    return distance(dense_elements<float>(a), dense_elements<float>(b)) <=
           3 * distance(twin, exact) + 4 * format_of<T>().ulp(largest(exact));
}

template <class T> void check_problem(const ForwardCase& problem) {
    CAPTURE(problem.name);
    CAPTURE(std::string(dtype_name<T>()));
    auto call = make_backward_call<T>({problem}, true);
    expect_gradients(call, 1);  // leaves O and L in it
    auto on_cpu = make_backward_call<float>({problem}, true);
    copy_values(call.q, on_cpu.q);
    copy_values(call.k, on_cpu.k);
    copy_values(call.v, on_cpu.v);
    copy_values(call.o, on_cpu.o);
    copy_values(call.d_o, on_cpu.d_o);
    on_cpu.lse = call.lse;
    on_cpu.choose_mode(false, 0);
    step09::attention_backward_cpu(on_cpu.host_args());
    const auto twin = twin_backward(call.host_args());
    const auto exact = reference_backward(call.host_args());
    const auto step = backward_step<T, gpu::DeviceBuffer>(&step09::attention_backward<T>,
                                                          &step09::backward_workspace_bytes);
    for (const bool deterministic : {false, true}) {
        call.choose_mode(deterministic, step09::backward_workspace_bytes(call.shape, deterministic));
        auto run = call;
        step.execute(run, {});
        CAPTURE(deterministic);
        CHECK(agree(run.dq, on_cpu.dq, twin.dq, exact.dq));
        CHECK(agree(run.dk, on_cpu.dk, twin.dk, exact.dk));
        CHECK(agree(run.dv, on_cpu.dv, twin.dv, exact.dv));
    }
}

}  // namespace

TEST_CASE_TEMPLATE("step 09's gradients agree with its tiled backward on the CPU, whatever type and mode", T,
                   fp16, bf16) {
    for (const ForwardCase& problem : kProblems) check_problem<T>(problem);
}
