#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

#include "attention.hpp"
#include "backward_cpu.hpp"
#include "common/gpu/device.hpp"
#include "common/reference.hpp"
#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/backward_conformance.hpp"
#include "common/testing/gpu_step.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

using namespace flash;
using namespace flash::step09;
using flash::gpu::DeviceBuffer;
using flash::testing::BackwardCase;
using flash::testing::ForwardCall;
using flash::testing::HostBuffer;
using flash::testing::Pattern;
using flash::testing::SharedLimit;
using flash::testing::Storage;

namespace {

flash::testing::Capabilities capabilities() {
    return {.step = "step 09",
            .max_head_dim = 256,
            .head_dim_multiple = 8,
            .aligned = true,
            .max_work = flash::testing::device_max_work(300'000)};
}

std::int64_t no_workspace(const Shape&, bool /*deterministic*/) {
    return 0;
}

// What is wrong with the step's answer to a case, in both modes; empty when nothing is.
template <class T> std::string failure_of(const BackwardCase& c) {
    const auto step =
        flash::testing::backward_step<T, DeviceBuffer>(&attention_backward<T>, &backward_workspace_bytes);
    auto call = flash::testing::make_backward_call<T>(c, true);
    const auto expected = flash::testing::expect_gradients(call, c.forward.seed);
    for (const bool deterministic : {false, true}) {
        call.choose_mode(deterministic, backward_workspace_bytes(call.shape, deterministic));
        auto run = call;
        step.execute(run, {});
        const auto judgement = flash::testing::judge(call, run, expected, c.forward.pattern);
        if (!judgement.failure.empty())
            return flash::testing::describe(c, dtype_name<T>(), deterministic) + ": " + judgement.failure;
    }
    return "";
}

std::string text_of(const std::string& path) {
    std::ifstream file(std::string(FLASH_STEPS_ROOT_DIR) + "/steps/" + path);
    REQUIRE(file);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------
// On the CPU

TEST_CASE("the tiled backward on the CPU fulfils the contract") {
    flash::testing::run_backward_conformance<float, HostBuffer>({.step = "step 09 on the CPU"},
                                                                &attention_backward_cpu, &no_workspace);
}
TEST_CASE("the tiled backward on the CPU is right on random shapes") {
    flash::testing::run_backward_fuzz<float, HostBuffer>({.step = "step 09 on the CPU"},
                                                         &attention_backward_cpu, &no_workspace);
}
TEST_CASE("the tiled backward on the CPU refuses bad arguments and writes nothing") {
    flash::testing::run_backward_bad_arguments<float, HostBuffer>({.step = "step 09 on the CPU"},
                                                                  &attention_backward_cpu, &no_workspace);
}
TEST_CASE("the tiled backward on the CPU is free of faults others have met") {
    flash::testing::run_backward_public_faults<float, HostBuffer>({.step = "step 09 on the CPU"},
                                                                  &attention_backward_cpu, &no_workspace);
}

// ---------------------------------------------------------------------------------------------------------
// On the GPU or the emulator

TEST_CASE_TEMPLATE("the backward fulfils the contract in both modes", T, fp16, bf16) {
    flash::testing::run_backward_conformance<T, DeviceBuffer>(capabilities(), &attention_backward<T>,
                                                              &backward_workspace_bytes);
}
TEST_CASE_TEMPLATE("the backward is right on random shapes", T, fp16, bf16) {
    flash::testing::run_backward_fuzz<T, DeviceBuffer>(capabilities(), &attention_backward<T>,
                                                       &backward_workspace_bytes);
}
TEST_CASE_TEMPLATE("the backward refuses bad arguments and writes nothing", T, fp16, bf16) {
    flash::testing::run_backward_bad_arguments<T, DeviceBuffer>(capabilities(), &attention_backward<T>,
                                                                &backward_workspace_bytes);
}
TEST_CASE_TEMPLATE("the backward is free of faults others have met", T, fp16, bf16) {
    flash::testing::run_backward_public_faults<T, DeviceBuffer>(capabilities(), &attention_backward<T>,
                                                                &backward_workspace_bytes);
}

TEST_CASE("a workspace is stated in bytes, does not depend on Nk, and is refused where it cannot be") {
    for (const bool deterministic : {false, true}) {
        const std::int64_t bytes = backward_workspace_bytes({2, 4, 2, 1000, 1000, 64}, deterministic);
        CHECK(bytes > 2 * 4 * 1000 * 4);
        CHECK(backward_workspace_bytes({2, 4, 2, 1000, 1'000'000, 64}, deterministic) == bytes);
        CHECK(backward_workspace_bytes({0, 4, 2, 1000, 1000, 64}, deterministic) == 0);
        CHECK_THROWS_AS(backward_workspace_bytes({-1, 4, 2, 1000, 1000, 64}, deterministic),
                        std::invalid_argument);
        CHECK_THROWS_AS(backward_workspace_bytes({1, 1, 1, 1, 1, 264}, deterministic), std::invalid_argument);
        const int most = std::numeric_limits<int>::max();
        CHECK_THROWS_AS(backward_workspace_bytes({most, most, most, 1, 1, 8}, deterministic),
                        std::invalid_argument);
    }
    CHECK(backward_workspace_bytes({1, 1, 1, 64, 64, 64}, true) <
          backward_workspace_bytes({1, 1, 1, 64, 64, 64}, false));
}

TEST_CASE_TEMPLATE("every head dimension that is a multiple of 8 up to 256 is right", T, fp16, bf16) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        CHECK(failure_of<T>({{"", {1, 1, 1, 17, 40, head_dim}, Mask::causal(20), Storage::kPadded}}) == "");
}

TEST_CASE_TEMPLATE("M31: with less shared memory for a block the backward takes tiles that fit, and is right",
                   T, fp16, bf16) {
    for (const std::size_t kilobytes : {163, 200, 209, 217}) {
        const SharedLimit limit(kilobytes * 1024);
        for (const int head_dim : {64, 128, 256})
            CHECK(failure_of<T>({{"", {1, 2, 1, 70, 140, head_dim}, Mask::causal(30)}}) == "");
    }
}

TEST_CASE_TEMPLATE("M31: with 99 KB head dimensions up to 128 are right, and 256 is refused with both sizes",
                   T, fp16, bf16) {
    const SharedLimit limit(99 * 1024);
    for (const int head_dim : {64, 128})
        CHECK(failure_of<T>({{"", {1, 1, 1, 100, 140, head_dim}, Mask::causal(30)}}) == "");
    std::string message;
    try {
        failure_of<T>({{"", {1, 1, 1, 10, 10, 256}}});
    } catch (const gpu::DeviceError& error) {
        message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find("143912") != std::string::npos);
    CHECK(message.find("101376") != std::string::npos);
}

TEST_CASE_TEMPLATE("a key at minus infinity is an ordinary masked key, wherever the queries end in a tile", T,
                   fp16, bf16) {
    struct Keys {
        int first, end;
    };
    for (const int head_dim : {16, 128}) {
        for (const Keys& hidden : {Keys{3, 4}, Keys{0, 20}}) {
            const BackwardCase c{{"", {1, 1, 1, 63, 20, head_dim}}};
            auto call = flash::testing::make_backward_call<T>(c, true);
            const auto set = [](auto& tensor, int row, int d, float value) {
                tensor.memory[static_cast<std::size_t>(tensor.index(0, 0, row, d))] = from_float<T>(value);
            };
            for (int row = 0; row < 63; ++row) set(call.q, row, 0, 1.0f);
            for (int key = hidden.first; key < hidden.end; ++key)
                for (int d = 0; d < head_dim; ++d)
                    set(call.k, key, d, d == 0 ? -std::numeric_limits<float>::infinity() : 0.0f);
            const auto expected = flash::testing::expect_gradients(call, c.forward.seed);
            CHECK(std::isnan(expected.dq.reference[0]));  // 0 times the infinity of K
            CHECK(std::isfinite(expected.dq.reference[1]));
            const auto step = flash::testing::backward_step<T, DeviceBuffer>(&attention_backward<T>,
                                                                             &backward_workspace_bytes);
            for (const bool deterministic : {false, true}) {
                call.choose_mode(deterministic, backward_workspace_bytes(call.shape, deterministic));
                auto run = call;
                step.execute(run, {});
                CHECK(flash::testing::judge(call, run, expected, Pattern::kNormal).failure == "");
                for (int d = 0; d < head_dim; ++d) {
                    const auto at = static_cast<std::size_t>(run.dk.index(0, 0, hidden.first, d));
                    CHECK(to_float(run.dk.memory[at]) == 0.0f);
                    CHECK(to_float(run.dv.memory[at]) == 0.0f);
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("the backward is right at sizes with several tiles each way", T, fp16, bf16) {
    const auto top_left = Mask::causal_top_left();
    CHECK(failure_of<T>({{"", {1, 2, 1, 200, 270, 64}, Mask::causal(70), Storage::kMixed}}) == "");
    CHECK(failure_of<T>({{"", {1, 1, 1, 270, 140, 128}, top_left, Storage::kPadded}}) == "");
    CHECK(failure_of<T>({{"", {1, 1, 1, 100, 140, 256}, top_left}}) == "");
}

TEST_CASE_TEMPLATE("rows that see no key have zero gradients wherever the diagonal crosses a tile", T, fp16,
                   bf16) {
    for (const int diagonal : {-1, -16, -31, -32, -33, -64, -65, -127, -128, -130}) {
        CHECK(failure_of<T>({{"", {1, 1, 1, 140, 150, 64}, Mask::causal(diagonal), Storage::kPadded}}) == "");
    }
    CHECK(failure_of<T>({{"", {1, 1, 1, 140, 150, 128}, Mask::causal(-100)}}) == "");
}

TEST_CASE_TEMPLATE("the diagonal may cross a tile at any key", T, fp16, bf16) {
    for (const int head_dim : {64, 128, 256}) {
        for (const int diagonal : {-33, -1, 0, 1, 31, 63, 64, 66, 127}) {
            if (head_dim == 256 && diagonal > 1) continue;
            CHECK(failure_of<T>({{"", {1, 1, 1, 70, 140, head_dim}, Mask::causal(diagonal)}}) == "");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// What it computes and moves (docs/derivations.md, section 8)

namespace {

// Tiles that backward.cu and backward_dq.cu choose on a device with 227 KB of shared memory for a block.
struct Tiles {
    int head_dim, block_kv, dq_block_q;
};
constexpr Tiles kTiles[] = {{64, 128, 128}, {128, 128, 128}, {256, 64, 64}};

// Bytes of one head with 2-byte elements, lengths that are whole tiles, no mask.
struct Bytes {
    std::int64_t loads, stores;
};
// Each byte once per block.
Bytes bytes_per_block(std::int64_t Nq, std::int64_t Nk, const Tiles& tiles, bool deterministic) {
    const std::int64_t D = tiles.head_dim;
    const std::int64_t q_tensor = 2 * Nq * D, kv_tensor = 2 * Nk * D, sums = 4 * Nq * D;
    const std::int64_t key_tiles = Nk / tiles.block_kv, query_tiles = Nq / tiles.dq_block_q;
    Bytes bytes{2 * q_tensor + 4 * Nq, 8 * Nq};                          // delta, from dO, O and L
    bytes.loads += 2 * kv_tensor + key_tiles * (2 * q_tensor + 8 * Nq);  // K and V once, Q and dO every time
    bytes.stores += 2 * kv_tensor;
    if (deterministic) {
        bytes.loads += 2 * q_tensor + 8 * Nq + query_tiles * 2 * kv_tensor;
        bytes.stores += q_tensor;
    } else {
        bytes.stores += sums + key_tiles * sums;  // zeros, then an addition from every key tile
        bytes.loads += sums;                      // conversion
        bytes.stores += q_tensor;
    }
    return bytes;
}
// Each byte once per launch.
Bytes bytes_per_launch(std::int64_t Nq, std::int64_t Nk, std::int64_t D, bool deterministic) {
    const std::int64_t q_tensor = 2 * Nq * D, kv_tensor = 2 * Nk * D, sums = 4 * Nq * D;
    Bytes bytes{4 * q_tensor + 12 * Nq + 2 * kv_tensor, 8 * Nq + 2 * kv_tensor + q_tensor};
    if (deterministic) {
        bytes.loads += 2 * q_tensor + 8 * Nq + 2 * kv_tensor;
    } else {
        bytes.loads += sums;
        bytes.stores += 2 * sums;
    }
    return bytes;
}

// The emulator's counters of one call.
simt::Counters count(const Shape& s, bool deterministic) {
    const auto step = flash::testing::backward_step<bf16, DeviceBuffer>(&attention_backward<bf16>,
                                                                        &backward_workspace_bytes);
    auto call = flash::testing::make_backward_call<bf16>({{"", s}}, true);
    call.choose_mode(deterministic, backward_workspace_bytes(s, deterministic));
    simt::reset();
    step.execute(call, {});
    return simt::total();
}

}  // namespace

TEST_CASE(
    "five tile products, seven where dQ has a pass of its own; each byte is moved as often as counted") {
    if (!simt::hooks_enabled()) {
        std::printf("SKIP: this build counts no memory accesses\n");
        return;
    }
    for (const Tiles& tiles : kTiles) {
        for (const bool deterministic : {false, true}) {
            for (const int len_kv : {256, 512}) {
                const Shape s{1, 1, 1, 256, len_kv, tiles.head_dim};
                CAPTURE(flash::testing::describe(s));
                CAPTURE(deterministic);
                const auto counters = count(s, deterministic);
                const std::int64_t pairs = std::int64_t{s.len_q} * s.len_kv;
                const auto product = static_cast<std::uint64_t>(pairs * s.head_dim / (16 * 8 * 16));
                CHECK(counters.mma == (deterministic ? 7 : 5) * product);
                CHECK(counters.exp2 == static_cast<std::uint64_t>((deterministic ? 2 : 1) * pairs));
                CHECK(counters.atomics * (deterministic ? 1 : tiles.block_kv) ==
                      static_cast<std::uint64_t>(deterministic ? 0 : pairs * s.head_dim));
                const Bytes block = bytes_per_block(s.len_q, s.len_kv, tiles, deterministic);
                CHECK(counters.global_load_bytes_distinct_per_block ==
                      static_cast<std::uint64_t>(block.loads));
                CHECK(counters.global_store_bytes_distinct_per_block ==
                      static_cast<std::uint64_t>(block.stores));
                const Bytes launch = bytes_per_launch(s.len_q, s.len_kv, s.head_dim, deterministic);
                CHECK(counters.global_load_bytes_distinct_per_launch ==
                      static_cast<std::uint64_t>(launch.loads));
                CHECK(counters.global_store_bytes_distinct_per_launch ==
                      static_cast<std::uint64_t>(launch.stores));
            }
        }
    }
}

TEST_CASE(
    "Predict: at N = 4096, D = 128 the standard backward moves 243 MB a head, this one 147 MB, or 16 MB past "
    "a perfect L2") {
    constexpr std::int64_t N = 4096, D = 128;
    CHECK(2 * (7 * N * N + 8 * N * D) == 243'269'632);
    const Bytes block = bytes_per_block(N, N, kTiles[1], false), launch = bytes_per_launch(N, N, D, false);
    CHECK(block.loads + block.stores == 146'849'792);
    CHECK(block.loads + block.stores == N / 128 * (8 * N * D + 8 * N) + 22 * N * D + 12 * N);
    CHECK(launch.loads + launch.stores == 15'810'560);
    CHECK(launch.loads + launch.stores == 30 * N * D + 20 * N);
}

// ---------------------------------------------------------------------------------------------------------
// Forward and backward together

TEST_CASE_TEMPLATE("forward and backward of the step together give the gradients of attention", T, fp16,
                   bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const Shape s{1, 2, 1, 70, 90, head_dim};
        auto call = flash::testing::make_backward_call<T>({{"", s, Mask::causal_bottom_right(s)}}, true);
        auto expected = flash::testing::expect_gradients(call, 1);
        // O and L are now the step's own, as the twin's are its own.
        const auto twin = twin_backward(call.host_args());
        expected.dq.twin.assign(twin.dq.begin(), twin.dq.end());
        expected.dk.twin.assign(twin.dk.begin(), twin.dk.end());
        expected.dv.twin.assign(twin.dv.begin(), twin.dv.end());
        auto forward = flash::testing::make_call<T>({"", s, call.mask}, true);
        forward.q = call.q;
        forward.k = call.k;
        forward.v = call.v;
        flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(forward, {});
        const auto guard = ForwardCall<T>::kLseGuard;
        call.o = forward.o;
        call.lse.assign(forward.lse.begin() + guard, forward.lse.end() - guard);
        const auto step =
            flash::testing::backward_step<T, DeviceBuffer>(&attention_backward<T>, &backward_workspace_bytes);
        for (const bool deterministic : {false, true}) {
            call.choose_mode(deterministic, backward_workspace_bytes(s, deterministic));
            auto run = call;
            step.execute(run, {});
            CHECK(flash::testing::judge(call, run, expected, Pattern::kNormal).failure == "");
        }
    }
}

TEST_CASE("forward.cu and head_dims.hpp are step 08's but for the step's number") {
    struct Copy {
        const char *mine, *theirs;
    };
    for (const Copy& copy : {Copy{"forward.cu", "attention.cu"}, Copy{"head_dims.hpp", "head_dims.hpp"}}) {
        std::string text = text_of(std::string("09_fa2_backward/") + copy.mine);
        CHECK(text.find("step09") != std::string::npos);
        text = replaced(replaced(text, "step09", "step08"), "step 09", "step 08");
        CHECK((text == text_of(std::string("08_fa2_forward/") + copy.theirs)));
    }
}

// ---------------------------------------------------------------------------------------------------------
// Which tiles a mask leaves

namespace {

// The tiles that backward.cu and backward_dq.cu choose on a device with 218 KB of shared memory or more.
struct TileSizes {
    int head_dim, block_q, block_kv;  // of the blocks that sum dK and dV
    int dq_rows, dq_keys;             // of the second pass, a quarter of the rows for each warp
};
TileSizes tiles_for(int head_dim) {
    if (head_dim <= 64) return {64, 64, 128, 128, 64};
    if (head_dim <= 128) return {128, 64, 128, 128, 32};
    return {256, 64, 64, 64, 32};
}

std::int64_t ceil_div(std::int64_t a, int b) {
    return (a + b - 1) / b;
}

// Of one head: pairs of a query tile and a key tile of which some query sees a key; and how many key tiles of
// the second pass groups of `rows` queries see.
std::int64_t pairs_of_tiles(const Shape& s, const Mask& mask, const TileSizes& t) {
    std::int64_t pairs = 0;
    for (int key = 0; key < s.len_kv; key += t.block_kv)
        for (int row = 0; row < s.len_q; row += t.block_q)
            pairs += mask.visible_keys(std::min(row + t.block_q, s.len_q) - 1, s.len_kv) > key;
    return pairs;
}
std::int64_t tiles_seen(const Shape& s, const Mask& mask, int rows, const TileSizes& t) {
    std::int64_t tiles = 0;
    for (int row = 0; row < s.len_q; row += rows)
        tiles += ceil_div(mask.visible_keys(std::min(row + rows, s.len_q) - 1, s.len_kv), t.dq_keys);
    return tiles;
}

// mma instructions of one product of a tile: m16n8k16 makes 16 x 8 x 16 multiplications.
std::int64_t mma_of_product(std::int64_t rows, std::int64_t keys, int head_dim) {
    return rows * keys * head_dim / (16 * 8 * 16);
}

template <class T> simt::Counters count_of(const Shape& s, const Mask& mask, bool deterministic) {
    auto call = flash::testing::make_backward_call<T>({{"", s, mask}}, true);
    call.choose_mode(deterministic, backward_workspace_bytes(s, deterministic));
    const auto step =
        flash::testing::backward_step<T, DeviceBuffer>(&attention_backward<T>, &backward_workspace_bytes);
    simt::reset();
    step.execute(call, {});
    return simt::total();
}

struct MaskedProblem {
    int heads_q, len_q, len_kv;
    Mask mask;
};

}  // namespace

TEST_CASE_TEMPLATE(
    "products, exponentials, barriers and additions to dQ are those of the tiles a mask leaves", T, fp16,
    bf16) {
    if (!simt::hooks_enabled()) {
        std::printf("SKIP: this build counts nothing\n");
        return;
    }
    const auto equal = [](std::uint64_t counted, std::int64_t formula) {
        return counted == static_cast<std::uint64_t>(formula);
    };
    for (const int head_dim : {64, 104, 256}) {
        const TileSizes t = tiles_for(head_dim);
        for (const MaskedProblem& p :
             {MaskedProblem{2, 128, 200, Mask::none()}, MaskedProblem{1, 256, 256, Mask::causal(0)},
              MaskedProblem{1, 256, 256, Mask::causal(-40)}, MaskedProblem{1, 128, 300, Mask::causal(37)},
              MaskedProblem{1, 256, 128, Mask::causal(-128)}, MaskedProblem{1, 20, 300, Mask::causal(0)},
              MaskedProblem{2, 128, 128, Mask::causal(-1000)}}) {
            const Shape s{1, p.heads_q, 1, p.len_q, p.len_kv, head_dim};
            CAPTURE(flash::testing::describe(s));
            CAPTURE(flash::testing::describe(p.mask));
            const std::int64_t tiles = s.heads_q * pairs_of_tiles(s, p.mask, t);
            const std::int64_t product = mma_of_product(t.block_q, t.block_kv, t.head_dim);
            const std::int64_t scores = tiles * t.block_q * t.block_kv;
            // A block begins and ends with a barrier; between tiles, and for P of a pair, it has mbarriers.
            const std::int64_t barriers = 2 * ceil_div(s.len_kv, t.block_kv);
            const std::int64_t phases = tiles * (1 + (t.head_dim > 64 ? 4 : 0));
            const auto fast = count_of<T>(s, p.mask, false);
            CHECK(equal(fast.mma, 5 * tiles * product));
            CHECK(equal(fast.exp2, scores));
            CHECK(equal(fast.barriers, barriers));
            CHECK(equal(fast.mbarrier_phases, phases));
            CHECK(equal(fast.atomics, tiles * t.block_q * t.head_dim));

            // In the second pass a block copies the tiles that some of its queries see, a warp multiplies
            // those that some of its own see.
            const int warp_rows = t.dq_rows / 4;
            const std::int64_t copied = s.heads_q * tiles_seen(s, p.mask, t.dq_rows, t);
            const std::int64_t multiplied = s.heads_q * tiles_seen(s, p.mask, warp_rows, t);
            const std::int64_t dq_blocks = s.heads_q * ceil_div(s.len_q, t.dq_rows);
            const auto both = count_of<T>(s, p.mask, true);
            CHECK(equal(both.mma, 4 * tiles * product +
                                      3 * multiplied * mma_of_product(warp_rows, t.dq_keys, t.head_dim)));
            CHECK(equal(both.exp2, scores + multiplied * warp_rows * t.dq_keys));
            CHECK(equal(both.barriers, barriers + copied + dq_blocks));
            CHECK(equal(both.mbarrier_phases, phases));
            CHECK(both.atomics == 0);
        }
    }
}

TEST_CASE(
    "Predict: causal, N = 1024, D = 128 is 72 tiles and 184,320 mma; 248,832 mma in the deterministic mode") {
    const Shape s{1, 1, 1, 1024, 1024, 128};
    const Mask mask = Mask::causal_top_left();
    CHECK(pairs_of_tiles(s, mask, tiles_for(128)) == 72);
    CHECK(tiles_seen(s, mask, 32, tiles_for(128)) == 528);
    if (!simt::hooks_enabled()) return;
    CHECK(count_of<bf16>(s, mask, false).mma == 184'320);
    CHECK(count_of<bf16>(s, mask, true).mma == 248'832);
}

TEST_CASE(
    "Predict: N = 4096, D = 128 takes a workspace of 2,129,920 bytes; 32,768 in the deterministic mode") {
    CHECK(backward_workspace_bytes({1, 1, 1, 4096, 4096, 128}, false) == 2'129'920);
    CHECK(backward_workspace_bytes({1, 1, 1, 4096, 4096, 128}, true) == 32'768);
}

TEST_CASE(
    "Predict: at N = 512, D = 128 four tiles add to each element of dQ, and the blocks move 3,561,472 "
    "bytes") {
    if (!simt::hooks_enabled()) return;
    const Shape s{1, 1, 1, 512, 512, 128};
    const auto counted = count_of<bf16>(s, Mask::none(), false);
    CHECK(counted.atomics == 4 * 512 * 128);
    CHECK(counted.global_load_bytes_distinct_per_block + counted.global_store_bytes_distinct_per_block ==
          3'561'472);
}
