// check_arguments refuses every call that breaks the contract and accepts every call that keeps it.
#include <doctest/doctest.h>

#include "common/argument_checks.hpp"
#include "common/testing/backward_conformance.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

constexpr Limits kLimits{"step 99", 256};
constexpr Limits kAlignedLimits{"step 99", 128, 8, true};

// Every bad argument of the shared list, against the checks alone.
template <class T> void only_checks(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
}
template <class T> void only_aligned_checks(const ForwardArgs<T>& args) {
    check_arguments(args, kAlignedLimits);
}

// A workspace of some size that depends on the mode.
std::int64_t workspace_bytes(const Shape& s, bool deterministic) {
    detail::check_shape(s, kLimits);
    return checked_bytes({s.batch, s.heads_q, s.len_q, deterministic ? 8 : 4});
}
template <class T> void only_backward_checks(const BackwardArgs<T>& args) {
    check_arguments(args, kLimits, workspace_bytes(args.shape, args.deterministic));
}
template <class T> void only_aligned_backward_checks(const BackwardArgs<T>& args) {
    check_arguments(args, kAlignedLimits, workspace_bytes(args.shape, args.deterministic));
}
// Aligned memory and a call on it that is right.
struct GoodCall {
    alignas(16) float memory[5][4096] = {};
    ForwardArgs<float> args;

    GoodCall() {
        args.shape = {2, 4, 2, 5, 6, 8};
        args.q = dense_bhnd<const float>(memory[0], 4, 5, 8);
        args.k = dense_bhnd<const float>(memory[1], 2, 6, 8);
        args.v = dense_bhnd<const float>(memory[2], 2, 6, 8);
        args.o = dense_bhnd(memory[3], 4, 5, 8);
        args.lse = memory[4];
        args.scale = 1;
    }
};

struct GoodBackwardCall {
    static constexpr std::int64_t kWorkspace = 1024;
    alignas(16) float memory[10][4096] = {};
    BackwardArgs<float> args;

    GoodBackwardCall() {
        args.shape = {2, 4, 2, 5, 6, 8};
        args.q = dense_bhnd<const float>(memory[0], 4, 5, 8);
        args.k = dense_bhnd<const float>(memory[1], 2, 6, 8);
        args.v = dense_bhnd<const float>(memory[2], 2, 6, 8);
        args.o = dense_bhnd<const float>(memory[3], 4, 5, 8);
        args.lse = memory[4];
        args.d_o = dense_bhnd<const float>(memory[5], 4, 5, 8);
        args.dq = dense_bhnd(memory[6], 4, 5, 8);
        args.dk = dense_bhnd(memory[7], 2, 6, 8);
        args.dv = dense_bhnd(memory[8], 2, 6, 8);
        args.scale = 1;
        args.workspace = memory[9];
        args.workspace_bytes = kWorkspace;
    }
};

void expect_accepted(const ForwardArgs<float>& args, const Limits& limits = kLimits) {
    CHECK_NOTHROW(check_arguments(args, limits));
}

}  // namespace

TEST_CASE_TEMPLATE("bad arguments are refused with one sentence that names them", T, float, fp16, bf16) {
    run_bad_arguments<T, HostBuffer>({.step = "step 99"}, &only_checks<T>);
}

TEST_CASE_TEMPLATE("a step that needs alignment refuses what is not aligned", T, fp16, bf16) {
    run_bad_arguments<T, HostBuffer>(
        {.step = "step 99", .max_head_dim = 128, .head_dim_multiple = 8, .aligned = true},
        &only_aligned_checks<T>);
}

TEST_CASE("a refusal says the value, what is accepted, and nothing more than one sentence") {
    GoodCall good;
    good.args.shape.head_dim = 300;
    CHECK_THROWS_WITH_AS(check_arguments(good.args, kLimits),
                         "shape.head_dim is 300; step 99 accepts any up to 256", std::invalid_argument);
    good.args.shape.head_dim = 4;
    CHECK_THROWS_WITH_AS(check_arguments(good.args, kAlignedLimits),
                         "shape.head_dim is 4; step 99 accepts multiples of 8 up to 128",
                         std::invalid_argument);
    good.args.shape.head_dim = 8;
    good.args.shape.heads_kv = 3;
    CHECK_THROWS_WITH_AS(
        check_arguments(good.args, kLimits),
        "shape.heads_kv is 3, which does not divide shape.heads_q = 4; every key head serves the "
        "same number of query heads",
        std::invalid_argument);
}

TEST_CASE("a call that keeps the contract is accepted, aligned or not") {
    GoodCall good;
    expect_accepted(good.args);
    expect_accepted(good.args, kAlignedLimits);
}

TEST_CASE("(B,N,H,D) storage is accepted, outputs included") {
    GoodCall good;
    good.args.q = dense_bnhd<const float>(good.memory[0], 4, 5, 8);
    good.args.o = dense_bnhd(good.memory[3], 4, 5, 8);
    expect_accepted(good.args);
}

TEST_CASE("stride 0 is accepted for inputs") {
    GoodCall good;
    good.args.q.stride_batch = good.args.k.stride_head = good.args.v.stride_row = 0;
    expect_accepted(good.args);
}

TEST_CASE("the stride of a dimension of size 1 does not matter") {
    GoodCall good;
    good.args.shape.batch = 1;
    good.args.o.stride_batch = 0;
    good.args.q.stride_batch = 3;
    expect_accepted(good.args, kAlignedLimits);
}

TEST_CASE("tensors without elements may be null") {
    GoodCall good;
    SUBCASE("no batch") {
        good.args.shape.batch = 0;
        good.args.q.data = good.args.k.data = good.args.v.data = nullptr;
        good.args.o.data = good.args.lse = nullptr;
    }
    SUBCASE("no heads at all") {
        good.args.shape.heads_q = good.args.shape.heads_kv = 0;
        good.args.q.data = good.args.k.data = good.args.v.data = nullptr;
        good.args.o.data = good.args.lse = nullptr;
    }
    SUBCASE("no queries") {
        good.args.shape.len_q = 0;
        good.args.q.data = good.args.o.data = good.args.lse = nullptr;
    }
    SUBCASE("no keys") {
        good.args.shape.len_kv = 0;
        good.args.k.data = good.args.v.data = nullptr;
    }
    SUBCASE("no channels, but L") {
        good.args.shape.head_dim = 0;
        good.args.q.data = good.args.k.data = good.args.v.data = nullptr;
        good.args.o.data = nullptr;
    }
    expect_accepted(good.args);
}

TEST_CASE("without keys and channels O and L still need memory of their own") {
    GoodCall good;
    good.args.shape.len_kv = 0;
    good.args.o.data = nullptr;
    CHECK_THROWS_AS(check_arguments(good.args, kLimits), std::invalid_argument);
}

TEST_CASE("inputs may share memory with each other") {
    GoodCall good;
    good.args.k.data = good.args.v.data = good.args.q.data;
    expect_accepted(good.args);
}

TEST_CASE("an output beside an input is accepted, one element earlier it is refused") {
    GoodCall good;
    float* everything = good.memory[0];
    const int q_elements = 2 * 4 * 5 * 8;
    good.args.q.data = everything;
    good.args.o.data = everything + q_elements;
    expect_accepted(good.args);
    good.args.o.data = everything + q_elements - 1;
    CHECK_THROWS_WITH_AS(check_arguments(good.args, kLimits),
                         "o overlaps q in memory; outputs need memory of their own", std::invalid_argument);
}

TEST_CASE("strides of dimensions without a second element become 0, the others stay") {
    ForwardArgs<bf16> args;
    args.shape = {1, 3, 1, 1, 5, 8};
    args.q = {nullptr, 7, 8, 1};
    args.k = {nullptr, INT64_MAX, 3, 8};
    args.v = args.k;
    args.o = {nullptr, 7, 8, 1};
    const auto tidy = without_idle_strides(args);
    CHECK(tidy.q.stride_batch == 0);
    CHECK(tidy.q.stride_head == 8);
    CHECK(tidy.q.stride_row == 0);
    CHECK(tidy.k.stride_batch == 0);
    CHECK(tidy.k.stride_head == 0);
    CHECK(tidy.k.stride_row == 8);
    CHECK(tidy.v.stride_row == 8);
    CHECK(tidy.o.stride_head == 8);
    CHECK(tidy.o.stride_row == 0);
}

TEST_CASE_TEMPLATE("bad backward arguments are refused with one sentence that names them", T, float, fp16,
                   bf16) {
    run_backward_bad_arguments<T, HostBuffer>({.step = "step 99"}, &only_backward_checks<T>,
                                              &workspace_bytes);
}

TEST_CASE_TEMPLATE("a backward that needs alignment refuses what is not aligned", T, fp16, bf16) {
    run_backward_bad_arguments<T, HostBuffer>(
        {.step = "step 99", .max_head_dim = 128, .head_dim_multiple = 8, .aligned = true},
        &only_aligned_backward_checks<T>, &workspace_bytes);
}

TEST_CASE(
    "a backward call that keeps the contract is accepted: stride 0 for dO, shared inputs, empty tensors") {
    const auto accepts = [](const GoodBackwardCall& call,
                            std::int64_t workspace = GoodBackwardCall::kWorkspace) {
        CHECK_NOTHROW(check_arguments(call.args, kLimits, workspace));
    };
    GoodBackwardCall good;
    accepts(good);
    good.args.d_o.stride_batch = good.args.d_o.stride_head = good.args.d_o.stride_row = 0;
    good.args.o.data = good.args.q.data;
    accepts(good);
    good.args.workspace = nullptr;
    good.args.workspace_bytes = 0;
    accepts(good, 0);
    good.args.shape.len_kv = 0;
    good.args.k.data = good.args.v.data = nullptr;
    good.args.dk.data = good.args.dv.data = nullptr;
    accepts(good, 0);
}

TEST_CASE("a refusal of a workspace says how much is needed") {
    GoodBackwardCall good;
    CHECK_THROWS_WITH_AS(check_arguments(good.args, kLimits, 1025),
                         "workspace_bytes is 1024; step 99 needs 1025 for this shape", std::invalid_argument);
    good.args.workspace = good.memory[6] + 160;
    CHECK_THROWS_WITH_AS(check_arguments(good.args, kLimits, 1024),
                         "dq overlaps workspace in memory; outputs need memory of their own",
                         std::invalid_argument);
}

TEST_CASE("the bytes of a workspace are a product that may not overflow") {
    constexpr std::int64_t kHuge = std::int64_t{1} << 40;
    CHECK(checked_bytes({3, 5, 7}) == 105);
    CHECK(checked_bytes({kHuge, 1 << 22}) == std::int64_t{1} << 62);
    CHECK(checked_bytes({kHuge, kHuge, 0}) == 0);
    CHECK_THROWS_AS(checked_bytes({kHuge, kHuge}), std::invalid_argument);
}

TEST_CASE("idle strides of a backward call become 0, the others stay") {
    GoodBackwardCall good;
    good.args.shape = {1, 4, 1, 1, 6, 8};
    const auto tidy = without_idle_strides(good.args);
    for (const auto* view : {&tidy.q, &tidy.o, &tidy.d_o}) {
        CHECK(view->stride_batch == 0);
        CHECK(view->stride_head == 40);
        CHECK(view->stride_row == 0);
    }
    for (const auto* view : {&tidy.dk, &tidy.dv}) {
        CHECK(view->stride_batch == 0);
        CHECK(view->stride_head == 0);
        CHECK(view->stride_row == 8);
    }
    CHECK(tidy.k.stride_row == 8);
    CHECK(tidy.v.stride_head == 0);
    CHECK(tidy.dq.stride_head == 40);
    CHECK(tidy.dq.stride_row == 0);
}
