#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attention.hpp"
#include "attention_simd.hpp"
#include "common/bench/memory.hpp"
#include "common/reference.hpp"
#include "common/testing/conformance.hpp"
#include "common/testing/host_buffer.hpp"
#include "common/testing/random.hpp"
#include "common/testing/real_model.hpp"
#include "doctest/doctest.h"
#include "loop_order.hpp"

using namespace flash;
using namespace flash::step03;
using flash::testing::Capabilities;
using flash::testing::HostBuffer;

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QUIET_NAN = std::numeric_limits<float>::quiet_NaN();

void simd_forward(const ForwardArgs<float>& args) {
    attention_simd(args);
}
// Tile sizes that divide nothing, so that every tile is ragged somewhere.
void fa1_odd_tiles(const ForwardArgs<float>& args) {
    fa1_forward(args, 5, 7);
}
void fa2_odd_tiles(const ForwardArgs<float>& args) {
    fa2_forward(args, 5, 7);
}

struct Variant {
    const char* name;
    void (*forward)(const ForwardArgs<float>&);
};
constexpr Variant VARIANTS[] = {{"attention_full", attention_full},
                                {"attention_forward", attention_forward},
                                {"attention_simd", simd_forward},
                                {"fa1_forward", fa1_odd_tiles},
                                {"fa2_forward", fa2_odd_tiles}};

Capabilities capabilities(const char* name) {
    return {.step = name, .max_head_dim = 256};
}

// One call with dense storage; each tensor ends at a page that may not be touched; outputs start as NaN.
struct Problem {
    Shape shape;
    Mask mask = Mask::none();
    float scale = default_scale(std::max(shape.head_dim, 1));
    HostBuffer<float> q{count(shape.heads_q, shape.len_q, shape.head_dim)};
    HostBuffer<float> k{count(shape.heads_kv, shape.len_kv, shape.head_dim)};
    HostBuffer<float> v{count(shape.heads_kv, shape.len_kv, shape.head_dim)};
    HostBuffer<float> o{count(shape.heads_q, shape.len_q, shape.head_dim)};
    HostBuffer<float> lse{count(shape.heads_q, shape.len_q, 1)};

    std::size_t count(int heads, int len, int width) const {
        return static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(heads) *
               static_cast<std::size_t>(len) * static_cast<std::size_t>(width);
    }

    ForwardArgs<float> args() {
        const Shape& s = shape;
        return {s,
                dense_bhnd<const float>(q.data(), s.heads_q, s.len_q, s.head_dim),
                dense_bhnd<const float>(k.data(), s.heads_kv, s.len_kv, s.head_dim),
                dense_bhnd<const float>(v.data(), s.heads_kv, s.len_kv, s.head_dim),
                dense_bhnd<float>(o.data(), s.heads_q, s.len_q, s.head_dim),
                lse.data(),
                mask,
                scale};
    }

    void run(void (*forward)(const ForwardArgs<float>&)) {
        std::fill(o.data(), o.data() + o.size(), QUIET_NAN);
        std::fill(lse.data(), lse.data() + lse.size(), QUIET_NAN);
        forward(args());
    }
};

void set(HostBuffer<float>& buffer, const std::vector<float>& values) {
    REQUIRE(buffer.size() == values.size());
    buffer.copy_from_host(values.data());
}
void set_all(HostBuffer<float>& buffer, float value) {
    std::fill(buffer.data(), buffer.data() + buffer.size(), value);
}
void set_normal(HostBuffer<float>& buffer, std::uint64_t seed) {
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer.data()[i] = flash::testing::random_normal(seed, i);
}

Problem random_problem(const Shape& shape) {
    Problem p{.shape = shape};
    set_normal(p.q, 1);
    set_normal(p.k, 2);
    set_normal(p.v, 3);
    return p;
}

bool all_equal(const HostBuffer<float>& buffer, float value) {
    return std::all_of(buffer.data(), buffer.data() + buffer.size(), [=](float x) { return x == value; });
}
bool all_nan(const float* x, std::size_t n) {
    return std::all_of(x, x + n, [](float value) { return std::isnan(value); });
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

// The closed formulas of docs/derivations.md, per head: the lengths, the head dimension and the tile counts.
Traffic fa1_formula(std::int64_t Nq, std::int64_t Nk, std::int64_t D, std::int64_t Tc) {
    Traffic t;
    t.q_loads = Tc * Nq * D;
    t.kv_loads = 2 * Nk * D;
    t.o_loads = Tc * Nq * D;
    t.o_stores = (Tc + 1) * Nq * D;
    t.state_loads = (Tc + 1) * 2 * Nq;
    t.state_stores = (Tc + 1) * 2 * Nq + Nq;
    t.divisions = Tc * Nq * D;
    return t;
}
Traffic fa2_formula(std::int64_t Nq, std::int64_t Nk, std::int64_t D, std::int64_t Tr) {
    Traffic t;
    t.q_loads = Nq * D;
    t.kv_loads = Tr * 2 * Nk * D;
    t.o_stores = Nq * D;
    t.state_stores = Nq;
    t.divisions = Nq * D;
    return t;
}

void check_traffic(const Traffic& counted, const Traffic& formula, std::int64_t heads) {
    CHECK(counted.q_loads == heads * formula.q_loads);
    CHECK(counted.kv_loads == heads * formula.kv_loads);
    CHECK(counted.o_loads == heads * formula.o_loads);
    CHECK(counted.o_stores == heads * formula.o_stores);
    CHECK(counted.state_loads == heads * formula.state_loads);
    CHECK(counted.state_stores == heads * formula.state_stores);
    CHECK(counted.divisions == heads * formula.divisions);
    CHECK(counted.elements() == heads * formula.elements());
}

std::int64_t extra_bytes(Problem& p, void (*forward)(const ForwardArgs<float>&)) {
    return bench::peak_extra_host_bytes([&] { forward(p.args()); });
}

// A single query row of D = 1 whose scores are the keys.
Problem row_of_scores(const std::vector<float>& scores, const std::vector<float>& values) {
    Problem p{.shape = {1, 1, 1, 1, static_cast<int>(scores.size()), 1}, .scale = 1};
    set_all(p.q, 1);
    set(p.k, scores);
    set(p.v, values);
    return p;
}

}  // namespace

TEST_CASE("every variant fulfils the contract") {
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        flash::testing::run_forward_conformance<float, HostBuffer>(capabilities(variant.name),
                                                                   variant.forward);
    }
}

TEST_CASE("every variant is right on random shapes") {
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        flash::testing::run_forward_fuzz<float, HostBuffer>(capabilities(variant.name), variant.forward);
    }
}

TEST_CASE("every variant refuses bad arguments by name before anything is written") {
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        flash::testing::run_bad_arguments<float, HostBuffer>(capabilities(variant.name), variant.forward);
    }
}

TEST_CASE("attention_full avoids the faults others have met") {
    flash::testing::run_public_faults<float, HostBuffer>(capabilities("attention_full"), attention_full);
}
TEST_CASE("attention_forward avoids the faults others have met") {
    flash::testing::run_public_faults<float, HostBuffer>(capabilities("attention_forward"),
                                                         attention_forward);
}
TEST_CASE("attention_simd avoids the faults others have met") {
    flash::testing::run_public_faults<float, HostBuffer>(capabilities("attention_simd"), simd_forward);
}
TEST_CASE("fa1_forward avoids the faults others have met") {
    flash::testing::run_public_faults<float, HostBuffer>(capabilities("fa1_forward"), fa1_odd_tiles);
}
TEST_CASE("fa2_forward avoids the faults others have met") {
    flash::testing::run_public_faults<float, HostBuffer>(capabilities("fa2_forward"), fa2_odd_tiles);
}

// ---------------------------------------------------------------------------------------------------------
// The lesson's numbers

TEST_CASE("the worked example: scores 2, 1, 5, 3 with values 10, 20, 30, 40 give O = 30.145 and L = 5.1852") {
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        Problem first_tile = row_of_scores({2, 1}, {10, 20});
        first_tile.run(variant.forward);
        CHECK(first_tile.o.data()[0] == doctest::Approx(17.357589 / 1.367879));
        CHECK(first_tile.lse.data()[0] == doctest::Approx(2 + std::log(1.367879)));
        Problem whole = row_of_scores({2, 1, 5, 3}, {10, 20, 30, 40});
        whole.run(variant.forward);
        CHECK(whole.o.data()[0] == doctest::Approx(30.144964));
        CHECK(whole.lse.data()[0] == doctest::Approx(5.185182));
    }
    Problem tiles_of_two = row_of_scores({2, 1, 5, 3}, {10, 20, 30, 40});
    fa2_forward(tiles_of_two.args(), 1, 2);
    CHECK(tiles_of_two.o.data()[0] == doctest::Approx(30.144964));
    CHECK(tiles_of_two.lse.data()[0] == doctest::Approx(5.185182));
}

TEST_CASE("L gives back any probability: P = exp(S - L), and the row's probabilities sum to 1") {
    Problem p = row_of_scores({2, 1, 5, 3}, {0, 0, 1, 0});
    p.run(attention_forward);
    CHECK(p.o.data()[0] == doctest::Approx(std::exp(5 - p.lse.data()[0])));
    double sum = 0;
    for (const float score : {2.0f, 1.0f, 5.0f, 3.0f}) sum += std::exp(score - p.lse.data()[0]);
    CHECK(sum == doctest::Approx(1));
}

TEST_CASE("L of two halves of the keys merges their outputs into the output of all keys") {
    const int head_dim = 16;
    for (const Variant& variant : VARIANTS) {
        for (const int first_keys : {0, 1, 40, 100}) {
            CAPTURE(std::string(variant.name));
            CAPTURE(first_keys);
            Problem whole = random_problem({1, 1, 1, 5, 100, head_dim});
            whole.run(variant.forward);
            Problem first{.shape = {1, 1, 1, 5, first_keys, head_dim}},
                second{.shape = {1, 1, 1, 5, 100 - first_keys, head_dim}};
            for (Problem* part : {&first, &second}) {
                const std::size_t skip = part == &first ? 0 : first.k.size();
                part->q.copy_from_host(whole.q.data());
                part->k.copy_from_host(whole.k.data() + skip);
                part->v.copy_from_host(whole.v.data() + skip);
                part->run(variant.forward);
            }
            int compared = 0;
            for (std::size_t i = 0; i < whole.o.size(); ++i, ++compared) {
                const double L_1 = first.lse.data()[i / head_dim], L_2 = second.lse.data()[i / head_dim];
                const double larger = std::max(L_1, L_2);
                const double L = larger + std::log(std::exp(L_1 - larger) + std::exp(L_2 - larger));
                const double o =
                    std::exp(L_1 - L) * first.o.data()[i] + std::exp(L_2 - L) * second.o.data()[i];
                CHECK(!(std::abs(L - whole.lse.data()[i / head_dim]) > 1e-6));
                CHECK(!(std::abs(o - whole.o.data()[i]) > 2e-6));
            }
            CHECK(compared == 5 * head_dim);
        }
    }
}

TEST_CASE(
    "Predict: twice the tokens take 4 times the extra memory over the matrix, and as much as before in "
    "tiles") {
    Problem small = random_problem({1, 1, 1, 256, 256, 64}), large = random_problem({1, 1, 1, 512, 512, 64});
    CHECK(extra_bytes(small, attention_full) == 4 * 256 * 256);
    CHECK(extra_bytes(large, attention_full) == 4 * 512 * 512);
    CHECK(full_extra_bytes(large.shape) == 4 * full_extra_bytes(small.shape));
    Problem one_tile = random_problem({1, 1, 1, 64, 256, 64}),
            more_keys = random_problem({1, 1, 1, 64, 512, 64});
    CHECK(extra_bytes(one_tile, attention_forward) == extra_bytes(more_keys, attention_forward));
}

TEST_CASE(
    "Predict: one query tile against 65,536 keys takes 33,280 bytes extra; the matrix would take 17 GB") {
    Problem p{.shape = {1, 1, 1, BLOCK_Q, 65536, 64}};
    set_all(p.q, 0);  // equal scores: O is the mean of V, L is ln 65536
    set_normal(p.k, 2);
    set_all(p.v, 0.5f);
    CHECK(tiled_extra_bytes(64) == 33280);
    CHECK(extra_bytes(p, attention_forward) == 33280);
    CHECK(all_equal(p.o, 0.5f));
    CHECK(p.lse.data()[63] == doctest::Approx(std::log(65536.0)));

    CHECK(full_extra_bytes({1, 1, 1, 65536, 65536, 64}) == 17'179'869'184);
    Problem whole{.shape = {1, 1, 1, 65536, 65536, 1}};
    std::string message;
    const auto full = [&] {
        try {
            attention_full(whole.args());
        } catch (const std::invalid_argument& error) {
            message = error.what();
        }
    };
    const std::int64_t extra = bench::peak_extra_host_bytes(full);
    CHECK(message.find("17179869184 bytes for the score matrix") != std::string::npos);
    CHECK(extra < 1000);  // the message
}

TEST_CASE("the tiled version holds its formula of extra memory per thread at any D and any number of tiles") {
    for (const int head_dim : {0, 1, 64, 80, 256}) {
        CAPTURE(head_dim);
        Problem one = random_problem({1, 1, 1, 10, 300, head_dim});
        CHECK(extra_bytes(one, attention_forward) == tiled_extra_bytes(head_dim));
        CHECK(tiled_extra_bytes(head_dim) == 4 * (BLOCK_Q * BLOCK_KV + BLOCK_Q * head_dim + 2 * BLOCK_Q));
        Problem many = random_problem({2, 3, 1, 130, 10, head_dim});
        const std::int64_t extra = extra_bytes(many, attention_forward);
        CHECK(extra % tiled_extra_bytes(head_dim) == 0);
        CHECK(extra / tiled_extra_bytes(head_dim) <= 2 * 3 * 3);  // never more workspaces than tiles
    }
}

TEST_CASE("a query to which all keys look alike has L = ln of their number and the mean of V") {
    for (const int len_kv : {1, 2, 63, 64, 65, 1000}) {
        Problem p = random_problem({1, 1, 1, 3, len_kv, 8});
        set_all(p.q, 0);
        double mean = 0;
        for (int j = 0; j < len_kv; ++j) mean += p.v.data()[j * 8] / static_cast<double>(len_kv);
        p.run(attention_forward);
        CHECK(p.lse.data()[2] == doctest::Approx(std::log(len_kv)).epsilon(1e-6));
        CHECK(p.o.data()[16] == doctest::Approx(mean).epsilon(1e-4));
    }
}

TEST_CASE("the same call gives the same bits, however the threads take the tiles") {
    Problem p = random_problem({2, 4, 2, 200, 150, 32});
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        p.run(variant.forward);
        const std::vector<float> o(p.o.data(), p.o.data() + p.o.size());
        const std::vector<float> lse(p.lse.data(), p.lse.data() + p.lse.size());
        for (int repeat = 0; repeat < 5; ++repeat) {
            p.run(variant.forward);
            CHECK(std::equal(o.begin(), o.end(), p.o.data()));
            CHECK(std::equal(lse.begin(), lse.end(), p.lse.data()));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------
// Loop order

TEST_CASE(
    "both loop orders move exactly the elements their formulas say, ragged tiles and several heads "
    "included") {
    int compared = 0;
    for (const Shape s : {Shape{1, 1, 1, 128, 128, 16}, Shape{1, 1, 1, 100, 37, 5}, Shape{2, 4, 2, 9, 50, 8},
                          Shape{1, 1, 1, 1, 1, 1}, Shape{1, 2, 1, 3, 0, 4}}) {
        for (const auto& [block_q, block_kv] : {std::pair{64, 64}, std::pair{16, 32}, std::pair{7, 3}}) {
            Problem p = random_problem(s);
            const std::int64_t heads = std::int64_t{s.batch} * s.heads_q;
            check_traffic(fa1_forward(p.args(), block_q, block_kv),
                          fa1_formula(s.len_q, s.len_kv, s.head_dim, ceil_div(s.len_kv, block_kv)), heads);
            check_traffic(fa2_forward(p.args(), block_q, block_kv),
                          fa2_formula(s.len_q, s.len_kv, s.head_dim, ceil_div(s.len_q, block_q)), heads);
            ++compared;
        }
    }
    CHECK(compared == 15);
    Problem empty = random_problem({1, 1, 1, 0, 9, 4});
    CHECK(fa1_forward(empty.args(), 4, 4).elements() == 0);
    CHECK(fa2_forward(empty.args(), 4, 4).elements() == 0);
}

TEST_CASE(
    "Predict: at N = 1024, D = 64 and tiles of 64 x 64, FA2's order reads K and V 16 times, and FA1's moves "
    "1.53 times the elements of FA2's") {
    Problem p = random_problem({1, 1, 1, 1024, 1024, 64});
    const Traffic fa1 = fa1_forward(p.args(), 64, 64), fa2 = fa2_forward(p.args(), 64, 64);
    CHECK(fa1.elements() == 3'412'992);
    CHECK(fa2.elements() == 2'229'248);
    CHECK(static_cast<double>(fa1.elements()) / static_cast<double>(fa2.elements()) ==
          doctest::Approx(1.53).epsilon(0.002));
    CHECK(fa1.divisions == 16 * fa2.divisions);
    CHECK(fa2.kv_loads == 2'097'152);                         // 2 N^2 D / BLOCK_Q,
    CHECK(fa2.kv_loads == 16 * std::int64_t{2} * 1024 * 64);  // which is K and V 16 times
}

TEST_CASE("FA1's order and FA2's give the same output") {
    Problem p = random_problem({1, 2, 1, 70, 90, 16});
    fa1_forward(p.args(), 16, 16);
    const std::vector<float> o(p.o.data(), p.o.data() + p.o.size());
    p.run(fa2_odd_tiles);
    for (std::size_t i = 0; i < o.size(); ++i) CHECK(!(std::abs(o[i] - p.o.data()[i]) > 2e-6));
}

TEST_CASE("tile sizes outside 1 to 1024 are refused") {
    Problem p = random_problem({1, 1, 1, 4, 4, 4});
    for (auto* order : {fa1_forward, fa2_forward}) {
        CHECK_THROWS_WITH_AS(order(p.args(), 0, 4), "block_q is 0; a tile has 1 to 1024 rows",
                             std::invalid_argument);
        CHECK_THROWS_WITH_AS(order(p.args(), 4, -1), "block_kv is -1; a tile has 1 to 1024 rows",
                             std::invalid_argument);
        CHECK_THROWS_AS(order(p.args(), 1025, 4), std::invalid_argument);
    }
}

TEST_CASE("the functions that state extra memory refuse impossible sizes and do not overflow") {
    CHECK_THROWS_AS(tiled_extra_bytes(-1), std::invalid_argument);
    CHECK_THROWS_AS(tiled_extra_bytes(257), std::invalid_argument);
    CHECK_THROWS_AS(full_extra_bytes({1, 1, 1, -1, 4, 4}), std::invalid_argument);
    const int most = (1 << 30) - 32768;  // the most tokens a call may have, as queries and keys
    CHECK(full_extra_bytes({1, 1, 1, most, most, 1}) == std::int64_t{4} * most * most);
    CHECK_THROWS_AS(full_extra_bytes({1, 1, 1, most, most + 1, 1}), std::invalid_argument);
    Problem just_too_large{.shape = {1, 1, 1, 32768, 32769, 1}};
    CHECK(full_extra_bytes(just_too_large.shape) == MAX_SCORE_BYTES + 4 * 32768);
    CHECK_THROWS_AS(attention_full(just_too_large.args()), std::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------
// What tiles can get wrong

TEST_CASE(
    "A9: a NaN or +inf score makes its row NaN, never zeros, wherever the key is; other rows stay right") {
    for (const Variant& variant : VARIANTS) {
        for (const float bad : {QUIET_NAN, INF}) {
            for (const int key : {0, 63, 64, 99}) {
                CAPTURE(std::string(variant.name));
                CAPTURE(bad);
                CAPTURE(key);
                Problem p{.shape = {1, 1, 1, 3, 100, 2}};
                set(p.q, {1, 0, 0, 1, -INF, 0});  // row 2: every finite score is -inf
                set_all(p.k, 1);
                set_normal(p.v, 3);
                p.k.data()[key * 2] = bad;
                p.run(variant.forward);
                CHECK(all_nan(p.o.data(), 2));
                CHECK(std::isnan(p.lse.data()[0]));
                CHECK(std::isnan(p.lse.data()[1]));  // 0 * bad is NaN too
            }
        }
        Problem masked = random_problem({1, 1, 1, 2, 70, 2});
        set(masked.q, {1, 0, -INF, -INF});
        set_all(masked.k, 1);
        masked.run(variant.forward);
        CHECK(std::isfinite(masked.o.data()[0]));
        CHECK(masked.o.data()[2] == 0);  // scores of -inf are masked keys
        CHECK(masked.lse.data()[1] == -INF);
    }
}

TEST_CASE(
    "A13: a first tile of -inf scores before real scores of -2e6 leaves finite results and weights of 0") {
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        std::vector<float> scores(130, -INF), values(130, 1000);
        scores[128] = scores[129] = -2e6f;
        values[128] = 1;
        values[129] = 3;
        Problem p = row_of_scores(scores, values);
        p.run(variant.forward);
        CHECK(p.o.data()[0] == 2);
        CHECK(p.lse.data()[0] == doctest::Approx(-2e6));
    }
}

TEST_CASE("a scale of 3e38 or 1e-38 gives the softmax of the scaled scores, whatever their size without it") {
    struct Extreme {
        float key, scale, o, lse;
    };
    // Scaled scores +-3 and +-2.5 with values +-1: O = tanh of them, L = ln(2 cosh of them).
    for (const Extreme& e :
         {Extreme{1e-38f, 3e38f, 0.9950548f, 3.0024757f}, Extreme{2.5e38f, 1e-38f, 0.9866143f, 2.5067153f}}) {
        CAPTURE(e.scale);
        Problem p{.shape = {1, 1, 1, 1, 2, 8}, .scale = e.scale};
        set(p.q, {1, 0, 0, 0, 0, 0, 0, 0});
        set(p.k, {e.key, 0, 0, 0, 0, 0, 0, 0, -e.key, 0, 0, 0, 0, 0, 0, 0});
        set(p.v, {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1});
        const auto check = [&] {
            CHECK(p.o.data()[7] == doctest::Approx(e.o).epsilon(1e-6));
            CHECK(p.lse.data()[0] == doctest::Approx(e.lse).epsilon(1e-6));
        };
        for (const Variant& variant : VARIANTS) {
            CAPTURE(std::string(variant.name));
            p.run(variant.forward);
            check();
        }
        for (const std::string_view set : simd_instruction_sets()) {
            CAPTURE(set);
            attention_simd(p.args(), set);
            check();
        }
    }
}

TEST_CASE("A9: a score that overflows when it is scaled is infinite: NaN above, a masked key below") {
    for (const Variant& variant : VARIANTS) {
        for (const float scale : {1.9f, 1e30f}) {
            CAPTURE(std::string(variant.name));
            CAPTURE(scale);
            Problem p = row_of_scores({1, -3e38f, 3e38f}, {1, 2, 3});
            p.scale = scale;
            p.run(variant.forward);
            CHECK(std::isnan(p.o.data()[0]));
            CHECK(std::isnan(p.lse.data()[0]));
            Problem below = row_of_scores({-3e38f, -3.1e38f}, {1, 2});
            below.scale = scale;
            below.run(variant.forward);
            CHECK(below.o.data()[0] == 0);
            CHECK(below.lse.data()[0] == -INF);
        }
    }
}

TEST_CASE("null pointers of empty tensors are not moved, whatever their strides") {
    // Seen by UndefinedBehaviorSanitizer only: an offset from null is undefined even when nothing is read.
    for (const Variant& variant : VARIANTS) {
        CAPTURE(std::string(variant.name));
        std::vector<float> lse(2 * 200, QUIET_NAN), o(2 * 200, QUIET_NAN), q(2 * 200, 1);
        ForwardArgs<float> no_keys;
        no_keys.shape = {1, 2, 2, 200, 0, 1};
        no_keys.scale = 1;
        no_keys.q = {q.data(), 400, 200, 1};
        no_keys.o = {o.data(), 400, 200, 1};
        no_keys.k = no_keys.v = {nullptr, 400, 200, 1};
        no_keys.lse = lse.data();
        variant.forward(no_keys);
        CHECK(o == std::vector<float>(400, 0.0f));
        CHECK(lse == std::vector<float>(400, -INF));
        ForwardArgs<float> no_dim;
        no_dim.shape = {1, 2, 2, 200, 3, 0};
        no_dim.scale = 1;
        no_dim.q = no_dim.k = no_dim.v = {nullptr, 400, 200, 1};
        no_dim.o = {nullptr, 400, 200, 1};
        no_dim.lse = lse.data();
        variant.forward(no_dim);
        for (const float l : lse) CHECK(l == doctest::Approx(std::log(3.0)));
    }
}
