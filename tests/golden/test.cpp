// The shared reference against golden values that another implementation computed (make_golden.py).
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "common/reference.hpp"
#include "tests/golden/golden.hpp"

using namespace flash;

namespace {

constexpr double kTolerance = 1e-12;

// Element by element; -inf equals -inf only.
void expect_equal(const char* tensor, const std::vector<double>& got, const std::vector<double>& want) {
    REQUIRE(got.size() == want.size());
    REQUIRE(got.size() > 0);
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO(std::string(tensor) << "[" << i << "]: got " << got[i] << ", want " << want[i]);
        const bool is_equal =
            std::isinf(want[i]) ? got[i] == want[i] : std::abs(got[i] - want[i]) <= kTolerance;
        CHECK(is_equal);
    }
}

template <class Args> void set_inputs(Args& args, const golden::Case& c) {
    const Shape& s = c.shape;
    args.shape = s;
    args.q = dense_bhnd(c.q.data(), s.heads_q, s.len_q, s.head_dim);
    args.k = dense_bhnd(c.k.data(), s.heads_kv, s.len_kv, s.head_dim);
    args.v = dense_bhnd(c.v.data(), s.heads_kv, s.len_kv, s.head_dim);
    args.mask = c.mask;
    args.scale = c.scale;
}

}  // namespace

TEST_CASE("the reference forward equals the golden values") {
    for (const auto& c : golden::kCases) {
        INFO(std::string(c.name));
        ForwardArgs<float> args;
        set_inputs(args, c);
        const auto result = reference_forward(args);
        expect_equal("O", result.o, c.o);
        expect_equal("L", result.lse, c.lse);
    }
}

TEST_CASE("the reference gradients equal the golden values") {
    for (const auto& c : golden::kCases) {
        INFO(std::string(c.name));
        BackwardArgs<float> args;
        set_inputs(args, c);
        args.d_o = dense_bhnd(c.d_o.data(), c.shape.heads_q, c.shape.len_q, c.shape.head_dim);
        const auto result = reference_backward(args);
        expect_equal("dQ", result.dq, c.dq);
        expect_equal("dK", result.dk, c.dk);
        expect_equal("dV", result.dv, c.dv);
    }
}

TEST_CASE("the golden cases hold rows without a key, and they are zero with L = -inf") {
    int empty_rows = 0;
    for (const auto& c : golden::kCases) {
        for (std::size_t row = 0; row < c.lse.size(); ++row) {
            if (!std::isinf(c.lse[row])) continue;
            ++empty_rows;
            const auto D = static_cast<std::size_t>(c.shape.head_dim);
            for (std::size_t d = row * D; d < (row + 1) * D; ++d) {
                CHECK(c.o[d] == 0);
                CHECK(c.dq[d] == 0);
            }
        }
    }
    CHECK(empty_rows == 3);
}
