#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
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
using namespace flash::step05;
using flash::gpu::DeviceBuffer;
using flash::testing::CallEdit;
using flash::testing::ForwardCall;
using flash::testing::ForwardCase;
using flash::testing::HostTensor;
using flash::testing::Pattern;
using flash::testing::SharedLimit;
using flash::testing::Storage;

namespace {

flash::testing::Capabilities capabilities(const char* step = "step 05") {
    return {.step = step, .max_work = flash::testing::device_max_work()};
}

// The two versions of the step and their tiles, as attention.cu chooses them.
template <class T> struct Version {
    void (*forward)(const ForwardArgs<T>&);
    int side_to_128, side_to_256;  // BLOCK_Q = BLOCK_KV for head dimensions up to 128 and beyond
    int side(int head_dim) const { return head_dim <= 128 ? side_to_128 : side_to_256; }
};
template <class T> const Version<T> kDefault{&attention_forward<T>, 64, 32};
template <class T> const Version<T> kSmallTiles{&attention_forward_small_tiles<T>, 16, 16};

// What is wrong with a version's answer to a case; empty when nothing is. `edit` changes the inputs first.
template <class T>
std::string failure_of(const ForwardCase& c, const Version<T>& version = kDefault<T>,
                       const CallEdit<T>& edit = {}) {
    return flash::testing::forward_failure<T>(version.forward, c, false, edit);
}

// The emulator's counters of one call, or a SKIP line where nothing is counted.
template <class T>
bool count(simt::Counters& counters, const ForwardCase& c, const Version<T>& version = kDefault<T>) {
    return flash::testing::count_into(counters, [&] { CHECK(failure_of<T>(c, version) == ""); });
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}
std::int64_t heads_of(const Shape& s) {
    return std::int64_t{s.batch} * s.heads_q;
}

// Bytes loaded and stored, each byte once per block: Q, then K and V once for every query tile; O and L.
std::int64_t loads_per_block(const Shape& s, int block_q, std::int64_t element_bytes) {
    return heads_of(s) * element_bytes * s.head_dim *
           (s.len_q + ceil_div(s.len_q, block_q) * 2 * std::int64_t{s.len_kv});
}
std::int64_t stores(const Shape& s, std::int64_t element_bytes) {
    return heads_of(s) * s.len_q * (element_bytes * s.head_dim + 4);
}

}  // namespace

TEST_CASE_TEMPLATE("attention fulfils the contract", T, float, fp16, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention in 16 x 16 tiles fulfils the contract", T, float, bf16) {
    flash::testing::run_forward_conformance<T, DeviceBuffer>(capabilities("step 05 in 16 x 16 tiles"),
                                                             &attention_forward_small_tiles<T>);
}
TEST_CASE_TEMPLATE("attention is right on random shapes", T, float, fp16, bf16) {
    flash::testing::run_forward_fuzz<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}
TEST_CASE_TEMPLATE("attention refuses bad arguments and writes nothing", T, float, fp16, bf16) {
    flash::testing::run_bad_arguments<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
    flash::testing::run_bad_arguments<T, DeviceBuffer>(capabilities(), &attention_forward_small_tiles<T>);
}
TEST_CASE_TEMPLATE("attention is free of faults others have met", T, float, fp16, bf16) {
    flash::testing::run_public_faults<T, DeviceBuffer>(capabilities(), &attention_forward<T>);
}

TEST_CASE_TEMPLATE("attention is right on a real model and at sizes with several tiles", T, float, fp16,
                   bf16) {
    const auto none = Mask::none(), top_left = Mask::causal_top_left();
    CHECK(failure_of<T>({"", {1, 1, 1, 134, 134, 32}, none, Storage::kBhnd, Pattern::kRealModel}) == "");
    CHECK(failure_of<T>({"", {1, 2, 1, 200, 330, 64}, Mask::causal(130), Storage::kMixed}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 200, 96, 128}, none, Storage::kPadded, Pattern::kLargestLast}) == "");
    CHECK(failure_of<T>({"", {1, 1, 1, 70, 100, 256}, top_left, Storage::kBhnd, Pattern::kIncreasing}) == "");
}

// ---------------------------------------------------------------------------------------------------------
// Ragged tiles

TEST_CASE_TEMPLATE("lengths one off a tile's edge, and primes, are right in every tile size", T, float,
                   bf16) {
    for (const auto& version : {kDefault<T>, kSmallTiles<T>}) {
        for (const int head_dim : {16, 128, 256}) {
            const int side = version.side(head_dim);
            struct Lengths {
                int q, kv;
            };
            for (const Lengths n : {Lengths{side - 1, side + 1}, Lengths{side, side},
                                    Lengths{side + 1, side - 1}, Lengths{1, 2 * side + 1}, Lengths{37, 53}}) {
                const Shape s{1, 1, 1, n.q, n.kv, head_dim};
                const auto largest_last = Pattern::kLargestLast;
                CHECK(failure_of<T>({"", s, Mask::none(), Storage::kPadded, largest_last}, version) == "");
                CHECK(failure_of<T>({"", s, Mask::causal_bottom_right(s)}, version) == "");
            }
        }
    }
}

TEST_CASE_TEMPLATE("head dimensions one off an instantiated size are right", T, float, fp16, bf16) {
    for (const auto& version : {kDefault<T>, kSmallTiles<T>})
        for (const int head_dim : {1, 2, 15, 17, 63, 64, 65, 127, 128, 129, 255, 256})
            CHECK(failure_of<T>({"", {1, 1, 1, 5, 20, head_dim}, Mask::none(), Storage::kPadded}, version) ==
                  "");
}

// A phantom key has score 0. Beside real scores of 0 it would count in full; beside very negative ones it
// would be all that counts.
TEST_CASE_TEMPLATE("Predict: 33 keys of score 0 in a tile of 64 give L = ln 33, not ln 64", T, float, fp16,
                   bf16) {
    for (const float score : {0.0f, -60.0f}) {
        auto call = flash::testing::make_call<T>({"", {1, 1, 1, 20, 33, 64}}, false);
        call.scale = 1;
        set(call.q, [](int, int d) { return d == 0 ? 1.0f : 0.0f; });
        set(call.k, [score](int, int d) { return d == 0 ? score : 0.0f; });
        set(call.v, [](int, int) { return 1.0f; });
        flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(call, {});
        for (int i = 0; i < 20; ++i) {
            const auto lse = static_cast<double>(call.lse[static_cast<std::size_t>(call.kLseGuard + i)]);
            CHECK(lse == doctest::Approx(static_cast<double>(score) + std::log(33.0)).epsilon(1e-6));
            CHECK(to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, i, 0))]) == 1);
        }
    }
}

TEST_CASE("the README's worked example: a phantom key would turn O = 18.453 into 6.571") {
    const double scores[] = {-2, -1, -3}, values[] = {10, 20, 30};
    auto call = flash::testing::make_call<float>({"", {1, 1, 1, 1, 3, 8}}, false);
    call.scale = 1;
    set(call.q, [](int, int d) { return d == 0 ? 1.0f : 0.0f; });
    set(call.k, [&](int n, int d) { return d == 0 ? static_cast<float>(scores[n]) : 0.0f; });
    set(call.v, [&](int n, int) { return static_cast<float>(values[n]); });
    flash::testing::execute_on<float, DeviceBuffer> (&attention_forward<float>)(call, {});
    const auto o = static_cast<double>(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, 0, 0))]);
    const auto lse = static_cast<double>(call.lse[static_cast<std::size_t>(call.kLseGuard)]);
    CHECK(o == doctest::Approx(18.453).epsilon(1e-5));
    CHECK(lse == doctest::Approx(-0.592394).epsilon(1e-6));

    double sum = 0, weighted = 0;
    for (int j = 0; j < 3; ++j) {
        sum += std::exp(scores[j]);
        weighted += std::exp(scores[j]) * values[j];
    }
    CHECK(weighted / sum == doctest::Approx(o));
    CHECK(weighted / (sum + 1) == doctest::Approx(6.571).epsilon(1e-4));
    CHECK(std::log(sum + 1) == doctest::Approx(0.440).epsilon(1e-3));
}

TEST_CASE("Predict: B = 2, H = 3, N = 100 takes 12 blocks; 36 rows of a head's second tile exist") {
    const Shape s{2, 3, 3, 100, 100, 64};
    CHECK(ceil_div(100, 64) * heads_of(s) == 12);
    CHECK(100 - 64 == 36);
    simt::Counters counters;
    if (!count<float>(counters, {"", s})) return;
    CHECK(counters.launches == 1);
    CHECK(counters.barriers == 12 * 2 * 4);  // four in each of two key tiles
    CHECK(counters.global_store_bytes_issued == 6 * 100 * (64 * 4 + 4));
}

// Without keys, so that the emulator gets through as many blocks: L must be -inf and O zero in every head.
TEST_CASE("65,792 heads are more than a grid's second dimension has room for") {
    CHECK(failure_of<fp16>({"", {257, 256, 256, 1, 0, 8}}) == "");
}

// ---------------------------------------------------------------------------------------------------------
// Traffic

TEST_CASE("Predict: at N = 256, D = 64, fp32, tiles of 16 move 3.4 times the bytes of tiles of 64") {
    const Shape s{1, 1, 1, 256, 256, 64};
    CHECK(loads_per_block(s, 64, 4) + stores(s, 4) == 656'384);
    CHECK(loads_per_block(s, 16, 4) + stores(s, 4) == 2'229'248);
    simt::Counters large, small;
    if (!count<float>(large, {"", s})) return;
    count<float>(small, {"", s}, kSmallTiles<float>);
    CHECK(large.global_load_bytes_distinct_per_block + large.global_store_bytes_distinct_per_block ==
          656'384);
    CHECK(small.global_load_bytes_distinct_per_block + small.global_store_bytes_distinct_per_block ==
          2'229'248);
    CHECK(2'229'248.0 / 656'384 == doctest::Approx(3.4).epsilon(0.01));
}

TEST_CASE_TEMPLATE("a head moves 2 N D + 2 N^2 D / BLOCK_Q elements and 4 N bytes, causal or not", T, float,
                   fp16, bf16) {
    const auto bytes = static_cast<std::int64_t>(sizeof(T));
    for (const auto& version : {kDefault<T>, kSmallTiles<T>}) {
        for (const Shape& s :
             {Shape{1, 2, 1, 128, 128, 64}, Shape{2, 2, 1, 70, 45, 40}, Shape{1, 1, 1, 33, 40, 200}}) {
            for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
                CAPTURE(flash::testing::describe(s));
                simt::Counters counters;
                if (!count<T>(counters, {"", s, mask}, version)) return;
                const std::int64_t loads = loads_per_block(s, version.side(s.head_dim), bytes);
                CHECK(counters.global_load_bytes_distinct_per_block == static_cast<std::uint64_t>(loads));
                // No block asks for a byte twice.
                CHECK(counters.global_load_bytes_issued == static_cast<std::uint64_t>(loads));
                const std::int64_t tensors =
                    bytes * s.batch * s.head_dim *
                    (std::int64_t{s.heads_q} * s.len_q + 2 * std::int64_t{s.heads_kv} * s.len_kv);
                CHECK(counters.global_load_bytes_distinct_per_launch == static_cast<std::uint64_t>(tensors));
                CHECK(counters.global_store_bytes_issued == static_cast<std::uint64_t>(stores(s, bytes)));
                CHECK(counters.global_store_bytes_distinct_per_launch ==
                      static_cast<std::uint64_t>(stores(s, bytes)));
                const std::int64_t side = version.side(s.head_dim);
                CHECK(counters.barriers ==
                      static_cast<std::uint64_t>(4 * heads_of(s) * ceil_div(s.len_q, side) *
                                                 ceil_div(s.len_kv, side)));
            }
        }
    }
}

TEST_CASE_TEMPLATE("loads are coalesced, and storing P is the one access that meets in a bank", T, float,
                   fp16, bf16) {
    if (!flash::testing::counts_are_exact()) return;
    const auto bytes = static_cast<std::uint64_t>(sizeof(T));
    for (const auto& version : {kDefault<T>, kSmallTiles<T>}) {
        // Ragged on both axes, two query heads to a key head.
        for (const Shape& s : {Shape{1, 2, 1, 100, 70, 64}, Shape{1, 1, 1, 40, 50, 256}}) {
            CAPTURE(flash::testing::describe(s));
            simt::Counters counters;
            if (!count<T>(counters, {"", s, Mask::causal_top_left()}, version)) return;
            // 32 neighbouring elements a request: every byte of every sector is used.
            CHECK(counters.global_load_sectors == counters.global_load_bytes_issued / 32);
            CHECK(counters.global_load_requests == counters.global_load_bytes_issued / (32 * bytes));
            // A warp stores 16 neighbouring columns of two rows of O at a time; L is 4 bytes from one thread
            // of each row, and the two rows of a warp are neighbours.
            const auto rows = static_cast<std::uint64_t>(heads_of(s) * s.len_q);
            const auto head_dim = static_cast<std::uint64_t>(s.head_dim);
            CHECK(counters.global_store_sectors == rows * head_dim * bytes / 32 + rows / 2);
            const auto side = static_cast<std::uint64_t>(version.side(s.head_dim));
            const auto pairs =
                static_cast<std::uint64_t>(heads_of(s) * ceil_div(s.len_q, version.side(s.head_dim)) *
                                           ceil_div(s.len_kv, version.side(s.head_dim)));
            CHECK(counters.shared_bank_conflicts == pairs * side * side / 32);
            // One exponential a score, and one for the rescale in each of the 16 threads of a row.
            CHECK(counters.exp2 == pairs * side * (side + 16));
        }
    }
}

TEST_CASE("the README's traffic by hand, and its operations per byte: 2 BLOCK_Q / s for long sequences") {
    const Shape s{1, 1, 1, 1 << 20, 1 << 20, 64};
    const double flop = 4.0 * s.len_q * s.len_kv * s.head_dim;
    const auto per_byte = [&](int block_q, int element_bytes) {
        return flop /
               static_cast<double>(loads_per_block(s, block_q, element_bytes) + stores(s, element_bytes));
    };
    CHECK(per_byte(16, 4) == doctest::Approx(8).epsilon(0.001));
    CHECK(per_byte(64, 4) == doctest::Approx(32).epsilon(0.001));
    CHECK(per_byte(64, 2) == doctest::Approx(64).epsilon(0.001));
    CHECK(loads_per_block({1, 1, 1, 4, 4, 2}, 2, 4) + stores({1, 1, 1, 4, 4, 2}, 4) == 208);
}

TEST_CASE(
    "Predict: tiles of 16 load 1.625 numbers from shared memory for a multiply-add, tiles of 64 half one") {
    const Shape s{1, 1, 1, 64, 64, 64};
    const double multiply_adds = 2.0 * s.len_q * s.len_kv * s.head_dim;
    simt::Counters large, small;
    if (!count<float>(large, {"", s})) return;
    count<float>(small, {"", s}, kSmallTiles<float>);
    CHECK(static_cast<double>(small.shared_load_bytes) / 4 / multiply_adds == 1.625);
    CHECK(static_cast<double>(large.shared_load_bytes) / 4 / multiply_adds == 0.5);
    CHECK(large.barriers == 4);
    CHECK(small.barriers == 4 * 16);
}

// ---------------------------------------------------------------------------------------------------------
// Memory

TEST_CASE_TEMPLATE("Predict: nothing is allocated: beside the caller's tensors there is L, 4 bytes a query",
                   T, float, fp16, bf16) {
    for (const int len : {64, 128}) {
        const auto call = flash::testing::make_call<T>({"", {1, 1, 1, len, len, 64}}, false);
        DeviceBuffer<T> q(call.q.memory.size()), k(call.k.memory.size()), v(call.v.memory.size());
        DeviceBuffer<T> o(call.o.memory.size());
        DeviceBuffer<float> lse(call.lse.size());
        q.copy_from_host(call.q.memory.data());
        k.copy_from_host(call.k.memory.data());
        v.copy_from_host(call.v.memory.data());
        gpu::reset_peak_device_bytes();
        const std::size_t before = gpu::device_bytes_in_use();
        for (const auto& version : {kDefault<T>, kSmallTiles<T>})
            version.forward(call.args(q.data(), k.data(), v.data(), o.data(), lse.data()));
        gpu::synchronize();
        CHECK(gpu::peak_device_bytes() == before);
    }
}

TEST_CASE_TEMPLATE("C1: the tiles fit into 99 KB; a byte less than they need is refused with both sizes", T,
                   float, bf16) {
    struct Budget {
        int head_dim;
        std::size_t bytes;
    };
    for (const Budget need : {Budget{64, 49'920}, Budget{128, 82'688}, Budget{256, 70'016}}) {
        CHECK(need.bytes <= 99 * 1024);
        const ForwardCase c{"", {1, 1, 1, 40, 70, need.head_dim}};
        {
            const SharedLimit exact(need.bytes);
            CHECK(failure_of<T>(c) == "");
        }
        const SharedLimit too_little(need.bytes - 1);
        auto call = flash::testing::make_call<T>(c, false);
        const auto before = call;
        std::string message;
        try {
            flash::testing::execute_on<T, DeviceBuffer> (&attention_forward<T>)(call, {});
        } catch (const gpu::DeviceError& error) {
            message = error.what();
        }
        CAPTURE(message);
        CHECK(message.find(std::to_string(need.bytes)) != std::string::npos);
        CHECK(message.find(std::to_string(need.bytes - 1)) != std::string::npos);
        CHECK(flash::testing::same_bits(call.o.memory, before.o.memory));
        CHECK(flash::testing::same_bits(call.lse, before.lse));
    }
}

// ---------------------------------------------------------------------------------------------------------
// Numbers

TEST_CASE("A15: scores of 72,000 stay finite though fp16 ends at 65,504") {
    auto call = flash::testing::make_call<fp16>({"", {1, 1, 1, 20, 33, 80}}, false);
    for (auto* t : {&call.q, &call.k}) set(*t, [](int, int) { return 30.0f; });
    set(call.v, [](int n, int) { return static_cast<float>(n); });
    flash::testing::execute_on<fp16, DeviceBuffer> (&attention_forward<fp16>)(call, {});
    for (int i = 0; i < 20; ++i) {
        const auto lse = static_cast<double>(call.lse[static_cast<std::size_t>(call.kLseGuard + i)]);
        CHECK(lse == doctest::Approx(72'000 / std::sqrt(80.0) + std::log(33.0)).epsilon(1e-6));
        CHECK(to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, i, 0))]) == 16);
    }
}

TEST_CASE("A16: as the keys grow from 128 to 4096 the bf16 error stays within twice the twin's") {
    for (const int len_kv : {128, 1024, 4096}) {
        CHECK(failure_of<bf16>({"", {1, 1, 1, 8, len_kv, 128}}) == "");
        CHECK(failure_of<bf16>(
                  {"", {1, 1, 1, 8, len_kv, 64}, Mask::none(), Storage::kBhnd, Pattern::kIncreasing}) == "");
    }
}

// Normal values hide it: their sums stay near 0, and so do the errors of rounding them.
TEST_CASE("A16: the sums of 4096 keys with values of one sign are kept in fp32") {
    const CallEdit<bf16> positive = [](ForwardCall<bf16>& call) {
        set(call.v, [](int, int) { return 1.0f; });
    };
    CHECK(failure_of<bf16>({"", {1, 1, 1, 8, 4096, 64}}, kDefault<bf16>, positive) == "");
    CHECK(failure_of<bf16>({"", {1, 1, 1, 8, 4096, 64}}, kSmallTiles<bf16>, positive) == "");
}

// Scores 0 and -1; the value of the first key is minus what exp(-1) is rounded to.
TEST_CASE_TEMPLATE("P is rounded to the input type before the second product: rounded weights cancel", T,
                   fp16, bf16) {
    const float rounded = to_float(from_float<T>(std::exp(-1.0f)));
    for (const auto& version : {kDefault<T>, kSmallTiles<T>}) {
        auto call = flash::testing::make_call<T>({"", {1, 1, 1, 1, 2, 8}}, false);
        call.scale = 1;
        set(call.q, [](int, int d) { return d == 0 ? 1.0f : 0.0f; });
        set(call.k, [](int n, int d) { return d == 0 ? static_cast<float>(-n) : 0.0f; });
        set(call.v, [rounded](int n, int) { return n == 0 ? -rounded : 1.0f; });
        flash::testing::execute_on<T, DeviceBuffer>(version.forward)(call, {});
        const float o = to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, 0, 0))]);
        CHECK(o == 0);
    }
}

TEST_CASE_TEMPLATE("rows that see no key are zero with L = -inf beside rows that see some", T, float, bf16) {
    for (const auto& version : {kDefault<T>, kSmallTiles<T>})
        for (const int diagonal : {-1, -15, -16, -17, -63, -64, -65, -99})
            CHECK(failure_of<T>({"", {1, 1, 1, 100, 70, 16}, Mask::causal(diagonal), Storage::kPadded},
                                version) == "");
}

TEST_CASE_TEMPLATE("attention gives the same bits every time, in whatever order warps run", T, float, fp16,
                   bf16) {
    const ForwardCase c{"", {1, 2, 1, 100, 130, 40}, Mask::causal(30), Storage::kBnhd};
    for (const auto& version : {kDefault<T>, kSmallTiles<T>})
        CHECK(flash::testing::same_in_every_order<T>(version.forward, c, false));
}

// Rows share loads, never numbers: which tile a query is in, and where, changes no bit of its result.
TEST_CASE_TEMPLATE("a query alone gives the same bits as among others", T, float, bf16) {
    const Mask mask = Mask::causal(20);
    const auto call = flash::testing::make_call<T>({"", {1, 1, 1, 70, 90, 64}, mask}, false);
    for (const auto& version : {kDefault<T>, kSmallTiles<T>}) {
        const auto execute = flash::testing::execute_on<T, DeviceBuffer>(version.forward);
        auto all = call, alone = call;
        execute(all, {});
        for (const int row : {0, 1, 15, 16, 47, 63, 64, 69}) {
            CAPTURE(row);
            execute(alone, [row](ForwardArgs<T>& args) {
                args.shape.len_q = 1;
                args.q.data += row * args.q.stride_row;
                args.o.data += row * args.o.stride_row;
                args.lse += row;
                args.mask = Mask::causal(20 + row);
            });
            const auto at = static_cast<std::size_t>(call.kLseGuard + row);
            CHECK(flash::testing::bits_of(alone.lse[at]) == flash::testing::bits_of(all.lse[at]));
            int different = 0;
            for (int d = 0; d < 64; ++d) {
                const auto i = static_cast<std::size_t>(call.o.index(0, 0, row, d));
                different +=
                    flash::testing::bits_of(alone.o.memory[i]) != flash::testing::bits_of(all.o.memory[i]);
            }
            CHECK(different == 0);
        }
    }
}
