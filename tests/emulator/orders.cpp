// Every GPU step under many orders of warps and blocks: a race that shows under one order only, or
// a result that depends on the order, would fail here. The emulator's checkers look at every access.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/simt/control.hpp"
#include "common/testing/backward_conformance.hpp"
#include "common/testing/conformance.hpp"
#include "steps/04_naive_gpu/attention.hpp"
#include "steps/05_flash_forward/attention.hpp"
#include "steps/06_tensor_cores/attention.hpp"
#include "steps/07_async_pipeline/attention.hpp"
#include "steps/08_fa2_forward/attention.hpp"
#include "steps/09_fa2_backward/attention.hpp"

using namespace flash;
using flash::testing::ForwardCase;
using flash::testing::Storage;

namespace {

constexpr std::uint64_t kSeeds = 20;

// Ragged tiles, a diagonal through the middle of a tile, rows that see no key, two query heads to a key head.
std::vector<ForwardCase> cases() {
    return {{"", {1, 2, 1, 70, 90, 64}, Mask::causal(13), Storage::kBnhd},
            {"", {2, 1, 1, 33, 140, 40}, Mask::none(), Storage::kPadded},
            {"", {1, 1, 1, 140, 50, 128}, Mask::causal(-20), Storage::kBhnd}};
}

template <class T> void check(const char* step, void (*forward)(const ForwardArgs<T>&)) {
    const auto execute = flash::testing::execute_on<T, gpu::DeviceBuffer>(forward);
    for (const ForwardCase& c : cases()) {
        const auto before = flash::testing::make_call<T>(c, true);
        auto first = before;
        for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
            simt::set_seed(seed);
            auto call = before;
            execute(call, {});
            CAPTURE(step);
            CAPTURE(seed);
            CAPTURE(flash::testing::describe(c, dtype_name<T>()));
            if (seed == 1) {
                first = call;
                CHECK(flash::testing::judge(before, call, c.pattern, c.seed).failure == "");
            }
            CHECK(flash::testing::same_bits(call.o.memory, first.o.memory));
            CHECK(flash::testing::same_bits(call.lse, first.lse));
        }
    }
    simt::set_seed(0);
}

// dK and dV, and in the deterministic mode dQ, have the same bits under every order; dQ of the fast mode is
// right under every order.
template <class T> void check_backward() {
    const auto step = flash::testing::backward_step<T, gpu::DeviceBuffer>(&step09::attention_backward<T>,
                                                                          &step09::backward_workspace_bytes);
    for (const ForwardCase& c : cases()) {
        auto before = flash::testing::make_backward_call<T>({c}, true);
        const auto expected = flash::testing::expect_gradients(before, c.seed);
        for (const bool deterministic : {false, true}) {
            before.choose_mode(deterministic, step09::backward_workspace_bytes(before.shape, deterministic));
            auto first = before;
            for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
                simt::set_seed(seed);
                auto call = before;
                step.execute(call, {});
                CAPTURE(deterministic);
                CAPTURE(seed);
                CAPTURE(flash::testing::describe(c, dtype_name<T>()));
                CHECK(flash::testing::judge(before, call, expected, c.pattern).failure == "");
                if (seed == 1) first = call;
                CHECK(flash::testing::same_bits(call.dk.memory, first.dk.memory));
                CHECK(flash::testing::same_bits(call.dv.memory, first.dv.memory));
                if (deterministic) CHECK(flash::testing::same_bits(call.dq.memory, first.dq.memory));
            }
        }
    }
    simt::set_seed(0);
}

}  // namespace

TEST_CASE("every GPU step is clean, and gives the same bits, under 20 orders of warps and blocks") {
    check<float>("step 04", &step04::attention_forward<float>);
    check<bf16>("step 04", &step04::attention_forward<bf16>);
    check<float>("step 05", &step05::attention_forward<float>);
    check<float>("step 05 in 16 x 16 tiles", &step05::attention_forward_small_tiles<float>);
    check<bf16>("step 05", &step05::attention_forward<bf16>);
    check<fp16>("step 06", &step06::attention_forward<fp16>);
    check<bf16>("step 07", &step07::attention_forward<bf16>);
    check<fp16>("step 08", &step08::attention_forward<fp16>);
    check<bf16>("step 08", &step08::attention_forward<bf16>);
}

TEST_CASE("the backward is clean and right under 20 orders of warps and blocks") {
    check_backward<fp16>();
    check_backward<bf16>();
}
