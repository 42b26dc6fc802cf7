#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
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
using namespace flash::step08;
using flash::gpu::DeviceBuffer;
using flash::testing::CallEdit;
using flash::testing::ForwardCall;
using flash::testing::ForwardCase;
using flash::testing::HostTensor;
using flash::testing::Pattern;
using flash::testing::SharedLimit;
using flash::testing::Storage;

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QUIET_NAN = std::numeric_limits<float>::quiet_NaN();

// Shared memory that a block may have on sm_86, sm_89 and sm_120.
constexpr std::size_t k99KB = 99 * 1024;

// The tiles that attention.cu chooses on a device with 192 KB or more.
struct Tile {
    int head_dim, block_q, block_kv, warps;
    int warp_rows() const { return block_q / warps; }
};
Tile tile_for(int head_dim) {
    if (head_dim <= 64) return {64, 128, 32, 4};
    if (head_dim <= 128) return {128, 128, 64, 4};
    return {256, 128, 64, 8};
}

flash::testing::Capabilities capabilities(const char* step = "step 08") {
    return {.step = step,
            .max_head_dim = 256,
            .head_dim_multiple = 8,
            .aligned = true,
            .max_work = flash::testing::device_max_work()};
}

// What is wrong with the step's answer to a case; empty when nothing is. `edit` changes the inputs first.
template <class T> std::string failure_of(const ForwardCase& c, const CallEdit<T>& edit = {}) {
    return flash::testing::forward_failure<T>(&attention_forward<T>, c, true, edit);
}

// The emulator's counters of one call, or a SKIP line where nothing is counted.
template <class T> bool count(simt::Counters& counters, const ForwardCase& c, const CallEdit<T>& edit = {}) {
    return flash::testing::count_into(counters, [&] { CHECK(failure_of<T>(c, edit) == ""); });
}

std::uint64_t unsigned_of(std::int64_t n) {
    return static_cast<std::uint64_t>(n);
}

int ceil_div(std::int64_t a, int b) {
    return static_cast<int>((a + b - 1) / b);
}

// Key tiles of which some query among the first `rows` sees a key.
int tiles_seen(const Shape& s, const Mask& mask, int rows, int block_kv) {
    return ceil_div(mask.visible_keys(std::min(rows, s.len_q) - 1, s.len_kv), block_kv);
}

// Per head: key tiles that all blocks copy, and key tiles that all warps multiply. len_q is a multiple of
// BLOCK_Q.
int block_tiles(const Shape& s, const Mask& mask, const Tile& tile) {
    int sum = 0;
    for (int row = tile.block_q; row <= s.len_q; row += tile.block_q)
        sum += tiles_seen(s, mask, row, tile.block_kv);
    return sum;
}
int warp_tiles(const Shape& s, const Mask& mask, const Tile& tile) {
    int sum = 0;
    for (int row = tile.warp_rows(); row <= s.len_q; row += tile.warp_rows())
        sum += tiles_seen(s, mask, row, tile.block_kv);
    return sum;
}

// mma instructions that one warp spends on one tile: two products, 16 x 8 x 16 each.
int mma_per_tile(const Tile& tile) {
    return 2 * (tile.warp_rows() / 16) * (tile.block_kv / 8) * (tile.head_dim / 16);
}

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract", T, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention fulfils the contract on a device with 99 KB of shared memory per block", T,
                   fp16, bf16) {
    const SharedLimit limit(k99KB);
    flash::testing::run_forward_conformance<T, DeviceBuffer>(capabilities("step 08 with 99 KB"),
                                                             &attention_forward<T>);
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
    const auto real_model = Pattern::kRealModel;
    const auto top_left = Mask::causal_top_left();
    CHECK(failure_of<T>({"", {1, 2, 2, 134, 134, 32}, Mask::none(), Storage::kBhnd, real_model}) == "");
    CHECK(failure_of<T>({"", {1, 2, 2, 134, 134, 32}, top_left, Storage::kBnhd, real_model}) == "");
    CHECK(failure_of<T>({"", {1, 2, 1, 200, 330, 64}, Mask::causal(130), Storage::kMixed}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 330, 200, 128}, top_left, Storage::kPadded}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 140, 150, 256}, top_left}) == "");
}

TEST_CASE_TEMPLATE("every head dimension that is a multiple of 8 up to 256 is right", T, fp16, bf16) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        CHECK(failure_of<T>({"", {1, 1, 1, 17, 70, head_dim}, Mask::causal(40), Storage::kPadded}) == "");
}

// ---------------------------------------------------------------------------------------------------------
// Which tiles are computed

TEST_CASE("Predict: of the 128 tiles of N = 1024, causal, 56 are full, 16 on the diagonal, 56 beyond it") {
    const Tile tile = tile_for(128);
    const Mask mask = Mask::causal_top_left();
    REQUIRE(tile.block_q == 128);
    REQUIRE(tile.block_kv == 64);
    int full = 0, boundary = 0, beyond = 0;
    for (int row = 0; row < 1024; row += tile.block_q) {
        for (int key = 0; key < 1024; key += tile.block_kv) {
            const bool all = mask.visible_keys(row, 1024) >= key + tile.block_kv;
            const bool any = mask.visible_keys(row + tile.block_q - 1, 1024) > key;
            ++(all ? full : any ? boundary : beyond);
        }
    }
    CHECK(full == 56);
    CHECK(boundary == 16);
    CHECK(beyond == 56);
    const Shape s{1, 1, 1, 1024, 1024, 128};
    CHECK(block_tiles(s, mask, tile) == 72);
    CHECK(block_tiles(s, mask, tile) / 128.0 == (8 + 1) / (2.0 * 8));
    CHECK(warp_tiles(s, mask, tile) == 272);
    CHECK(warp_tiles(s, Mask::none(), tile) == 512);
}

TEST_CASE("causal attention with T x T square tiles needs (T + 1) / 2T of the tiles") {
    for (const int tiles : {1, 2, 5, 32}) {
        const Shape s{1, 1, 1, 64 * tiles, 64 * tiles, 64};
        CHECK(2 * tiles * block_tiles(s, Mask::causal_top_left(), {64, 64, 64, 4}) ==
              (tiles + 1) * tiles * tiles);
    }
}

TEST_CASE("Predict: N = 1024, D = 128, causal takes 69,632 mma and 561,152 exp2; a full matrix 131,072 mma") {
    const Shape s{1, 1, 1, 1024, 1024, 128};
    simt::Counters counters;
    // All scores are equal, so that each row is rescaled once: when it sees its first key.
    if (!count<bf16>(counters, {"", s, Mask::causal_top_left(), Storage::kBhnd, Pattern::kZeros})) return;
    CHECK(counters.mma == 69'632);  // 272 tiles of a warp
    CHECK(counters.exp2 == 272 * 32 * 64 + 4 * 1024);
    CHECK(counters.exp2 == 561'152);
    CHECK(512 * mma_per_tile(tile_for(128)) == 131'072);
}

TEST_CASE_TEMPLATE("copies, products and exponentials are those of the tiles that a mask leaves", T, fp16,
                   bf16) {
    struct Problem {
        int len_q, len_kv;
        Mask mask;
    };
    for (const int head_dim : {40, 64, 120, 256}) {
        const Tile tile = tile_for(head_dim);
        const int n = tile.block_q;
        for (const Problem& p : {Problem{n, 3 * n, Mask::none()}, Problem{2 * n, 2 * n - 7, Mask::causal(0)},
                                 Problem{n, 2 * n, Mask::causal(n)}, Problem{2 * n, n, Mask::causal(-n)},
                                 Problem{2 * n, 2 * n, Mask::causal(-40)}}) {
            if (head_dim == 256 && p.len_q > n) continue;
            const Shape s{1, 2, 1, p.len_q, p.len_kv, head_dim};
            CAPTURE(flash::testing::describe(s));
            CAPTURE(flash::testing::describe(p.mask));
            simt::Counters counters;
            if (!count<T>(counters, {"", s, p.mask, Storage::kBhnd, Pattern::kZeros})) return;
            const int warps = 2 * warp_tiles(s, p.mask, tile);
            CHECK(counters.mma == unsigned_of(warps * mma_per_tile(tile)));
            const int rows_16 = tile.warp_rows() / 16, keys_16 = tile.block_kv / 16;
            CHECK(counters.ldmatrix == unsigned_of(warps * tile.head_dim / 16 * (rows_16 + 2 * keys_16)));
            int seeing = 0;
            for (int i = 0; i < s.len_q; ++i) seeing += p.mask.visible_keys(i, s.len_kv) > 0;
            CHECK(counters.exp2 == unsigned_of(warps * tile.warp_rows() * tile.block_kv + 2 * 4 * seeing));

            // Q once; of K and V the rows of the tiles that some query of the block sees, to the end of the
            // tile.
            std::int64_t kv_rows = 0;
            for (int row = n; row <= s.len_q; row += n)
                kv_rows += std::min(s.len_kv, tiles_seen(s, p.mask, row, tile.block_kv) * tile.block_kv);
            const auto loads = unsigned_of(2 * 2 * head_dim * (s.len_q + 2 * kv_rows));
            CHECK(counters.cp_async_bytes == loads);
            CHECK(counters.global_load_bytes_issued == loads);
            CHECK(counters.global_load_bytes_distinct_per_block == loads);
            CHECK(counters.global_store_bytes_issued == unsigned_of(2 * s.len_q * (2 * head_dim + 4)));
            // One barrier a tile, one before the epilogue.
            const int blocks = s.len_q / n;
            CHECK(counters.barriers == unsigned_of(2 * (block_tiles(s, p.mask, tile) + blocks)));
        }
    }
}

TEST_CASE_TEMPLATE("a block whose last queries do not exist copies what the others see, and no more", T, fp16,
                   bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const Tile tile = tile_for(head_dim);
        const Shape s{1, 1, 1, tile.block_q / 2 - 4, 3 * tile.block_q, head_dim};
        const Mask mask = Mask::causal_top_left();
        CAPTURE(flash::testing::describe(s));
        simt::Counters counters;
        if (!count<T>(counters, {"", s, mask})) return;
        const int kv_rows = tiles_seen(s, mask, s.len_q, tile.block_kv) * tile.block_kv;
        CHECK(counters.cp_async_bytes == unsigned_of(2 * head_dim * (s.len_q + 2 * kv_rows)));
    }
}

TEST_CASE_TEMPLATE(
    "copies and stores are whole sectors, and shared memory sees copies, fragments and O alone", T, fp16,
    bf16) {
    if (!flash::testing::counts_are_exact()) return;
    for (const int head_dim : {64, 128, 256}) {
        const Tile tile = tile_for(head_dim);
        const int stages = head_dim == 64 ? 3 : 2;
        for (const Mask& mask : {Mask::none(), Mask::causal_top_left(), Mask::causal(-40)}) {
            const Shape s{1, 2, 1, 2 * tile.block_q, 330, head_dim};  // ragged, two query heads to a key head
            CAPTURE(flash::testing::describe(s));
            CAPTURE(flash::testing::describe(mask));
            simt::Counters counters;
            if (!count<T>(counters, {"", s, mask})) return;
            CHECK(counters.global_load_sectors == counters.global_load_bytes_issued / 32);
            CHECK(counters.global_store_sectors == counters.global_store_bytes_issued / 32);
            CHECK(counters.global_store_bytes_issued == counters.global_store_bytes_distinct_per_launch);
            const int keys = std::min(s.len_kv, tiles_seen(s, mask, s.len_q, tile.block_kv) * tile.block_kv);
            CHECK(counters.global_load_bytes_distinct_per_launch ==
                  unsigned_of(2 * head_dim * (2 * s.len_q + 2 * keys)));
            // A block copies its Q tile and, of K and V, the tiles it sees and one of zeros for each stage
            // but one. P is in registers; O goes through shared memory once.
            const std::int64_t blocks = 2 * 2,
                               kv_tiles = 2 * block_tiles(s, mask, tile) + blocks * (stages - 1);
            const std::int64_t rows = blocks * tile.block_q, row_bytes = 2 * head_dim;
            CHECK(counters.shared_store_bytes ==
                  unsigned_of((rows + kv_tiles * 2 * tile.block_kv + rows) * row_bytes));
            CHECK(counters.shared_load_bytes == counters.ldmatrix * 512 + unsigned_of(rows * row_bytes));
            CHECK(counters.shared_bank_conflicts == 0);
        }
    }
}

TEST_CASE_TEMPLATE("the diagonal may cross a tile at any key", T, fp16, bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const int block_kv = tile_for(head_dim).block_kv;
        for (const int past : {-2, -1, 0, 1, 15}) {
            for (const int tiles : {-3, 0, 1}) {
                const Mask mask = Mask::causal(tiles * block_kv + past);
                CHECK(failure_of<T>({"", {1, 1, 1, 133, 3 * block_kv, head_dim}, mask}) == "");
            }
        }
    }
}

TEST_CASE_TEMPLATE("no ldmatrix and no cp.async waits for a bank, at any head dimension", T, fp16, bf16) {
    for (const std::size_t bytes : {k99KB, simt::kDefaultSharedLimit}) {
        const SharedLimit limit(bytes);
        for (const int head_dim : {8, 24, 64, 72, 128, 136, 256}) {
            simt::Counters counters;
            if (!count<T>(counters, {"", {1, 1, 1, 40, 100, head_dim}})) return;
            CAPTURE(head_dim);
            CHECK(counters.ldmatrix > 0);
            CHECK(counters.cp_async_bytes > 0);
            CHECK(counters.shared_bank_conflicts == 0);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// The rescale threshold

namespace {

// Every query sees a score of steps * 8 + quarters * 0.25 in units of ln 2, with both numbers a function of
// the key tile; all sums are exact in fp16 and bf16.
template <class T>
CallEdit<T> scores_by_tile(int block_kv, const std::function<float(int tile)>& steps,
                           const std::function<float(int tile)>& quarters) {
    return [=](ForwardCall<T>& call) {
        set(call.q, [](int, int d) { return d == 0 ? 8.0f : d == 1 ? 0.25f : 0.0f; });
        set(call.k, [&](int n, int d) {
            return d == 0 ? steps(n / block_kv) : d == 1 ? quarters(n / block_kv) : 0.0f;
        });
        call.scale = static_cast<float>(std::log(2.0));
    };
}

// How often each row is rescaled when the maximum changes by `quarters` quarters of a power of two a tile.
template <class T> double rescales(int tiles, int quarters) {
    const Tile tile = tile_for(64);
    const Shape s{1, 1, 1, tile.block_q, tiles * tile.block_kv, 64};
    simt::Counters counters;
    const auto scores = scores_by_tile<T>(
        tile.block_kv, [](int t) { return static_cast<float>(t); },
        [quarters](int t) { return static_cast<float>((quarters - 32) * t); });
    if (!count<T>(counters, {"", s}, scores)) return -1;
    // Four lanes share a row; the other exponentials are one a score.
    const double extra = static_cast<double>(counters.exp2) - 1.0 * s.len_q * s.len_kv;
    return extra / 4 / s.len_q;
}

}  // namespace

TEST_CASE_TEMPLATE(
    "Predict: over 16 tiles whose maximum grows by 2^7.75 each a row is rescaled 8 times, by 2^8.25 16 times",
    T, fp16, bf16) {
    if (!simt::hooks_enabled()) return;
    CHECK(rescales<T>(16, 31) == 8);   // 2^7.75: every second tile
    CHECK(rescales<T>(16, 33) == 16);  // 2^8.25: every tile
    CHECK(rescales<T>(16, 1) == 1);    // 2^0.25 a tile is 2^3.75 in all: only the first tile
    CHECK(rescales<T>(16, -33) == 1);  // never after the first tile
}

TEST_CASE_TEMPLATE(
    "a maximum that grows by just less or just more than the threshold changes neither O nor L", T, fp16,
    bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const int block_kv = tile_for(head_dim).block_kv;
        for (const int quarters : {31, 33, 4, -31, -33}) {
            const auto steps = [](int t) { return static_cast<float>(t); };
            const auto rest = [quarters](int t) { return static_cast<float>((quarters - 32) * t); };
            const Shape s{1, 1, 1, 70, 6 * block_kv, head_dim};
            CHECK(failure_of<T>({"", s}, scores_by_tile<T>(block_kv, steps, rest)) == "");
            // Rows of one warp outgrow their shift in different tiles.
            CHECK(failure_of<T>({"", s, Mask::causal(s.len_kv - s.len_q)}, [&](ForwardCall<T>& call) {
                      scores_by_tile<T>(block_kv, steps, rest)(call);
                      set(call.q, [](int n, int d) {
                          const float factor = static_cast<float>(n % 5 - 1) / 2;
                          return d == 0 ? 8 * factor : d == 1 ? 0.25f * factor : 0.0f;
                      });
                  }) == "");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// Rows with nothing to see, and scores that are not finite

TEST_CASE_TEMPLATE("rows that see no key are zero with L = -inf beside rows that see some", T, fp16, bf16) {
    for (const int diagonal : {-1, -8, -15, -16, -17, -33, -128, -130, -199}) {
        CHECK(failure_of<T>({"", {1, 1, 1, 200, 220, 64}, Mask::causal(diagonal), Storage::kPadded}) == "");
    }
    CHECK(failure_of<T>({"", {1, 1, 1, 200, 220, 128}, Mask::causal(-150)}) == "");
}

TEST_CASE_TEMPLATE("scores of -inf in the first tile only, or in the last, are masked keys", T, fp16, bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const int block_kv = tile_for(head_dim).block_kv;
        for (const bool first : {true, false}) {
            for (const Mask& mask : {Mask::none(), Mask::causal(60)}) {
                const Shape s{1, 2, 1, 40, 3 * block_kv, head_dim};
                CHECK(failure_of<T>({"", s, mask}, [&](ForwardCall<T>& call) {
                          for (int h = 0; h < call.q.heads; ++h)
                              for (int n = 0; n < call.q.len; ++n)
                                  call.q.memory[static_cast<std::size_t>(call.q.index(0, h, n, 0))] =
                                      from_float<T>(1.0f);
                          for (int n = 0; n < call.k.len; ++n)
                              if (first ? n < block_kv : n >= 2 * block_kv)
                                  call.k.memory[static_cast<std::size_t>(call.k.index(0, 0, n, 0))] =
                                      from_float<T>(-INF);
                      }) == "");
            }
        }
    }
}

TEST_CASE_TEMPLATE("A9: a +inf or NaN in one key makes the rows that see it NaN and no other", T, fp16,
                   bf16) {
    for (const float bad : {INF, QUIET_NAN}) {
        for (const int key : {0, 5, 69, 100}) {
            for (const int head_dim : {64, 128}) {
                const Shape s{1, 1, 1, 110, 110, head_dim};
                CHECK(failure_of<T>({"", s, Mask::causal_top_left()}, [&](ForwardCall<T>& call) {
                          for (int n = 0; n < s.len_q; ++n)
                              call.q.memory[static_cast<std::size_t>(call.q.index(0, 0, n, 0))] =
                                  from_float<T>(1.0f);
                          call.k.memory[static_cast<std::size_t>(call.k.index(0, 0, key, 0))] =
                              from_float<T>(bad);
                      }) == "");
            }
        }
    }
}

// The exponent of P is score * scale_log2 minus a rounded shift: it is off by half a unit in the last place
// of the score in powers of two. At 2^28 that is 2^4 / 2, which with the threshold keeps P within fp16; in
// bf16 2^31 leaves room for the sums.
TEST_CASE_TEMPLATE("A12: O is right at scaled logits up to 1.8e8 in fp16 and 1.4e9 in bf16", T, fp16, bf16) {
    const float largest = std::is_same_v<T, fp16> ? 1.8e8f : 1.4e9f;
    for (int n = 0; n < 40; ++n) {
        const Shape s{1, 1, 1, 3, 2, 64};
        CHECK(failure_of<T>({"", s}, [&](ForwardCall<T>& call) {
                  set(call.q, [](int, int d) { return d == 0 ? 1001.0f : 0.0f; });
                  set(call.k, [](int, int d) { return d == 0 ? 999.0f : 0.0f; });
                  call.scale = largest * (1 - 0.01f * static_cast<float>(n)) /
                               (to_float(call.q.memory[0]) * to_float(call.k.memory[0]));
              }) == "");
    }
}

TEST_CASE("A16: as the keys grow from 128 to 8192 the bf16 error stays within twice the twin's") {
    for (const int len_kv : {128, 1024, 8192}) {
        CHECK(failure_of<bf16>({"", {1, 1, 1, 16, len_kv, 128}}) == "");
        CHECK(failure_of<bf16>(
                  {"", {1, 1, 1, 16, len_kv, 64}, Mask::none(), Storage::kBhnd, Pattern::kIncreasing}) == "");
    }
}

// ---------------------------------------------------------------------------------------------------------
// The machine

TEST_CASE_TEMPLATE("a pipeline deeper than there are tiles copies nothing that does not exist", T, fp16,
                   bf16) {
    for (const int head_dim : {64, 128, 256}) {
        const int block_kv = tile_for(head_dim).block_kv;
        for (const int len_kv :
             {0, 1, block_kv - 1, block_kv, block_kv + 1, 2 * block_kv, 3 * block_kv + 1}) {
            const Shape s{1, 1, 1, 40, len_kv, head_dim};
            const Mask bottom_right = Mask::causal_bottom_right(s);
            CHECK(failure_of<T>({"", s, Mask::none(), Storage::kBhnd, Pattern::kIncreasing}) == "");
            CHECK(failure_of<T>({"", s, bottom_right, Storage::kBhnd, Pattern::kIncreasing}) == "");
        }
    }
}

TEST_CASE_TEMPLATE("C3: every thread reaches every barrier, whatever tiles its warp skips", T, fp16, bf16) {
    // Warps whose rows lie beyond the end, warps from which a tile is hidden that others see. The emulator
    // reports a barrier that not every thread reaches.
    for (const int len_q : {1, 33, 130}) {
        for (const int diagonal : {-140, -20, 0, 40}) {
            const Mask mask = Mask::causal(diagonal);
            CHECK(failure_of<T>({"", {1, 2, 1, len_q, 150, 64}, mask, Storage::kPadded}) == "");
        }
    }
}

namespace {

// Work of different lengths handed out in this order, each piece to the worker that is free first: when the
// last one ends.
int finish(const std::vector<int>& lengths, std::size_t workers) {
    std::vector<int> busy_until(workers, 0);
    for (const int length : lengths) *std::min_element(busy_until.begin(), busy_until.end()) += length;
    return *std::max_element(busy_until.begin(), busy_until.end());
}

}  // namespace

TEST_CASE("the README's eight tiles on two SMs take 20 shortest first, 18 longest first") {
    CHECK(finish({1, 2, 3, 4, 5, 6, 7, 8}, 2) == 20);
    CHECK(finish({8, 7, 6, 5, 4, 3, 2, 1}, 2) == 18);
}

TEST_CASE_TEMPLATE("heads in several groups, the last one incomplete, are each computed once", T, fp16,
                   bf16) {
    // K and V of a head take 8 MB, so that four heads are a group; of the 8192 keys the queries see the
    // first.
    const Shape s{1, 6, 1, 200, 8192, 256};
    CHECK(failure_of<T>({"", s, Mask::causal(-100)}) == "");
}

TEST_CASE_TEMPLATE("attention gives the same bits every time, in whatever order warps run", T, fp16, bf16) {
    const ForwardCase c{"", {1, 2, 1, 150, 200, 64}, Mask::causal(50), Storage::kBnhd};
    CHECK(flash::testing::same_in_every_order<T>(&attention_forward<T>, c, true));
}

TEST_CASE("at D = 256 the tile follows the shared memory of the device") {
    const auto barriers_with = [](std::size_t bytes) {
        const SharedLimit limit(bytes);
        simt::Counters counters;
        return count<bf16>(counters, {"", {1, 1, 1, 128, 256, 256}}) ? counters.barriers : 0;
    };
    if (!simt::hooks_enabled()) return;
    CHECK(barriers_with(192 * 1024) == 256 / 64 + 1);            // one block of 128 queries
    CHECK(barriers_with(192 * 1024 - 1) == 2 * (256 / 32 + 1));  // two blocks of 64
}

TEST_CASE_TEMPLATE("C1: exactly enough shared memory will do; a byte less is refused with both sizes", T,
                   fp16, bf16) {
    for (const int head_dim : {128, 256}) {
        constexpr std::size_t kNeeded = 98'304;
        const ForwardCase c{"", {1, 1, 1, 70, 90, head_dim}};
        {
            const SharedLimit exact(kNeeded);
            CHECK(failure_of<T>(c) == "");
        }
        const SharedLimit too_little(kNeeded - 1);
        auto call = flash::testing::make_call<T>(c, true);
        const auto before = call;
        std::string message;
        try {
            flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(call, {});
        } catch (const gpu::DeviceError& error) {
            message = error.what();
        }
        CAPTURE(message);
        CHECK(message.find("wants 98304 bytes of shared memory per block; this device has 98303") !=
              std::string::npos);
        CHECK(flash::testing::same_bits(call.o.memory, before.o.memory));
        CHECK(flash::testing::same_bits(call.lse, before.lse));
    }
}
