// What a backward is compared with: the rows of the expected gradients, and the O and L that the call is
// given.
#include <doctest/doctest.h>

#include "common/reference.hpp"
#include "common/testing/backward_case.hpp"
#include "common/testing/backward_rows.hpp"

using namespace flash;
using namespace flash::testing;

TEST_CASE_TEMPLATE("the gradients that steps are compared with are those of the reference, bit for bit", T,
                   float, fp16, bf16) {
    for (const Storage storage : {Storage::kBhnd, Storage::kMixed, Storage::kSharedRow}) {
        const Shape s{2, 4, 2, 9, 13, 8};
        auto call = make_backward_call<T>({{"", s, Mask::causal(-2), storage, Pattern::kIncreasing}}, false);
        const auto expected = expect_gradients(call, 1);
        const auto reference = reference_backward(call.host_args());
        CHECK(expected.dq.reference == reference.dq);
        CHECK(expected.dk.reference == reference.dk);
        CHECK(expected.dv.reference == reference.dv);
    }
}

TEST_CASE("of a large call a sample of rows is compared, each of them with the reference") {
    const Shape s{1, 2, 1, 800, 700, 32};
    REQUIRE(work_of(s) > 1 << 24);
    auto call = make_backward_call<float>({{"", s, Mask::causal_top_left()}}, false);
    const auto expected = expect_gradients(call, 1);
    for (const auto* rows : {&expected.dq, &expected.dk, &expected.dv}) CHECK(rows->rows.size() == 96);
    CHECK(expected.dq.rows.back() == 2 * 800 - 1);
    CHECK(expected.dk.rows.back() == 700 - 1);
    const auto reference = reference_backward(call.host_args());
    for (std::size_t r = 0; r < 96; ++r)
        for (std::size_t d = 0; d < 32; ++d) {
            CHECK(expected.dq.reference[r * 32 + d] ==
                  reference.dq[static_cast<std::size_t>(expected.dq.rows[r]) * 32 + d]);
            CHECK(expected.dv.reference[r * 32 + d] ==
                  reference.dv[static_cast<std::size_t>(expected.dv.rows[r]) * 32 + d]);
        }
}

TEST_CASE("the saved O and L of a call are those of an exact forward, rounded to their types") {
    auto call =
        make_backward_call<bf16>({{"", {1, 2, 1, 7, 9, 8}, Mask::causal(-1), Storage::kPadded}}, true);
    expect_gradients(call, 1);
    ForwardArgs<bf16> args;
    args.shape = call.shape;
    args.q = call.host_args().q;
    args.k = call.host_args().k;
    args.v = call.host_args().v;
    args.mask = call.mask;
    args.scale = call.scale;
    const auto exact = reference_forward(args);
    for (std::size_t row = 0; row < call.lse.size(); ++row)
        CHECK(call.lse[row] == static_cast<float>(exact.lse[row]));
    const auto o = dense_elements<double>(call.o);
    for (std::size_t at = 0; at < o.size(); ++at)
        CHECK(o[at] == static_cast<double>(to_float(from_float<bf16>(static_cast<float>(exact.o[at])))));
}
