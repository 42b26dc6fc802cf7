// The C interface: what it adds to the steps' own C++ functions. Whether a step computes the right numbers is
// its own test's business, and tests/agreement's.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "tests/library/c_call.hpp"

namespace {

using namespace flash;
using namespace flash::testing;

constexpr Shape kSmall{1, 2, 1, 5, 7, 16};

std::string last_error() {
    return flash_steps_last_error();
}

bool is_emulator() {
    return std::string(flash_steps_backend()) == "emulator";
}

bool mentions(const std::string& text) {
    return last_error().find(text) != std::string::npos;
}

// Runs check for every step that can run here.
void for_every_step(const std::function<void(const FlashStepInfo&)>& check) {
    int checked = 0;
    for (const FlashStepInfo& step : library_steps()) {
        if (!can_run(step)) {
            MESSAGE(std::string(step.name), " is left out: ", last_error());
            continue;
        }
        CAPTURE(std::string(step.name));
        check(step);
        ++checked;
    }
    REQUIRE(checked >= 1);
}

// Calls check.operator()<T>(step) for every step that can run here and every dtype it takes.
template <class Check> void for_every_dtype(Check check) {
    for_every_step([&](const FlashStepInfo& step) {
        if (step.accepts_dtype[FLASH_FP32]) check.template operator()<float>(step);
        if (step.accepts_dtype[FLASH_FP16]) check.template operator()<fp16>(step);
        if (step.accepts_dtype[FLASH_BF16]) check.template operator()<bf16>(step);
    });
}

// A call that is right but for one change must be refused, the argument be named and nothing be written.
void refused(const std::string& names, void (*spoil)(FlashForward&)) {
    for_every_dtype([&]<class T>(const FlashStepInfo& step) {
        ForwardCall<T> forward(step, kSmall, Mask::none(), 1);
        spoil(forward.call);
        CHECK(forward.run() == FLASH_BAD_ARGUMENT);
        CHECK_MESSAGE(mentions(names), "'", last_error(), "' should mention '", names, "'");
        CHECK(forward.nothing_written());
    });
}

}  // namespace

TEST_CASE("the steps are listed in ladder order, 03 among them") {
    const auto steps = library_steps();
    REQUIRE(!steps.empty());
    CHECK(steps.front().step == 3);
    for (std::size_t i = 1; i < steps.size(); ++i) CHECK(steps[i - 1].step < steps[i].step);
    for (const auto& step : steps) {
        CHECK(step.on_device == (step.step >= 4));
        CHECK(step.accepts_dtype[0] + step.accepts_dtype[1] + step.accepts_dtype[2] >= 1);
    }
}

TEST_CASE("asking about a step that is not listed is refused") {
    FlashStepInfo info{};
    CHECK(flash_steps_info(-1, &info) == FLASH_BAD_ARGUMENT);
    CHECK(mentions("index is -1"));
    CHECK(flash_steps_info(flash_steps_count(), &info) == FLASH_BAD_ARGUMENT);
    CHECK(flash_steps_info(0, nullptr) == FLASH_BAD_ARGUMENT);
    CHECK(info.step == 0);
}

TEST_CASE("every step runs in every dtype it lists, and the last error is then empty") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        ForwardCall<T> forward(step, kSmall, Mask::causal_bottom_right(kSmall), 2);
        REQUIRE_MESSAGE(forward.run() == FLASH_OK, last_error());
        CHECK(last_error().empty());
        const auto want = reference_forward(forward.host_args());
        const auto lse = forward.lse();
        REQUIRE(lse.size() == want.lse.size());
        for (std::size_t i = 0; i < lse.size(); ++i) CHECK(std::abs(double{lse[i]} - want.lse[i]) <= 1e-5);
        CHECK(forward.o().size() == want.o.size());
    });
}

TEST_CASE("a step that does not exist is unsupported, and the message lists those that do") {
    ForwardCall<float> forward(library_steps().front(), kSmall, Mask::none(), 3);
    for (const int step : {-1, 0, 1, 99, std::numeric_limits<int>::max()}) {
        CHECK(flash_steps_forward(step, &forward.call, nullptr) == FLASH_UNSUPPORTED);
        CHECK(mentions("step " + std::to_string(step)));
        CHECK(mentions("3, 4"));
        CHECK(forward.nothing_written());
    }
}

TEST_CASE("a dtype that a step does not take is unsupported; a number that is no dtype is a bad argument") {
    ForwardCall<float> forward(library_steps().front(), kSmall, Mask::none(), 4);
    forward.call.dtype = FLASH_BF16;
    CHECK(forward.run() == FLASH_UNSUPPORTED);
    CHECK(mentions("03_tiled_attention does not take bf16"));
    forward.call.dtype = 3;
    CHECK(forward.run() == FLASH_BAD_ARGUMENT);
    CHECK(mentions("dtype is 3"));
    CHECK(forward.nothing_written());
}

TEST_CASE("a null call is refused") {
    for (const auto& step : library_steps())
        CHECK(flash_steps_forward(step.step, nullptr, nullptr) == FLASH_BAD_ARGUMENT);
    CHECK(mentions("call is null"));
}

TEST_CASE("C5: a last stride that is not 1 is refused") {
    refused("q.stride[3] is 2", [](FlashForward& call) { call.q.stride[3] = 2; });
    refused("k.stride[3] is 0", [](FlashForward& call) { call.k.stride[3] = 0; });
    refused("v.stride[3] is -1", [](FlashForward& call) { call.v.stride[3] = -1; });
    refused("o.stride[3] is 5", [](FlashForward& call) { call.o.stride[3] = 5; });
}

TEST_CASE("B12: V longer than K is refused, and so is every other pair of shapes that do not match") {
    refused("v.shape[2] is 4000000 but k.shape[2] is 7",
            [](FlashForward& call) { call.v.shape[2] = 4000000; });
    refused("v.shape[2] is 6", [](FlashForward& call) { call.v.shape[2] = 6; });
    refused("v.shape[1] is 2", [](FlashForward& call) { call.v.shape[1] = 2; });
    refused("v.shape[3] is 8", [](FlashForward& call) { call.v.shape[3] = 8; });
    refused("k.shape[0] is 2 but q.shape[0] is 1", [](FlashForward& call) { call.k.shape[0] = 2; });
    refused("k.shape[3] is 8 but q.shape[3] is 16", [](FlashForward& call) { call.k.shape[3] = 8; });
    refused("o.shape[2] is 4 but q.shape[2] is 5", [](FlashForward& call) { call.o.shape[2] = 4; });
}

TEST_CASE("key heads that do not divide the query heads are refused") {
    refused("heads_kv", [](FlashForward& call) { call.k.shape[1] = call.v.shape[1] = 3; });
    refused("heads_kv", [](FlashForward& call) { call.k.shape[1] = call.v.shape[1] = 0; });
}

TEST_CASE("B6: sizes beyond int, negative sizes and spans beyond 64 bits are refused, not narrowed") {
    refused("q.shape[2] (row) is 4294967301",
            [](FlashForward& call) { call.q.shape[2] = (std::int64_t{1} << 32) + 5; });
    refused("k.shape[2] (row) is 2147483648",
            [](FlashForward& call) { call.k.shape[2] = call.v.shape[2] = std::int64_t{1} << 31; });
    refused("o.shape[0] (batch) is -1", [](FlashForward& call) { call.o.shape[0] = -1; });
    refused("q.shape[3] (element) is -16", [](FlashForward& call) { call.q.shape[3] = -16; });
    refused("shape.len_q + shape.len_kv is 2147483652",
            [](FlashForward& call) { call.k.shape[2] = call.v.shape[2] = std::numeric_limits<int>::max(); });
    refused("2^63", [](FlashForward& call) {
        call.k.shape[2] = call.v.shape[2] = 1 << 30;
        call.k.stride[2] = std::int64_t{1} << 40;
    });
}

TEST_CASE("a head dimension beyond the step's limit is refused") {
    refused("head_dim is 512", [](FlashForward& call) {
        for (FlashTensor* tensor : {&call.q, &call.k, &call.v, &call.o}) tensor->shape[3] = 512;
    });
}

TEST_CASE("a causal mask without a diagonal is refused when Nq and Nk differ") {
    refused("Nq = 5 and Nk = 7", [](FlashForward& call) { call.mask = FLASH_MASK_CAUSAL; });
}

TEST_CASE("a number that is no mask is refused") {
    refused("mask is 5", [](FlashForward& call) { call.mask = 5; });
    refused("mask is -1", [](FlashForward& call) { call.mask = -1; });
}

TEST_CASE("A10: a scale that is zero, negative or not finite is refused") {
    refused("scale is 0", [](FlashForward& call) { call.scale = 0; });
    refused("scale is -1", [](FlashForward& call) { call.scale = -1; });
    refused("scale is inf", [](FlashForward& call) { call.scale = std::numeric_limits<float>::infinity(); });
    refused("scale is nan", [](FlashForward& call) { call.scale = std::numeric_limits<float>::quiet_NaN(); });
}

TEST_CASE("null and misaligned pointers are refused") {
    refused("q.data is null", [](FlashForward& call) { call.q.data = nullptr; });
    refused("o.data is null", [](FlashForward& call) { call.o.data = nullptr; });
    refused("lse.data is null", [](FlashForward& call) { call.lse = nullptr; });
    refused("v.data is not aligned",
            [](FlashForward& call) { call.v.data = static_cast<char*>(call.v.data) + 1; });
}

TEST_CASE("outputs that overlap themselves or another tensor, and negative strides, are refused") {
    refused("o's strides", [](FlashForward& call) { call.o.stride[2] = 0; });
    refused("o overlaps q", [](FlashForward& call) { call.o.data = call.q.data; });
    refused("k.stride_row is -16", [](FlashForward& call) { call.k.stride[2] = -16; });
}

TEST_CASE("the named masks are the diagonals they stand for, bit for bit") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        const auto result = [&](const Shape& shape, int mask, std::int64_t diagonal) {
            ForwardCall<T> forward(step, shape, Mask::none(), 5);
            forward.call.mask = mask;
            forward.call.diagonal = diagonal;
            REQUIRE_MESSAGE(forward.run() == FLASH_OK, last_error());
            return forward.lse();
        };
        const Shape square{1, 2, 1, 6, 6, 16};
        CHECK(result(kSmall, FLASH_MASK_CAUSAL_TOP_LEFT, 99) ==
              result(kSmall, FLASH_MASK_CAUSAL_DIAGONAL, 0));
        CHECK(result(kSmall, FLASH_MASK_CAUSAL_BOTTOM_RIGHT, 99) ==
              result(kSmall, FLASH_MASK_CAUSAL_DIAGONAL, 2));
        CHECK(result(square, FLASH_MASK_CAUSAL, 99) == result(square, FLASH_MASK_CAUSAL_DIAGONAL, 0));
        CHECK(result(kSmall, FLASH_MASK_NONE, 0) == result(kSmall, FLASH_MASK_CAUSAL_DIAGONAL, 7));
        CHECK(result(kSmall, FLASH_MASK_NONE, 0) != result(kSmall, FLASH_MASK_CAUSAL_TOP_LEFT, 0));
    });
}

TEST_CASE("a stride of a dimension of size 1 has no meaning and may be anything from 0 up") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        const Shape one{1, 1, 1, 1, 1, 8};
        ForwardCall<T> forward(step, one, Mask::none(), 6);
        for (FlashTensor* tensor : {&forward.call.q, &forward.call.k, &forward.call.v, &forward.call.o})
            for (const std::size_t d : {0, 1, 2}) tensor->stride[d] = 12345;
        REQUIRE_MESSAGE(forward.run() == FLASH_OK, last_error());
        CHECK(std::isfinite(forward.lse()[0]));
    });
}

TEST_CASE("A5: through the C interface, no keys give L = -inf and O = 0") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        ForwardCall<T> forward(step, Shape{1, 2, 1, 5, 0, 16}, Mask::none(), 7);
        REQUIRE_MESSAGE(forward.run() == FLASH_OK, last_error());
        for (const float x : forward.o()) CHECK(x == 0.0f);
        for (const float x : forward.lse()) CHECK(x == -std::numeric_limits<float>::infinity());
    });
}

TEST_CASE("a thread's last error is its own") {
    ForwardCall<float> forward(library_steps().front(), kSmall, Mask::none(), 8);
    REQUIRE(flash_steps_forward(100, &forward.call, nullptr) == FLASH_UNSUPPORTED);
    std::string of_other;
    std::thread other([&] {
        flash_steps_forward(101, &forward.call, nullptr);
        of_other = flash_steps_last_error();
    });
    other.join();
    CHECK(of_other.find("step 101 ") != std::string::npos);
    CHECK(mentions("step 100 "));
}

TEST_CASE("threads that call at once get their own results") {
    for_every_dtype([]<class T>(const FlashStepInfo& step) {
        constexpr int kThreads = 4, kCalls = 8;
        std::vector<std::vector<float>> alone;
        for (int t = 0; t < kThreads; ++t) {
            ForwardCall<T> forward(step, kSmall, Mask::none(), 10 + static_cast<std::uint64_t>(t));
            REQUIRE(forward.run() == FLASH_OK);
            alone.push_back(forward.o());
        }
        std::vector<int> wrong(kThreads, 0);
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                const auto index = static_cast<std::size_t>(t);
                for (int i = 0; i < kCalls; ++i) {
                    ForwardCall<T> forward(step, kSmall, Mask::none(), 10 + index);
                    if (forward.run() != FLASH_OK || forward.o() != alone[index]) ++wrong[index];
                    if (flash_steps_forward(100 + t, &forward.call, nullptr) != FLASH_UNSUPPORTED)
                        ++wrong[index];
                    if (!mentions("step " + std::to_string(100 + t) + " ")) ++wrong[index];
                }
            });
        }
        for (auto& thread : threads) thread.join();
        CHECK(wrong == std::vector<int>(kThreads, 0));
    });
}

TEST_CASE("device memory: bytes come back as they went, and bad requests are refused") {
    CHECK(flash_steps_device_alloc(0) == nullptr);
    CHECK(mentions("bytes is 0"));
    CHECK(flash_steps_device_free(nullptr) == FLASH_OK);
    CHECK(flash_steps_copy_to_device(nullptr, "x", 1) == FLASH_BAD_ARGUMENT);
    CHECK(flash_steps_copy_to_host(nullptr, nullptr, 1) == FLASH_BAD_ARGUMENT);
    CHECK(flash_steps_copy_to_host(nullptr, nullptr, 0) == FLASH_OK);

    void* device = flash_steps_device_alloc(1000);
    if (device == nullptr) {
        MESSAGE("no device memory here: ", last_error());
        CHECK(std::string(flash_steps_backend()) == "cuda");
        CHECK(!last_error().empty());
        return;
    }
    std::vector<unsigned char> sent(1000), received(1000);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7);
    CHECK(flash_steps_copy_to_device(device, sent.data(), sent.size()) == FLASH_OK);
    CHECK(flash_steps_synchronize() == FLASH_OK);
    CHECK(flash_steps_copy_to_host(received.data(), device, received.size()) == FLASH_OK);
    CHECK(sent == received);
    CHECK(flash_steps_device_free(device) == FLASH_OK);
}

TEST_CASE("more device memory than there is gives a device error and no memory") {
    CHECK(flash_steps_device_alloc(std::numeric_limits<std::size_t>::max() / 2) == nullptr);
    CHECK(!last_error().empty());
    if (!is_emulator()) return;
    const std::size_t host_memory =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    CHECK(flash_steps_device_alloc(host_memory) == nullptr);
    CHECK(mentions("out of device memory: " + std::to_string(host_memory) + " bytes were asked for"));
}

TEST_CASE("copies that do not lie in one allocation of device memory are refused and write nothing") {
    if (!is_emulator()) {
        MESSAGE("SKIP: what a GPU's driver refuses is its own business");
        return;
    }
    std::vector<unsigned char> host(4000, 1), other(4000, 2);
    const auto refused = [](int code) { return code == FLASH_DEVICE_ERROR && !last_error().empty(); };
    auto* device = static_cast<unsigned char*>(flash_steps_device_alloc(64));
    REQUIRE(device != nullptr);
    REQUIRE(flash_steps_copy_to_device(device, host.data(), 64) == FLASH_OK);

    CHECK(refused(flash_steps_copy_to_device(device, other.data(), 4000)));
    CHECK(mentions("copying to the device: 4000 bytes at 0x"));
    CHECK(mentions("the allocation there ends after 64 bytes"));
    CHECK(refused(flash_steps_copy_to_device(device + 1, other.data(), 64)));
    CHECK(refused(flash_steps_copy_to_device(device + 64, other.data(), 1)));
    CHECK(refused(flash_steps_copy_to_device(device - 1, other.data(), 1)));
    CHECK(refused(flash_steps_copy_to_device(device, other.data(), std::numeric_limits<std::size_t>::max())));
    CHECK(refused(flash_steps_copy_to_device(host.data(), other.data(), 64)));
    CHECK(mentions("no device memory is allocated there"));
    CHECK(host == std::vector<unsigned char>(4000, 1));

    CHECK(refused(flash_steps_copy_to_host(host.data(), device, 65)));
    CHECK(mentions("copying from the device: 65 bytes at 0x"));
    CHECK(refused(flash_steps_copy_to_host(host.data(), other.data(), 64)));
    CHECK(refused(flash_steps_copy_to_host(host.data(), reinterpret_cast<void*>(0x10), 64)));
    CHECK(host == std::vector<unsigned char>(4000, 1));

    CHECK(flash_steps_copy_to_host(other.data(), device, 64) == FLASH_OK);
    CHECK(std::equal(other.begin(), other.begin() + 64, host.begin()));
    CHECK(flash_steps_device_free(device) == FLASH_OK);
    CHECK(refused(flash_steps_copy_to_host(host.data(), device, 64)));
}

TEST_CASE("freeing what is not the start of an allocation is refused") {
    if (!is_emulator()) {
        MESSAGE("SKIP: what a GPU's driver refuses is its own business");
        return;
    }
    const auto refused = [](void* address) {
        return flash_steps_device_free(address) == FLASH_DEVICE_ERROR &&
               mentions("no allocation of device memory begins there");
    };
    int host = 0;
    auto* device = static_cast<char*>(flash_steps_device_alloc(64));
    REQUIRE(device != nullptr);
    CHECK(refused(&host));
    CHECK(refused(reinterpret_cast<void*>(0x1234)));
    CHECK(refused(device + 16));
    CHECK(flash_steps_device_free(device) == FLASH_OK);
    CHECK(refused(device));
}

TEST_CASE("tensors may share one allocation, at any offset") {
    for_every_step([](const FlashStepInfo& step) {
        if (!step.on_device || !step.accepts_dtype[FLASH_FP16]) return;
        constexpr std::size_t kBytes = 3 * 8 * sizeof(fp16);
        StepMemory lse(true, std::vector<std::byte>(3 * 4));
        auto* memory = static_cast<char*>(flash_steps_device_alloc(4 * kBytes));
        REQUIRE(memory != nullptr);
        const std::vector<fp16> ones(24, from_float<fp16>(1));
        FlashTensor tensor[4];
        for (std::size_t i = 0; i < 4; ++i) {
            tensor[i] = {memory + i * kBytes, {1, 1, 3, 8}, {24, 24, 8, 1}};
            if (i < 3) REQUIRE(flash_steps_copy_to_device(tensor[i].data, ones.data(), kBytes) == FLASH_OK);
        }
        const FlashForward call = {tensor[0],
                                   tensor[1],
                                   tensor[2],
                                   tensor[3],
                                   static_cast<float*>(lse.data()),
                                   FLASH_FP16,
                                   FLASH_MASK_NONE,
                                   0,
                                   flash_steps_default_scale(8)};
        CHECK_MESSAGE(flash_steps_forward(step.step, &call, nullptr) == FLASH_OK, last_error());
        std::vector<fp16> o(24);
        CHECK(flash_steps_copy_to_host(o.data(), tensor[3].data, kBytes) == FLASH_OK);
        for (const fp16 x : o) CHECK(to_float(x) == 1.0f);
        CHECK(flash_steps_device_free(memory) == FLASH_OK);
    });
}

TEST_CASE("A10: the default scale of a head dimension that is not positive is one that forward refuses") {
    CHECK(flash_steps_default_scale(64) == 0.125f);
    CHECK(flash_steps_default_scale(0) == std::numeric_limits<float>::infinity());
    CHECK(std::isnan(flash_steps_default_scale(-1)));
}
