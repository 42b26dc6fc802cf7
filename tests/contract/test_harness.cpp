// The tools that judge the steps: the tolerance rule, the canary, the generator, the real input.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "common/reference.hpp"
#include "common/testing/backward_case.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/random.hpp"
#include "common/testing/real_model.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

Verdict compare_with(const Values& out, const Values& reference, const Values& twin, Gate gate) {
    return compare({out, reference, twin}, gate);
}

template <class T> T& element(HostTensor<T>& t, int h, int n, int d) {
    return t.memory[static_cast<std::size_t>(t.index(0, h, n, d))];
}

// Element (h, n, d) of the result of one batch entry becomes that of dense values (H, N, D).
template <class T> void write_dense(HostTensor<T>& t, const Values& values) {
    set(t, [&](int h, int n, int d) {
        return static_cast<float>(values[static_cast<std::size_t>((h * t.len + n) * t.head_dim + d)]);
    });
}

// The call as a step without any error would leave it.
ForwardCall<float> answered(ForwardCall<float> call) {
    const auto exact = reference_forward(call.host_args());
    write_dense(call.o, exact.o);
    for (std::size_t row = 0; row < exact.lse.size(); ++row)
        call.lse[ForwardCall<float>::kLseGuard + row] = static_cast<float>(exact.lse[row]);
    return call;
}

std::string failure_of(const ForwardCall<float>& asked, ForwardCall<float> answer) {
    return judge(asked, answer, Pattern::kNormal, 1).failure;
}

// Where a step may write nothing: before a tensor, behind a row, behind a head, at the end.
template <class T> std::vector<std::size_t> places_outside(const HostTensor<T>& t) {
    return {static_cast<std::size_t>(t.first) - 1, static_cast<std::size_t>(t.index(0, 0, 3, t.head_dim)),
            static_cast<std::size_t>(t.index(0, 1, 0, 0)) - 1, t.memory.size() - 1};
}

}  // namespace

TEST_CASE("an error of twice the twin's plus the floor passes, a little more fails") {
    const Values reference = {1, 2, 3}, twin = {1, 2.25, 3};
    const Gate gate{2, 0.125, 1};
    CHECK(compare_with({1, 2, 3.625}, reference, twin, gate).why.empty());
    const auto verdict = compare_with({1, 2, 3.626}, reference, twin, gate);
    CHECK(verdict.first_wrong == 2);
    CHECK(verdict.why == "the error is larger than allowed");
    CHECK(verdict.compared == 3);
    CHECK(verdict.allowed == 0.625);
}

TEST_CASE("NaN fails where a number is wanted") {
    CHECK(compare_with({1, kNan}, {1, 2}, {1, 2}, {2, 1, 1}).first_wrong == 1);
    CHECK(compare_with({kInf, 2}, {1, 2}, {1, 2}, {2, 1, 1}).first_wrong == 0);
}

TEST_CASE("NaN and infinity must match by kind and position") {
    const Values reference = {kNan, kInf, -kInf, 1};
    const Gate gate{2, 1, 1};
    CHECK(compare_with(reference, reference, reference, gate).why.empty());
    CHECK(compare_with({0, kInf, -kInf, 1}, reference, reference, gate).first_wrong == 0);
    CHECK(compare_with({kNan, -kInf, -kInf, 1}, reference, reference, gate).first_wrong == 1);
    CHECK(compare_with({kNan, kInf, kNan, 1}, reference, reference, gate).first_wrong == 2);
    CHECK(compare_with(reference, reference, reference, gate).finite == 1);
}

TEST_CASE("a broken twin cannot widen the gate") {
    const auto verdict = compare_with({1.5, 2}, {1, 2}, {9, 2}, {2, 0, 0.5});
    CHECK(verdict.why == "the twin itself is further off than theory allows");
    CHECK(compare_with({1, 2}, {1, 2}, {kNan, 2}, {2, 0, 0.5}).first_wrong == 0);
}

TEST_CASE("comparing fewer elements than there are is an error") {
    CHECK_THROWS_AS(compare_with({1}, {1, 2}, {1, 2}, {}), std::logic_error);
}

TEST_CASE("the spacing of numbers is that of the format") {
    CHECK(format_of<float>().ulp(1.0) == std::ldexp(1.0, -23));
    CHECK(format_of<fp16>().ulp(1.5) == std::ldexp(1.0, -10));
    CHECK(format_of<bf16>().ulp(-256.0) == 2.0);
    CHECK(format_of<fp16>().ulp(0) == std::ldexp(1.0, -24));
}

TEST_CASE_TEMPLATE("no computation yields the canary", T, float, fp16, bf16) {
    CHECK(std::isnan(to_float(canary<T>())));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    for (const float x : {nan, -nan, inf - inf, 0 * inf, std::sqrt(-1.0f)})
        CHECK(bits_of(from_float<T>(x)) != bits_of(canary<T>()));
}

TEST_CASE("random numbers are the same on every platform") {
    CHECK(random_bits(1, 0) == 0x61ae7fc1035d593du);
    CHECK(random_normal(1, 0) == -149906 * 0x1p-16f);
    double sum = 0, squares = 0;
    constexpr int kCount = 100'000;
    for (std::uint64_t n = 0; n < kCount; ++n) {
        const double x = static_cast<double>(random_normal(5, n));
        sum += x;
        squares += x * x;
    }
    CHECK(std::abs(sum / kCount) < 0.02);
    CHECK(std::abs(squares / kCount - 1) < 0.02);
}

TEST_CASE("guard bands hold NaN and the canary around every tensor, whatever its strides") {
    for (const Storage storage : {Storage::kBnhd, Storage::kPadded, Storage::kMixed}) {
        auto call = make_call<float>({"", {2, 2, 1, 5, 7, 6}, Mask::none(), storage}, false);
        CHECK(std::isnan(call.q.memory.back()) != (storage == Storage::kMixed));
        CHECK(bits_of(call.o.memory.front()) == bits_of(canary<float>()));
        std::set<std::int64_t> places;
        for (int b = 0; b < 2; ++b)
            for (int h = 0; h < 2; ++h)
                for (int n = 0; n < 5; ++n)
                    for (int d = 0; d < 6; ++d) places.insert(call.q.index(b, h, n, d));
        CHECK(places.size() == 120);
        CHECK(*places.rbegin() < static_cast<std::int64_t>(call.q.memory.size()));
    }
}

TEST_CASE(
    "of a call too large for a full reference 96 rows are compared, and every element must be written") {
    // Equal scores and V = 1: O = 1 and L = ln 2048.
    auto call = make_call<float>(
        {"", {1, 2, 1, 512, 2048, 16}, Mask::none(), Storage::kBhnd, Pattern::kZeros}, false);
    for (float& v : call.v.memory) v = 1;
    const auto before = call;
    for (int h = 0; h < 2; ++h)
        for (int i = 0; i < 512; ++i)
            for (int d = 0; d < 16; ++d)
                call.o.memory[static_cast<std::size_t>(call.o.index(0, h, i, d))] = 1;
    for (std::size_t row = 0; row < 1024; ++row) call.lse[64 + row] = std::log(2048.0f);
    REQUIRE(work_of(call.shape) > 1 << 24);
    const auto right = judge(before, call, Pattern::kZeros, 3);
    CHECK(right.failure == "");
    CHECK(right.compared == 96 * 17);

    auto last_row_wrong = call;
    last_row_wrong.lse[64 + 1023] = 7;
    CHECK(judge(before, last_row_wrong, Pattern::kZeros, 3).failure.find("L[b=0, h=1, i=511]") == 0);
    auto unwritten = call;
    unwritten.o.memory[static_cast<std::size_t>(unwritten.o.index(0, 1, 77, 5))] = canary<float>();
    CHECK(judge(before, unwritten, Pattern::kZeros, 3).failure == "O[b=0, h=1, i=77, d=5] was never written");
}

TEST_CASE("an element of O or L that is not written is reported, also where NaN is right") {
    const Shape s{1, 2, 1, 5, 7, 6};
    auto asked = make_call<float>({"", s, Mask::none(), Storage::kPadded}, false);
    element(asked.q, 1, 2, 0) = std::numeric_limits<float>::quiet_NaN();
    const auto right = answered(asked);
    CHECK(failure_of(asked, right) == "");
    CHECK(std::isnan(right.lse[64 + 7]));

    auto call = right;
    element(call.o, 1, 2, 4) = canary<float>();
    CHECK(failure_of(asked, call) == "O[b=0, h=1, i=2, d=4] was never written");
    for (const std::size_t row : {0, 7, 9}) {
        call = right;
        call.lse[64 + row] = canary<float>();
        CHECK(failure_of(asked, call) == "L[" + std::to_string(row) + "] was never written");
    }
}

TEST_CASE("a write outside of O or L is reported, also between rows that are right") {
    const Shape s{1, 2, 1, 5, 7, 6};
    const auto asked = make_call<float>({"", s, Mask::none(), Storage::kPadded}, false);
    const auto right = answered(asked);
    CHECK(failure_of(asked, right) == "");

    for (const std::size_t at : places_outside(right.o)) {
        auto call = right;
        call.o.memory[at] = 0;
        CHECK(failure_of(asked, call) ==
              "the step wrote outside O: " + std::to_string(static_cast<std::int64_t>(at) - call.o.first) +
                  " elements after its first one");
    }
    for (const int row : {-64, -1, 10, 73}) {
        auto call = right;
        call.lse[static_cast<std::size_t>(64 + row)] = 0;
        CHECK(failure_of(asked, call) == "the step wrote outside L, at its element " + std::to_string(row));
    }
}

TEST_CASE("a write outside of dQ, dK or dV is reported, also between rows that are right") {
    auto asked = make_backward_call<float>({{"", {1, 2, 2, 5, 7, 6}, Mask::none(), Storage::kPadded}}, false);
    const auto expected = expect_gradients(asked, 1);
    auto right = asked;
    write_dense(right.dq, expected.dq.reference);
    write_dense(right.dk, expected.dk.reference);
    write_dense(right.dv, expected.dv.reference);
    CHECK(judge(asked, right, expected, Pattern::kNormal).failure == "");

    struct Gradient {
        const char* name;
        HostTensor<float> BackwardCall<float>::*tensor;
    };
    for (const auto& [name, tensor] :
         {Gradient{"dQ", &BackwardCall<float>::dq}, Gradient{"dK", &BackwardCall<float>::dk},
          Gradient{"dV", &BackwardCall<float>::dv}}) {
        for (const std::size_t at : places_outside(right.*tensor)) {
            auto call = right;
            (call.*tensor).memory[at] = 0;
            const std::string wanted = std::string("the step wrote outside ") + name + ": ";
            CHECK(judge(asked, call, expected, Pattern::kNormal).failure.find(wanted) == 0);
        }
        auto call = right;
        element(call.*tensor, 1, 3, 5) = canary<float>();
        CHECK(judge(asked, call, expected, Pattern::kNormal).failure ==
              std::string(name) + "[b=0, h=1, i=3, d=5] was never written");
    }
}

TEST_CASE("the conformance cases cover every pattern, storage and mask within a small step's work") {
    std::set<Pattern> patterns;
    std::set<Storage> storages;
    std::set<std::string> names;
    const auto cases = forward_cases({.step = "", .max_work = 1'200'000});
    for (const auto& c : cases) {
        patterns.insert(c.pattern);
        storages.insert(c.storage);
        CHECK(names.insert(describe(c, "")).second);
    }
    CHECK(patterns.size() == static_cast<std::size_t>(Pattern::kRealModel) + 1);
    CHECK(storages.size() == static_cast<std::size_t>(Storage::kSharedRow) + 1);
}

TEST_CASE("cases adapt to the head dimensions a step supports") {
    for (const auto& c : forward_cases({.step = "", .max_head_dim = 128, .head_dim_multiple = 8})) {
        CHECK(c.shape.head_dim % 8 == 0);
        CHECK(c.shape.head_dim <= 128);
    }
}

TEST_CASE("the real input is what its README says") {
    const RealModel& model = real_model();
    CHECK(model.heads == 12);
    CHECK(model.tokens == 134);
    CHECK(model.head_dim == 32);
    float largest = 0;
    for (const float x : model.values) largest = std::max(largest, std::abs(x));
    CHECK(largest > 5);
    CHECK(largest < 10);
}

TEST_CASE("a missing or damaged fixture is named") {
    CHECK_THROWS_WITH_AS(load_real_model("no/such/file.npy"), "no/such/file.npy: not a readable .npy file",
                         std::runtime_error);
    const char* path = "damaged_fixture.npy";
    std::ofstream(path, std::ios::binary) << "\x93NUMPY\x01" << '\0' << "\x10" << '\0' << "{'descr': '<f8'}";
    CHECK_THROWS_AS(load_real_model(path), std::runtime_error);
    std::remove(path);
}
