#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.hpp"
#include "common/gpu/device.hpp"
#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/exact_counts.hpp"
#include "common/testing/gpu_step.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

using namespace flash;
using namespace flash::step07;
using flash::gpu::DeviceBuffer;
using flash::testing::CallEdit;
using flash::testing::ForwardCall;
using flash::testing::ForwardCase;
using flash::testing::Pattern;
using flash::testing::SharedLimit;
using flash::testing::Storage;

namespace {

// Shared memory that a block may have on sm_86, sm_89 and sm_120; on sm_80; on sm_90.
constexpr std::size_t k99KB = 99 * 1024, k163KB = 163 * 1024, k227KB = 227 * 1024;

flash::testing::Capabilities capabilities() {
    return {.step = "step 07",
            .max_head_dim = 128,
            .head_dim_multiple = 8,
            .aligned = true,
            .max_work = flash::testing::device_max_work()};
}

// The tile shapes that devices with more and more modest limits would be given, the roomiest first.
std::vector<TileShape> shapes_for(int head_dim) {
    std::vector<TileShape> shapes;
    std::size_t limit = k227KB;
    try {
        for (;; limit = shapes.back().shared_bytes() - 1)
            shapes.push_back(chosen_tile_shape(head_dim, limit));
    } catch (const std::invalid_argument&) {
    }
    return shapes;
}

std::string name_of(const TileShape& s) {
    return std::to_string(s.block_q) + " x " + std::to_string(s.block_kv) +
           " at D = " + std::to_string(s.head_dim) + ", " + std::to_string(s.warps) + " warps, " +
           std::to_string(s.stages) + " stages";
}

// What is wrong with the step's answer to a case; empty when nothing is. `edit` changes the inputs first.
template <class T> std::string failure_of(const ForwardCase& c, const CallEdit<T>& edit = {}) {
    return flash::testing::forward_failure<T>(&attention_forward<T>, c, true, edit);
}

// The emulator's counters of one call, or a SKIP line where nothing is counted.
template <class T> bool count(simt::Counters& counters, const ForwardCase& c) {
    return flash::testing::count_into(counters, [&] { CHECK(failure_of<T>(c) == ""); });
}

int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract with every tile shape of the table", T, fp16, bf16) {
    for (const int head_dim : {64, 128}) {
        for (const TileShape& shape : shapes_for(head_dim)) {
            const SharedLimit limit(shape.shared_bytes());
            auto can = capabilities();
            can.max_head_dim = head_dim;
            const std::string step = "step 07 with " + name_of(shape);
            can.step = step.c_str();
            flash::testing::run_forward_conformance<T, DeviceBuffer>(can, &attention_forward<T>);
        }
    }
}
TEST_CASE_TEMPLATE("attention is right on random shapes", T, fp16, bf16) {
    flash::testing::run_forward_fuzz<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention refuses bad arguments and writes nothing", T, fp16, bf16) {
    flash::testing::run_bad_arguments<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention is free of faults others have met", T, fp16, bf16) {
    flash::testing::run_public_faults<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}

TEST_CASE_TEMPLATE("attention is right on a real model and at sizes with several tiles", T, fp16, bf16) {
    CHECK(failure_of<T>({"", {1, 2, 2, 134, 134, 32}, Mask::none(), Storage::kBhnd, Pattern::kRealModel}) ==
          "");
    CHECK(failure_of<T>({"", {1, 2, 1, 200, 330, 64}, Mask::causal(130), Storage::kBnhd}) == "");
    CHECK(failure_of<T>(
              {"", {1, 1, 1, 200, 96, 128}, Mask::none(), Storage::kPadded, Pattern::kLargestLast}) == "");
}

// ---------------------------------------------------------------------------------------------------------
// The pipeline

TEST_CASE_TEMPLATE("a pipeline deeper than there are tiles copies nothing that does not exist", T, fp16,
                   bf16) {
    for (const int head_dim : {64, 128}) {
        for (const TileShape& shape : shapes_for(head_dim)) {
            const SharedLimit limit(shape.shared_bytes());
            for (const int tiles : {0, 1, 2, 3, shape.stages + 2}) {
                for (const int extra : {-1, 0, 1}) {
                    const int len_kv = tiles * shape.block_kv + extra;
                    if (len_kv < 0) continue;
                    const Shape sizes{1, 1, 1, 40, len_kv, head_dim};
                    const Pattern pattern = Pattern::kIncreasing;
                    CHECK(failure_of<T>({"", sizes, Mask::none(), Storage::kBhnd, pattern}) == "");
                    CHECK(failure_of<T>(
                              {"", sizes, Mask::causal_bottom_right(sizes), Storage::kBhnd, pattern}) == "");
                }
            }
        }
    }
}

TEST_CASE("Predict: 1024 keys in tiles of 64 take 16 barriers in every block, one a tile") {
    const TileShape shape = chosen_tile_shape(128, k227KB);
    REQUIRE(shape.block_kv == 64);
    const Shape sizes{1, 1, 1, 2 * shape.block_q, 1024, 128};
    simt::Counters counters;
    if (!count<bf16>(counters, {"", sizes})) return;
    CHECK(counters.barriers == 2 * 16);
}

TEST_CASE_TEMPLATE("C3: every thread reaches every barrier, whatever its warp has left to do", T, fp16,
                   bf16) {
    // Warps whose rows lie beyond the end, rows that the mask hides, tiles that are half empty. The emulator
    // reports a barrier that not every thread reaches.
    for (const int len_q : {1, 17, 33, 130}) {
        for (const int diagonal : {-140, -20, 0, 7}) {
            const Mask mask = Mask::causal(diagonal);
            CHECK(failure_of<T>({"", {1, 2, 1, len_q, 70, 64}, mask, Storage::kPadded}) == "");
        }
    }
}

TEST_CASE_TEMPLATE("attention gives the same bits every time, in whatever order warps run", T, fp16, bf16) {
    const ForwardCase c{"", {1, 2, 1, 150, 200, 64}, Mask::causal(50), Storage::kBnhd};
    CHECK(flash::testing::same_in_every_order<T>(&attention_forward<T>, c, true));
}

// ---------------------------------------------------------------------------------------------------------
// Shared memory: its budget and its banks

TEST_CASE("Predict: a 128 x 64 tile at D = 128 with two stages takes 98,304 bytes, with three 131,072") {
    const TileShape two{128, 128, 64, 4, 2}, three{128, 128, 64, 4, 3};
    CHECK(two.shared_bytes() == 98'304);
    CHECK(three.shared_bytes() == 131'072);
    CHECK(two.shared_bytes() <= k99KB);
    CHECK(three.shared_bytes() > k99KB);
    CHECK(three.shared_bytes() <= k163KB);
}

TEST_CASE("the budgets of the README's table") {
    struct Line {
        int block_q, block_kv, stages;
        std::size_t at_64, at_128;
    };
    for (const Line& line : {Line{64, 64, 2, 40'960, 81'920}, Line{128, 32, 3, 40'960, 81'920},
                             Line{128, 64, 2, 49'152, 98'304}, Line{128, 64, 3, 65'536, 131'072},
                             Line{128, 128, 2, 81'920, 163'840}, Line{128, 128, 3, 114'688, 229'376}}) {
        CHECK(TileShape{64, line.block_q, line.block_kv, 4, line.stages}.shared_bytes() == line.at_64);
        CHECK(TileShape{128, line.block_q, line.block_kv, 4, line.stages}.shared_bytes() == line.at_128);
    }
    CHECK(98'304 <= k99KB);
    CHECK(163'840 <= k163KB);
    CHECK(229'376 <= k227KB);
}

TEST_CASE("every device from sm_80 on has a tile shape that fits, for every head dimension") {
    for (int head_dim = 8; head_dim <= 128; head_dim += 8) {
        for (const std::size_t available : {k99KB, k163KB, k227KB}) {
            const TileShape chosen = chosen_tile_shape(head_dim, available);
            CHECK(chosen.shared_bytes() <= available);
            CHECK(chosen.head_dim >= head_dim);
            CHECK(chosen.head_dim - head_dim < 64);  // padded to the next size and not the one after
        }
    }
}

// A lane holds R D / 32 accumulators and R BLOCK_KV / 32 scores of its warp's R rows; 255 is all it can have.
TEST_CASE("every tile shape of the table leaves registers for more than accumulators and scores") {
    int shapes = 0;
    for (const int head_dim : {64, 128}) {
        for (const TileShape& shape : shapes_for(head_dim)) {
            CAPTURE(name_of(shape));
            const int rows = shape.block_q / shape.warps;
            CHECK(rows * (shape.head_dim + shape.block_kv) / 32 <= 192);
            ++shapes;
        }
    }
    CHECK(shapes >= 2);
}

TEST_CASE_TEMPLATE("C1: exactly enough shared memory will do; a byte less is refused with both sizes", T,
                   fp16, bf16) {
    const auto execute = flash::testing::execute_on<T, DeviceBuffer>(&attention_forward<T>);
    for (const int head_dim : {40, 128}) {
        const std::size_t smallest = shapes_for(head_dim).back().shared_bytes();
        const ForwardCase c{"", {1, 1, 1, 70, 90, head_dim}};
        {
            const SharedLimit exact(smallest);
            CHECK(failure_of<T>(c) == "");
        }
        const SharedLimit too_little(smallest - 1);
        auto call = flash::testing::make_call<T>(c, true);
        const auto before = call;
        const std::string sentence =
            "a tile for head_dim " + std::to_string(head_dim) + " wants " + std::to_string(smallest) +
            " bytes of shared memory per block; this device has " + std::to_string(smallest - 1);
        CHECK_THROWS_WITH_AS(execute(call, {}), sentence.c_str(), std::invalid_argument);
        CHECK(flash::testing::same_bits(call.o.memory, before.o.memory));
        CHECK(flash::testing::same_bits(call.lse, before.lse));
    }
}

TEST_CASE("Predict: eight rows at one chunk lie in one group of banks; swizzled, in eight groups") {
    for (int chunk = 0; chunk < 16; ++chunk) {
        std::vector<int> plain, swizzled;  // groups of four banks; a row of D = 128 is 16 chunks long
        for (int row = 0; row < 8; ++row) {
            plain.push_back((row * 16 + chunk) % 8);
            swizzled.push_back((row * 16 + (chunk ^ row % 8)) % 8);
        }
        std::sort(swizzled.begin(), swizzled.end());
        CHECK(std::count(plain.begin(), plain.end(), chunk % 8) == 8);
        CHECK(std::unique(swizzled.begin(), swizzled.end()) == swizzled.end());
    }
}

TEST_CASE_TEMPLATE("no ldmatrix and no cp.async waits for a bank, with any tile shape", T, fp16, bf16) {
    for (const int head_dim : {24, 64, 88, 128}) {
        for (const TileShape& shape : shapes_for(head_dim)) {
            const SharedLimit limit(shape.shared_bytes());
            simt::Counters counters;
            if (!count<T>(counters, {"", {1, 1, 1, 100, 150, head_dim}})) return;
            CAPTURE(name_of(shape));
            CHECK(counters.ldmatrix > 0);
            CHECK(counters.cp_async_bytes > 0);
            CHECK(counters.shared_bank_conflicts == 0);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// What is moved and what is computed

TEST_CASE_TEMPLATE("each block moves 2 BLOCK_Q D + 2 Nk D elements and L, and the copies load nothing twice",
                   T, fp16, bf16) {
    for (const int head_dim : {40, 128}) {
        const int block_q = chosen_tile_shape(head_dim, gpu::device_info().shared_per_block_optin).block_q;
        const Shape s{1, 2, 2, 300, 330, head_dim};
        for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
            simt::Counters counters;
            if (!count<T>(counters, {"", s, mask})) return;
            const int blocks = ceil_div(s.len_q, block_q);
            const auto loads =
                static_cast<std::uint64_t>(2 * 2 * head_dim * (s.len_q + blocks * 2 * s.len_kv));
            CHECK(counters.global_load_bytes_distinct_per_block == loads);
            CHECK(counters.cp_async_bytes == loads);
            CHECK(counters.global_load_bytes_issued == loads);
            CHECK(counters.global_store_bytes_issued ==
                  static_cast<std::uint64_t>(2 * s.len_q * (2 * head_dim + 4)));
        }
    }
}

TEST_CASE_TEMPLATE("copies are whole sectors, P stays in registers, and each score takes one exponential", T,
                   fp16, bf16) {
    if (!flash::testing::counts_are_exact()) return;
    for (const int head_dim : {64, 128}) {
        const TileShape shape = chosen_tile_shape(head_dim, gpu::device_info().shared_per_block_optin);
        const Shape s{1, 2, 1, 304, 330, head_dim};  // ragged, two query heads to a key head
        simt::Counters counters;
        if (!count<T>(counters, {"", s, Mask::causal_top_left()})) return;
        CHECK(counters.global_load_sectors == counters.global_load_bytes_issued / 32);
        const auto tensors = static_cast<std::uint64_t>(2 * head_dim * (2 * s.len_q + 2 * s.len_kv));
        CHECK(counters.global_load_bytes_distinct_per_launch == tensors);
        // As in step 06: eight rows of 16 bytes a store.
        const auto rows = static_cast<std::uint64_t>(2 * s.len_q);
        CHECK(counters.global_store_sectors == rows / 8 * (static_cast<std::uint64_t>(head_dim) / 8 * 8 + 1));
        // A block copies its Q tile and, into the stages, one tile of K and V more than there are for each
        // stage but one; the tiles beyond the end are zeros.
        const int blocks = 2 * ceil_div(s.len_q, shape.block_q), tiles = ceil_div(s.len_kv, shape.block_kv);
        const int copied_rows = shape.block_q + 2 * shape.block_kv * (tiles + shape.stages - 1);
        CHECK(counters.shared_store_bytes == static_cast<std::uint64_t>(blocks * copied_rows * head_dim * 2));
        CHECK(counters.shared_load_bytes == counters.ldmatrix * 32 * 16);
        CHECK(counters.shared_load_requests == counters.ldmatrix);
        const int row_tiles = shape.block_q / shape.warps / 16;
        CHECK(counters.ldmatrix == static_cast<std::uint64_t>(blocks * tiles * shape.warps * (head_dim / 16) *
                                                              (row_tiles + 2 * shape.block_kv / 16)));
        CHECK(counters.exp2 ==
              static_cast<std::uint64_t>(blocks * tiles * shape.block_q * (shape.block_kv + 4)));
    }
}

TEST_CASE("Predict: at N = 1024 and D = 128 K and V of one head are read 8 times, 4,194,304 bytes") {
    REQUIRE(chosen_tile_shape(128, k227KB).block_q == 128);
    const Shape s{1, 1, 1, 1024, 1024, 128};
    const std::uint64_t q_bytes = 1024 * 128 * 2;
    simt::Counters counters;
    if (!count<bf16>(counters, {"", s})) return;
    CHECK(counters.cp_async_bytes - q_bytes == 4'194'304);
    CHECK(counters.cp_async_bytes - q_bytes == 8 * 2 * q_bytes);
}

TEST_CASE_TEMPLATE("every tile is multiplied, those beyond the diagonal too", T, fp16, bf16) {
    const Shape s{1, 1, 1, 300, 330, 64};
    const TileShape shape = chosen_tile_shape(64, gpu::device_info().shared_per_block_optin);
    const int rows = ceil_div(s.len_q, shape.block_q) * shape.block_q;
    const int keys = ceil_div(s.len_kv, shape.block_kv) * shape.block_kv;
    for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
        simt::Counters counters;
        if (!count<T>(counters, {"", s, mask})) return;
        // Two products; an mma takes 16 rows, 8 columns and 16 steps of the sum.
        CHECK(counters.mma == static_cast<std::uint64_t>(2 * (rows / 16) * (keys / 8) * (64 / 16)));
    }
}

// ---------------------------------------------------------------------------------------------------------
// Numbers

TEST_CASE("A16: as the keys grow from 128 to 8192 the bf16 error stays within twice the twin's") {
    for (const int len_kv : {128, 1024, 8192}) {
        CHECK(failure_of<bf16>({"", {1, 1, 1, 16, len_kv, 128}}) == "");
        CHECK(failure_of<bf16>(
                  {"", {1, 1, 1, 16, len_kv, 64}, Mask::none(), Storage::kBhnd, Pattern::kIncreasing}) == "");
    }
}

TEST_CASE_TEMPLATE("every head dimension that is a multiple of 8 up to 128 is right", T, fp16, bf16) {
    for (int head_dim = 8; head_dim <= 128; head_dim += 8)
        CHECK(failure_of<T>({"", {1, 1, 1, 17, 70, head_dim}, Mask::causal(53), Storage::kPadded}) == "");
}
