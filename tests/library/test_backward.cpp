// The backward through the C interface: what the interface adds to the steps' own C++ functions. Whether the
// gradients are the right numbers is the step's own test's business.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "tests/library/c_backward_call.hpp"

namespace {

using namespace flash;
using namespace flash::testing;

constexpr Shape kSmall{1, 4, 2, 5, 7, 16};

std::string last_error() {
    return flash_steps_last_error();
}

bool mentions(const std::string& text) {
    return last_error().find(text) != std::string::npos;
}

// Calls check.operator()<T>(step) for every step with a backward that can run here, and every dtype it takes.
template <class Check> void for_every_dtype(Check check) {
    int checked = 0;
    for (const FlashStepInfo& step : library_steps()) {
        if (!takes_backward(step)) continue;
        CAPTURE(std::string(step.name));
        if (step.accepts_dtype[FLASH_FP16]) check.template operator()<fp16>(step);
        if (step.accepts_dtype[FLASH_BF16]) check.template operator()<bf16>(step);
        ++checked;
    }
    if (checked == 0) {
        MESSAGE("no step with a backward can run here: ", last_error());
        REQUIRE(std::string(flash_steps_backend()) == "cuda");
    }
}

// A call that is right but for one change must be refused, the argument be named and nothing be written.
void refused(const std::string& names, void (*spoil)(FlashBackward&)) {
    for_every_dtype([&]<class T>(const FlashStepInfo& step) {
        CBackwardCall<T> backward(step, kSmall, Mask::none(), 1, false);
        spoil(backward.call);
        CHECK(backward.run() == FLASH_BAD_ARGUMENT);
        CHECK_MESSAGE(mentions(names), "'", last_error(), "' should mention '", names, "'");
        CHECK(backward.nothing_written());
    });
}

double largest_difference(const std::vector<float>& got, const std::vector<double>& want) {
    REQUIRE(got.size() == want.size());
    REQUIRE(!got.empty());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(double{got[i]} - want[i]);
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    return worst;
}

}  // namespace

TEST_CASE("step 09 is the one with a backward") {
    int found = 0;
    for (const FlashStepInfo& step : library_steps()) {
        CHECK(step.has_backward == (step.step == 9));
        found += step.has_backward;
    }
    CHECK(found == 1);
}

TEST_CASE("every tensor of a backward call reaches the step as the argument that it is") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        for (const bool deterministic : {false, true}) {
            CBackwardCall<T> backward(step, kSmall, Mask::causal_bottom_right(kSmall), 2, deterministic);
            REQUIRE_MESSAGE(backward.run() == FLASH_OK, last_error());
            CHECK(last_error().empty());
            const auto want = reference_backward(backward.host_args());
            const double room = sizeof(T) == 2 && dtype_code<T>() == FLASH_BF16 ? 0.05 : 0.01;
            CHECK(largest_difference(backward.dq(), want.dq) <= room);
            CHECK(largest_difference(backward.dk(), want.dk) <= room);
            CHECK(largest_difference(backward.dv(), want.dv) <= room);
        }
    });
}

TEST_CASE(
    "C7: the deterministic flag reaches the step: its workspace is smaller and its runs give the same bits") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        CBackwardCall<T> fast(step, kSmall, Mask::none(), 3, false);
        CBackwardCall<T> first(step, kSmall, Mask::none(), 3, true);
        CHECK(first.call.workspace_bytes < fast.call.workspace_bytes);
        REQUIRE_MESSAGE(first.run() == FLASH_OK, last_error());
        const auto dq = first.dq(), dk = first.dk(), dv = first.dv();
        REQUIRE(first.run() == FLASH_OK);
        CHECK(first.dq() == dq);
        CHECK(first.dk() == dk);
        CHECK(first.dv() == dv);
    });
}

TEST_CASE("the workspace does not depend on Nk, and is asked for by shapes alone") {
    FlashBackward call{};
    call.size = sizeof call;
    call.q.shape[0] = call.k.shape[0] = 2;
    call.q.shape[1] = call.k.shape[1] = 3;
    call.q.shape[3] = call.k.shape[3] = 64;
    call.q.shape[2] = 1000;
    call.k.shape[2] = 10;
    const std::int64_t few_keys = flash_steps_backward_workspace_bytes(9, &call);
    call.k.shape[2] = 1000000;
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == few_keys);
    CHECK(few_keys >= 2 * 3 * 1000 * (64 + 2) * 4);
    CHECK(few_keys <= 2 * 3 * 1024 * (64 + 2) * 4);
    call.q.shape[2] = 0;
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == 0);
    CHECK(last_error().empty());
}

TEST_CASE("a workspace query that is refused gives -1 and the reason") {
    FlashBackward call{};
    CHECK(flash_steps_backward_workspace_bytes(9, nullptr) == -1);
    CHECK(mentions("call is null"));
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == -1);
    CHECK(mentions("size is 0"));
    call.size = sizeof call;
    CHECK(flash_steps_backward_workspace_bytes(8, &call) == -1);
    CHECK(mentions("step 8 has no backward; the steps that have one are 9"));
    for (FlashTensor* tensor : {&call.q, &call.k})
        for (std::int64_t& size : tensor->shape) size = 8;
    call.q.shape[3] = call.k.shape[3] = 12;
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == -1);
    CHECK(mentions("head_dim is 12"));
    call.k.shape[3] = 16;
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == -1);
    CHECK(mentions("k.shape[3] is 16 but q.shape[3] is 12"));
    call.q.shape[2] = std::int64_t{1} << 31;
    CHECK(flash_steps_backward_workspace_bytes(9, &call) == -1);
    CHECK(mentions("q.shape[2] (row) is 2147483648"));
}

TEST_CASE(
    "a step without a backward is unsupported, and so is fp32; a number that is no dtype is a bad argument") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        CBackwardCall<T> backward(step, kSmall, Mask::none(), 4, false);
        for (const int other : {-1, 0, 3, 8, 99}) {
            CHECK(flash_steps_backward(other, &backward.call, nullptr) == FLASH_UNSUPPORTED);
            CHECK(mentions("step " + std::to_string(other) + " has no backward"));
        }
        backward.call.dtype = FLASH_FP32;
        CHECK(backward.run() == FLASH_UNSUPPORTED);
        CHECK(mentions("the backward of step 9 does not take fp32"));
        backward.call.dtype = -1;
        CHECK(backward.run() == FLASH_BAD_ARGUMENT);
        CHECK(mentions("dtype is -1"));
        CHECK(backward.nothing_written());
    });
}

TEST_CASE("a struct of another size is refused before anything else in it is read") {
    FlashBackward call{};
    for (const std::size_t size : {std::size_t{0}, sizeof call - 8, sizeof call + 8}) {
        call.size = size;
        CHECK(flash_steps_backward(9, &call, nullptr) == FLASH_BAD_ARGUMENT);
        CHECK(mentions("size is " + std::to_string(size) + "; it must be " + std::to_string(sizeof call)));
    }
    CHECK(flash_steps_backward(9, nullptr, nullptr) == FLASH_BAD_ARGUMENT);
    CHECK(mentions("call is null"));
    CHECK(offsetof(FlashBackward, size) == 0);
}

TEST_CASE("a backward with a wrong shape, stride, mask or scale is refused") {
    refused("d_o.shape[2] is 4 but q.shape[2] is 5", [](FlashBackward& call) { call.d_o.shape[2] = 4; });
    refused("dq.shape[1] is 2 but q.shape[1] is 4", [](FlashBackward& call) { call.dq.shape[1] = 2; });
    refused("dk.shape[1] is 4 but k.shape[1] is 2", [](FlashBackward& call) { call.dk.shape[1] = 4; });
    refused("dv.shape[2] is 6 but k.shape[2] is 7", [](FlashBackward& call) { call.dv.shape[2] = 6; });
    refused("v.shape[2] is 6", [](FlashBackward& call) { call.v.shape[2] = 6; });
    refused("d_o.stride[3] is 0", [](FlashBackward& call) { call.d_o.stride[3] = 0; });
    refused("d_o.stride_row is 20", [](FlashBackward& call) { call.d_o.stride[2] = 20; });
    refused("dk.stride[3] is 2", [](FlashBackward& call) { call.dk.stride[3] = 2; });
    refused("dv's strides", [](FlashBackward& call) { call.dv.stride[2] = 0; });
    refused("Nq = 5 and Nk = 7", [](FlashBackward& call) { call.mask = FLASH_MASK_CAUSAL; });
    refused("mask is 7", [](FlashBackward& call) { call.mask = 7; });
    refused("scale is nan",
            [](FlashBackward& call) { call.scale = std::numeric_limits<float>::quiet_NaN(); });
}

TEST_CASE("a backward with a pointer that is null, misaligned or another tensor's is refused") {
    refused("d_o.data is null", [](FlashBackward& call) { call.d_o.data = nullptr; });
    refused("lse.data is null", [](FlashBackward& call) { call.lse = nullptr; });
    refused("workspace.data is null", [](FlashBackward& call) { call.workspace = nullptr; });
    refused("dk.data is not aligned",
            [](FlashBackward& call) { call.dk.data = static_cast<char*>(call.dk.data) + 2; });
    refused("dq overlaps d_o", [](FlashBackward& call) { call.dq.data = call.d_o.data; });
    refused("dk overlaps dv", [](FlashBackward& call) { call.dk.data = call.dv.data; });
}

TEST_CASE("a workspace that is one byte too small is refused") {
    refused("workspace_bytes is", [](FlashBackward& call) { --call.workspace_bytes; });
}

TEST_CASE("A5: through the C interface, no keys give zero gradients") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        for (const bool deterministic : {false, true}) {
            CBackwardCall<T> backward(step, Shape{1, 2, 1, 5, 0, 16}, Mask::none(), 7, deterministic);
            REQUIRE_MESSAGE(backward.run() == FLASH_OK, last_error());
            const auto dq = backward.dq();
            CHECK(dq.size() == 2 * 5 * 16);
            CHECK(std::all_of(dq.begin(), dq.end(), [](float x) { return x == 0.0f; }));
            CHECK(backward.dk().empty());
        }
    });
}
