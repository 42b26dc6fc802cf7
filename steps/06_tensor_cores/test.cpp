#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "attention.hpp"
#include "common/gpu/device.hpp"
#include "common/reference.hpp"
#include "common/simt/control.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/exact_counts.hpp"
#include "common/testing/gpu_step.hpp"
#include "common/testing/needs_device.hpp"
#include "doctest/doctest.h"

using namespace flash;
using namespace flash::step06;
using flash::gpu::DeviceBuffer;
using flash::testing::ForwardCall;
using flash::testing::ForwardCase;
using flash::testing::HostTensor;
using flash::testing::Pattern;
using flash::testing::SharedLimit;
using flash::testing::Storage;

namespace {

// As in attention.cu.
constexpr int BLOCK = 64;  // BLOCK_Q and BLOCK_KV
constexpr int WARPS = 4;

flash::testing::Capabilities capabilities() {
    return {.step = "step 06",
            .max_head_dim = 128,
            .head_dim_multiple = 8,
            .aligned = true,
            .max_work = flash::testing::device_max_work()};
}

template <class T> void execute(ForwardCall<T>& call) {
    flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(call, {});
}

// What is wrong with the step's answer to a case; empty when nothing is.
template <class T> std::string failure_of(const ForwardCase& c) {
    return flash::testing::forward_failure<T>(&attention_forward<T>, c, true);
}

// The emulator's counters of one call, or a SKIP line where nothing is counted.
template <class T> bool count(simt::Counters& counters, const ForwardCase& c) {
    return flash::testing::count_into(counters, [&] { CHECK(failure_of<T>(c) == ""); });
}

template <class T> float o_of(const ForwardCall<T>& call, int i, int d) {
    return to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, i, d))]);
}
template <class T> double lse_of(const ForwardCall<T>& call, int i) {
    return static_cast<double>(call.lse[static_cast<std::size_t>(call.kLseGuard + i)]);
}

std::uint64_t tiles(int len) {
    return static_cast<std::uint64_t>((len + BLOCK - 1) / BLOCK);
}
// Pairs of a query tile and a key tile, over all heads.
std::uint64_t tile_pairs(const Shape& s) {
    return static_cast<std::uint64_t>(s.batch) * static_cast<std::uint64_t>(s.heads_q) * tiles(s.len_q) *
           tiles(s.len_kv);
}
std::uint64_t built_head_dim(int head_dim) {
    return head_dim <= 64 ? 64 : 128;
}

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract", T, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
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
    const auto none = Mask::none(), top_left = Mask::causal_top_left();
    CHECK(failure_of<T>({"", {1, 2, 2, 134, 134, 32}, none, Storage::kBhnd, Pattern::kRealModel}) == "");
    CHECK(failure_of<T>({"", {1, 2, 1, 200, 330, 64}, Mask::causal(130), Storage::kMixed}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 200, 96, 128}, none, Storage::kPadded, Pattern::kLargestLast}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 96, 200, 128}, top_left, Storage::kBhnd, Pattern::kIncreasing}) == "");
}

TEST_CASE_TEMPLATE("every head dimension that is a multiple of 8 up to 128 is right", T, fp16, bf16) {
    for (int head_dim = 8; head_dim <= 128; head_dim += 8)
        CHECK(failure_of<T>({"", {1, 1, 1, 17, 70, head_dim}, Mask::causal(40), Storage::kPadded}) == "");
}

// One off the edges of the tile (64), of the warp's rows (16) and of an accumulator (8 keys); primes.
TEST_CASE_TEMPLATE("lengths one off every edge, and primes, are right", T, fp16, bf16) {
    struct Lengths {
        int q, kv;
    };
    for (const Lengths n :
         {Lengths{63, 65}, Lengths{64, 64}, Lengths{65, 63}, Lengths{1, 129}, Lengths{15, 17},
          Lengths{17, 15}, Lengths{49, 7}, Lengths{47, 9}, Lengths{37, 53}, Lengths{113, 131}}) {
        for (const int head_dim : {64, 128}) {
            const Shape s{1, 1, 1, n.q, n.kv, head_dim};
            CHECK(failure_of<T>({"", s, Mask::none(), Storage::kPadded, Pattern::kLargestLast}) == "");
            CHECK(failure_of<T>({"", s, Mask::causal_bottom_right(s)}) == "");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// Fragments

// Query i sees key (37 i + 11) % N alone, all other weights underflow to 0: O is a permutation of V's rows,
// in integers that fp16 and bf16 hold exactly. A pair of P in a wrong lane or register puts a row elsewhere.
TEST_CASE_TEMPLATE("accumulators of S reach the second product in the right lanes and registers", T, fp16,
                   bf16) {
    for (const int n : {64, 128}) {
        auto call = flash::testing::make_call<T>({"", {1, 1, 1, n, n, n}}, true);
        const auto value = [](int j, int d) { return static_cast<float>((j * 7 + d * 3) % 251); };
        call.scale = 1;
        set(call.q, [n](int i, int d) { return d == (37 * i + 11) % n ? 128.0f : 0.0f; });
        set(call.k, [](int j, int d) { return d == j ? 1.0f : 0.0f; });
        set(call.v, value);
        execute(call);
        int wrong = 0;
        for (int i = 0; i < n; ++i) {
            for (int d = 0; d < n; ++d) wrong += o_of(call, i, d) != value((37 * i + 11) % n, d);
            CHECK(lse_of(call, i) == 128);
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("Predict: 4096 mma compute a head of N = 256, D = 64, one for every 4096 operations") {
    const Shape s{1, 1, 1, 256, 256, 64};
    CHECK(4 * 256 * 256 * 64 / (2 * 16 * 8 * 16) == 4096);
    simt::Counters counters;
    if (!count<bf16>(counters, {"", s})) return;
    CHECK(counters.mma == 4096);
}

TEST_CASE_TEMPLATE("mma, ldmatrix, barriers and bytes of shared memory are those of the tiles", T, fp16,
                   bf16) {
    for (const Shape& s : {Shape{1, 1, 1, 64, 64, 64}, Shape{2, 2, 1, 70, 130, 40},
                           Shape{1, 1, 1, 65, 64, 128}, Shape{1, 2, 2, 20, 50, 72}}) {
        CAPTURE(flash::testing::describe(s));
        simt::Counters counters;
        if (!count<T>(counters, {"", s, Mask::causal_top_left()})) return;
        const std::uint64_t pairs = tile_pairs(s), d = built_head_dim(s.head_dim);
        // A warp and a tile of keys: two products of 16 x 64 x D in instructions of 16 x 8 x 16.
        CHECK(counters.mma == pairs * WARPS * 2 * (64 / 8) * (d / 16));
        // Four matrices of 8 x 8 at a time: Q's 16 rows; K's and V's 64.
        CHECK(counters.ldmatrix == pairs * WARPS * (d / 16) * (1 + 4 + 4));
        CHECK(counters.barriers == 2 * pairs);
        // P stays in registers: only tiles of Q, K and V are stored in shared memory, only fragments of them
        // loaded.
        const std::uint64_t blocks = pairs / tiles(s.len_kv);
        CHECK(counters.shared_store_bytes == (blocks + 2 * pairs) * 64 * d * 2);
        CHECK(counters.shared_load_bytes == counters.ldmatrix * 32 * 16);
    }
}

TEST_CASE_TEMPLATE("copies are 16 bytes a lane in whole sectors; a store of O uses half of each sector", T,
                   fp16, bf16) {
    if (!flash::testing::counts_are_exact()) return;
    // Ragged on both axes, two query heads to a key head.
    for (const Shape& s : {Shape{1, 2, 1, 96, 70, 64}, Shape{1, 2, 2, 48, 50, 128}}) {
        CAPTURE(flash::testing::describe(s));
        simt::Counters counters;
        if (!count<T>(counters, {"", s, Mask::causal_top_left()})) return;
        CHECK(counters.global_load_sectors == counters.global_load_bytes_issued / 32);
        const std::uint64_t rows = static_cast<std::uint64_t>(s.heads_q * s.len_q);
        const std::uint64_t row_bytes = static_cast<std::uint64_t>(2 * s.head_dim);
        // Eight rows of 16 bytes a request; L: eight neighbouring rows.
        CHECK(counters.global_store_requests == rows / 8 * (row_bytes / 16 + 1));
        CHECK(counters.global_store_sectors == rows / 8 * (row_bytes / 16 * 8 + 1));
        const std::uint64_t pairs = tile_pairs(s), d = built_head_dim(s.head_dim);
        CHECK(counters.shared_load_requests == counters.ldmatrix);
        CHECK(counters.shared_store_requests == (pairs / tiles(s.len_kv) + 2 * pairs) * 64 * d * 2 / 512);
        // One exponential a score, and one for the rescale in each of the four lanes of a row.
        CHECK(counters.exp2 == pairs * 64 * (64 + 4));
    }
}

// Rows that are 128 or 256 bytes long begin in the same four of the 32 banks. Step 07 brings this to 0.
TEST_CASE_TEMPLATE(
    "Predict: an ldmatrix of four matrices takes 32 passes instead of 4, at N = 64, D = 64 "
    "4032 passes too many",
    T, fp16, bf16) {
    for (const int head_dim : {64, 128}) {
        simt::Counters counters;
        if (!count<T>(counters, {"", {1, 1, 1, 64, 64, head_dim}})) return;
        CHECK(counters.shared_bank_conflicts == counters.ldmatrix * (32 - 4));
        CHECK(counters.shared_bank_conflicts == (head_dim == 64 ? 4032 : 8064));
    }
}

// ---------------------------------------------------------------------------------------------------------
// Traffic and memory

TEST_CASE_TEMPLATE("a head moves 2 N D + 2 N^2 D / BLOCK_Q elements and 4 N bytes, as in step 05", T, fp16,
                   bf16) {
    for (const Shape& s :
         {Shape{1, 2, 1, 128, 128, 64}, Shape{2, 2, 1, 70, 45, 40}, Shape{1, 1, 1, 65, 40, 128}}) {
        for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
            CAPTURE(flash::testing::describe(s));
            simt::Counters counters;
            if (!count<T>(counters, {"", s, mask})) return;
            const auto heads = static_cast<std::uint64_t>(s.batch * s.heads_q);
            const auto row = static_cast<std::uint64_t>(2 * s.head_dim);
            const auto len_q = static_cast<std::uint64_t>(s.len_q);
            const auto len_kv = static_cast<std::uint64_t>(s.len_kv);
            const std::uint64_t loads = heads * row * (len_q + tiles(s.len_q) * 2 * len_kv);
            CHECK(counters.global_load_bytes_issued == loads);
            CHECK(counters.global_load_bytes_distinct_per_block == loads);
            const auto heads_kv = static_cast<std::uint64_t>(s.batch * s.heads_kv);
            CHECK(counters.global_load_bytes_distinct_per_launch ==
                  row * (heads * len_q + heads_kv * 2 * len_kv));
            CHECK(counters.global_store_bytes_issued == heads * len_q * (row + 4));
            CHECK(counters.global_store_bytes_distinct_per_launch == heads * len_q * (row + 4));
        }
    }
}

TEST_CASE_TEMPLATE("nothing is allocated: beside the caller's tensors there is L, 4 bytes a query", T, fp16,
                   bf16) {
    const auto call = flash::testing::make_call<T>({"", {1, 1, 1, 128, 128, 64}}, true);
    DeviceBuffer<T> q(call.q.memory.size()), k(call.k.memory.size()), v(call.v.memory.size());
    DeviceBuffer<T> o(call.o.memory.size());
    DeviceBuffer<float> lse(call.lse.size());
    q.copy_from_host(call.q.memory.data());
    k.copy_from_host(call.k.memory.data());
    v.copy_from_host(call.v.memory.data());
    gpu::reset_peak_device_bytes();
    const std::size_t before = gpu::device_bytes_in_use();
    attention_forward(call.args(q.data(), k.data(), v.data(), o.data(), lse.data()));
    gpu::synchronize();
    CHECK(gpu::peak_device_bytes() == before);
}

TEST_CASE_TEMPLATE("C1: 48 KB are enough at D = 128; a byte less is refused with both sizes", T, fp16, bf16) {
    const ForwardCase c{"", {1, 1, 1, 70, 90, 128}};
    {
        const SharedLimit exact(49'152);
        CHECK(failure_of<T>(c) == "");
    }
    const SharedLimit too_little(49'151);
    auto call = flash::testing::make_call<T>(c, true);
    const auto before = call;
    std::string message;
    try {
        execute(call);
    } catch (const gpu::DeviceError& error) {
        message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find("49152") != std::string::npos);
    CHECK(message.find("49151") != std::string::npos);
    CHECK(flash::testing::same_bits(call.o.memory, before.o.memory));
    CHECK(flash::testing::same_bits(call.lse, before.lse));
}

// ---------------------------------------------------------------------------------------------------------
// Numbers

namespace {

// Root mean square of a step's error and of the error that rounding O alone would make.
struct RoundingErrors {
    double step = 0, output = 0;
};
template <class T> RoundingErrors rounding_errors(const Shape& s) {
    auto call = flash::testing::make_call<T>({"", s}, true);
    const auto exact = reference_forward(call.host_args());
    execute(call);
    RoundingErrors sum;
    for (int i = 0; i < s.len_q; ++i) {
        for (int d = 0; d < s.head_dim; ++d) {
            const double o = exact.o[static_cast<std::size_t>(i * s.head_dim + d)];
            const double rounded = static_cast<double>(to_float(from_float<T>(static_cast<float>(o))));
            sum.step += std::pow(static_cast<double>(o_of(call, i, d)) - o, 2);
            sum.output += std::pow(rounded - o, 2);
        }
    }
    const double elements = static_cast<double>(s.len_q) * s.head_dim;
    return {std::sqrt(sum.step / elements), std::sqrt(sum.output / elements)};
}

}  // namespace

TEST_CASE(
    "Predict: rounding P and O makes 1.3 times the error of rounding O alone; bf16 errs 8 times as much as "
    "fp16") {
    const Shape s{1, 1, 1, 128, 256, 64};
    const auto fp16_errors = rounding_errors<fp16>(s), bfloat = rounding_errors<bf16>(s);
    CHECK(fp16_errors.step / fp16_errors.output == doctest::Approx(1.3).epsilon(0.05));
    CHECK(bfloat.step / bfloat.output == doctest::Approx(1.3).epsilon(0.05));
    CHECK(bfloat.step / fp16_errors.step ==
          doctest::Approx(8).epsilon(0.05));  // 8 significant bits against 11
}

TEST_CASE("A15: scores of 72,000 stay finite though fp16 ends at 65,504") {
    auto call = flash::testing::make_call<fp16>({"", {1, 1, 1, 20, 33, 80}}, true);
    for (auto* t : {&call.q, &call.k}) set(*t, [](int, int) { return 30.0f; });
    set(call.v, [](int n, int) { return static_cast<float>(n); });
    execute(call);
    for (int i = 0; i < 20; ++i) {
        CHECK(lse_of(call, i) == doctest::Approx(72'000 / std::sqrt(80.0) + std::log(33.0)).epsilon(1e-6));
        CHECK(o_of(call, i, 79) == 16);
    }
}

TEST_CASE("A16: as the keys grow from 128 to 8192 the bf16 error stays within twice the twin's") {
    for (const int len_kv : {128, 1024, 8192}) {
        CHECK(failure_of<bf16>({"", {1, 1, 1, 16, len_kv, 128}}) == "");
        CHECK(failure_of<bf16>(
                  {"", {1, 1, 1, 16, len_kv, 64}, Mask::none(), Storage::kBhnd, Pattern::kIncreasing}) == "");
    }
}

TEST_CASE("a sum of ones in bf16 would stop at 256") {
    CHECK(to_float(from_float<bf16>(255.0f + 1.0f)) == 256);
    CHECK(to_float(from_float<bf16>(256.0f + 1.0f)) == 256);
}

TEST_CASE_TEMPLATE("rows that see no key are zero with L = -inf beside rows that see some", T, fp16, bf16) {
    for (const int diagonal : {-1, -7, -8, -15, -16, -17, -63, -64, -65, -99})
        CHECK(failure_of<T>({"", {1, 1, 1, 100, 70, 16}, Mask::causal(diagonal), Storage::kPadded}) == "");
}

TEST_CASE_TEMPLATE("C3: every thread reaches every barrier, also in warps whose rows do not exist", T, fp16,
                   bf16) {
    for (const int len_q : {1, 16, 17, 33, 65})
        CHECK(failure_of<T>({"", {1, 2, 1, len_q, 70, 64}, Mask::causal(-20), Storage::kPadded}) == "");
}

TEST_CASE_TEMPLATE("attention gives the same bits every time, in whatever order warps run", T, fp16, bf16) {
    const ForwardCase c{"", {1, 2, 1, 100, 130, 40}, Mask::causal(30), Storage::kBnhd};
    CHECK(flash::testing::same_in_every_order<T>(&attention_forward<T>, c, true));
}

// Rows share loads, never numbers: which warp, which half of an accumulator, changes no bit of the result.
TEST_CASE_TEMPLATE("a query alone gives the same bits as among others", T, fp16, bf16) {
    const auto call = flash::testing::make_call<T>({"", {1, 1, 1, 70, 90, 64}, Mask::causal(20)}, true);
    auto all = call, alone = call;
    execute(all);
    for (const int row : {0, 1, 7, 8, 15, 16, 47, 63, 64, 69}) {
        CAPTURE(row);
        const auto one_row = [row](ForwardArgs<T>& args) {
            args.shape.len_q = 1;
            args.q.data += row * args.q.stride_row;
            args.o.data += row * args.o.stride_row;
            args.lse += row;
            args.mask = Mask::causal(20 + row);
        };
        flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(alone, one_row);
        CHECK(lse_of(alone, row) == lse_of(all, row));
        int different = 0;
        for (int d = 0; d < 64; ++d) different += o_of(alone, row, d) != o_of(all, row, d);
        CHECK(different == 0);
    }
}
