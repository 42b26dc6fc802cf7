// Every step of the library on the same problem. Step 03 in fp32 is what the others are held to: it gets the
// values that the narrower types can represent, so that only arithmetic differs and never the input.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "common/testing/tolerance.hpp"
#include "tests/library/c_call.hpp"

namespace {

using namespace flash;
using namespace flash::testing;

struct Problem {
    const char* name;
    Shape shape;
    Mask mask;
};

// Head dimensions that every step takes: multiples of 8 up to 128.
const std::vector<Problem> kProblems = {
    {"one query, one key", {1, 1, 1, 1, 1, 8}, Mask::none()},
    {"whole tiles", {1, 2, 2, 64, 64, 64}, Mask::none()},
    {"whole tiles, causal", {1, 2, 2, 64, 64, 64}, Mask::causal(0)},
    {"ragged, grouped heads, last query sees every key", {2, 4, 2, 37, 53, 32}, Mask::causal(53 - 37)},
    {"more queries than keys: the first rows see no key", {1, 3, 1, 70, 20, 40}, Mask::causal(20 - 70)},
    {"wide head, several key tiles", {1, 1, 1, 17, 130, 128}, Mask::none()},
    {"no keys", {1, 2, 1, 5, 0, 16}, Mask::none()},
};

struct Result {
    std::vector<float> o, lse;
};

template <class T> Result run(const FlashStepInfo& step, const Problem& problem, const Inputs& inputs) {
    ForwardCall<T> forward(step, problem.shape, problem.mask, inputs);
    REQUIRE_MESSAGE(forward.run() == FLASH_OK, std::string(step.name), ": ",
                    std::string(flash_steps_last_error()));
    return {forward.o(), forward.lse()};
}

// max |a - b| over numbers; elements that are not finite must be equal.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(b[i])) {
            CHECK(a[i] == b[i]);
            continue;
        }
        const double error = std::abs(double{a[i]} - double{b[i]});
        worst = std::isnan(worst) ? worst : std::isnan(error) ? error : std::max(worst, error);
    }
    return worst;
}

double largest(const std::vector<float>& values) {
    double worst = 0;
    for (const float x : values)
        if (std::isfinite(x)) worst = std::max(worst, std::abs(double{x}));
    return worst;
}

// How far a step of type T may be from step 03: twice what the naive algorithm in that type is, and a few
// ulps.
template <class T> void check_against_step_03(const Problem& problem, std::uint64_t seed, int& compared) {
    const auto steps = library_steps();
    const Inputs inputs = random_inputs<T>(problem.shape, seed);
    const Result want = run<float>(steps.front(), problem, inputs);
    for (const FlashStepInfo& step : steps) {
        if (step.step == 3 || !step.accepts_dtype[dtype_code<T>()] || !can_run(step)) continue;
        ForwardCall<T> forward(step, problem.shape, problem.mask, inputs);
        const auto twin = twin_forward(forward.host_args());
        const double allowed_o = 2 * distance(twin.o, want.o) + 4 * format_of<T>().ulp(largest(want.o));
        const double allowed_lse =
            2 * distance(twin.lse, want.lse) + 4 * format_of<float>().ulp(largest(want.lse));
        const Result got = run<T>(step, problem, inputs);
        CAPTURE(std::string(step.name));
        CAPTURE(std::string(problem.name));
        CAPTURE(std::string(dtype_name<T>()));
        CHECK(distance(got.o, want.o) <= allowed_o);
        CHECK(distance(got.lse, want.lse) <= allowed_lse);
        ++compared;
    }
}

}  // namespace

TEST_CASE("all steps agree with step 03 on the same problem, whatever their type") {
    int expected = 0, compared = 0;
    for (const FlashStepInfo& step : library_steps()) {
        if (step.step == 3) continue;
        if (!can_run(step)) {
            MESSAGE(std::string(step.name), " is left out: ", std::string(flash_steps_last_error()));
            continue;
        }
        for (const int takes : step.accepts_dtype) expected += takes;
    }
    std::uint64_t seed = 100;
    for (const Problem& problem : kProblems) {
        check_against_step_03<float>(problem, ++seed, compared);
        check_against_step_03<fp16>(problem, ++seed, compared);
        check_against_step_03<bf16>(problem, ++seed, compared);
    }
    CHECK(compared == expected * static_cast<int>(kProblems.size()));
}

TEST_CASE("step 03 agrees with the double-precision reference on the same problems") {
    std::uint64_t seed = 200;
    for (const Problem& problem : kProblems) {
        CAPTURE(std::string(problem.name));
        const Inputs inputs = random_inputs<float>(problem.shape, ++seed);
        ForwardCall<float> forward(library_steps().front(), problem.shape, problem.mask, inputs);
        const auto reference = reference_forward(forward.host_args());
        const auto twin = twin_forward(forward.host_args());
        const std::vector<float> want_o(reference.o.begin(), reference.o.end());
        const std::vector<float> want_lse(reference.lse.begin(), reference.lse.end());
        const Result got = run<float>(library_steps().front(), problem, inputs);
        CHECK(distance(got.o, want_o) <=
              2 * distance(twin.o, want_o) + 4 * format_of<float>().ulp(largest(want_o)));
        CHECK(distance(got.lse, want_lse) <=
              2 * distance(twin.lse, want_lse) + 4 * format_of<float>().ulp(largest(want_lse)));
    }
}
