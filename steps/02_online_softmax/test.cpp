#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/testing/host_buffer.hpp"
#include "common/testing/print_vectors.hpp"
#include "common/testing/random.hpp"
#include "doctest/doctest.h"
#include "softmax.hpp"

using namespace flash::step02;

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float QUIET_NAN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t SEED = 20;

std::vector<float> normal_row(std::size_t n, std::uint64_t seed, float spread = 1) {
    std::vector<float> row(n);
    for (std::size_t i = 0; i < n; ++i) row[i] = spread * flash::testing::random_normal(seed, i);
    return row;
}

State chain_of(const std::vector<float>& row) {
    return chain(row.data(), static_cast<std::int64_t>(row.size()));
}

std::vector<float> softmax(const std::vector<float>& row) {
    flash::testing::HostBuffer<float> x(row.size()), y(row.size());
    x.copy_from_host(row.data());
    std::fill(y.data(), y.data() + row.size(), QUIET_NAN);
    online_softmax(x.data(), y.data(), static_cast<std::int64_t>(row.size()));
    return {y.data(), y.data() + row.size()};
}

double exact_log_sum_exp(const std::vector<float>& row) {
    const double row_max = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(x - row_max);
    return row_max + std::log(sum);
}

bool all_nan(const std::vector<float>& row) {
    return std::all_of(row.begin(), row.end(), [](float y) { return std::isnan(y); });
}

bool same(State a, State b) {
    return a.row_max == b.row_max && a.row_sum == b.row_sum;
}

// Equal maxima, and sums that differ by rounding only.
bool agree(State a, State b, double tolerance = 1e-6) {
    return a.row_max == b.row_max && std::abs(a.row_sum - b.row_sum) <= tolerance * std::abs(b.row_sum);
}

// The row cut into `pieces` chunks of random, uneven length, some of them empty.
std::vector<State> uneven_chunks(const std::vector<float>& row, int pieces, std::uint64_t seed) {
    const auto n = static_cast<std::int64_t>(row.size());
    std::vector<std::int64_t> cuts = {0, n};
    for (int i = 1; i < pieces; ++i)
        cuts.push_back(flash::testing::random_below(seed, static_cast<std::uint64_t>(i), n + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<State> states;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
        states.push_back(chain(row.data() + cuts[i], cuts[i + 1] - cuts[i]));
    return states;
}

template <class T> void shuffle(std::vector<T>& values, std::uint64_t seed) {
    for (std::size_t i = values.size(); i > 1; --i)
        std::swap(values[i - 1], values[static_cast<std::size_t>(
                                     flash::testing::random_below(seed, i, static_cast<std::int64_t>(i)))]);
}

// A score and its row of values per element.
struct Weighted {
    std::vector<float> scores;  // (n)
    std::vector<float> values;  // (n, D)
    std::size_t head_dim;

    RowState state(std::size_t begin, std::size_t end) const {
        RowState row(static_cast<std::int64_t>(head_dim));
        for (std::size_t i = begin; i < end; ++i) update(row, scores[i], values.data() + i * head_dim);
        return row;
    }
    std::vector<double> exact_output() const {
        const double lse = exact_log_sum_exp(scores);
        std::vector<double> o(head_dim);
        for (std::size_t i = 0; i < scores.size(); ++i) {
            for (std::size_t d = 0; d < head_dim; ++d)
                o[d] += std::exp(scores[i] - lse) * values[i * head_dim + d];
        }
        return o;
    }
};

Weighted random_weighted(std::size_t n, std::size_t head_dim, float spread = 3) {
    return {normal_row(n, SEED, spread), normal_row(n * head_dim, SEED + 1), head_dim};
}

std::vector<float> output(const RowState& row) {
    std::vector<float> o(row.acc.size(), QUIET_NAN);
    write_output(row, o.data());
    return o;
}

void check_output(const RowState& row, const std::vector<double>& exact, double tolerance = 2e-6) {
    const auto o = output(row);
    REQUIRE(o.size() == exact.size());
    for (std::size_t d = 0; d < o.size(); ++d) CHECK(!(std::abs(o[d] - exact[d]) > tolerance));
}

}  // namespace

TEST_CASE("Predict: the worked example [2, 1, 5, 3], every intermediate state") {
    const double e = std::exp(1.0);
    State s;
    CHECK(same(s, {-INF, 0}));
    s = update(s, 2);
    CHECK(same(s, {2, 1}));
    s = update(s, 1);
    CHECK(s.row_max == 2);
    CHECK(s.row_sum == doctest::Approx(1 + 1 / e));
    CHECK(s.row_sum == doctest::Approx(1.367879));
    s = update(s, 5);
    CHECK(s.row_max == 5);
    CHECK(s.row_sum == doctest::Approx((1 + 1 / e) * std::exp(-3.0) + 1));
    CHECK(s.row_sum == doctest::Approx(1.068103));
    s = update(s, 3);
    CHECK(s.row_max == 5);
    CHECK(s.row_sum == doctest::Approx(1.203438));
    CHECK(log_sum_exp(s) == doctest::Approx(5.185182));
    CHECK(log_sum_exp(s) == doctest::Approx(exact_log_sum_exp({2, 1, 5, 3})));

    const auto y = softmax({2, 1, 5, 3});
    const std::vector<double> by_hand = {0.041371, 0.015219, 0.830953, 0.112457};
    for (std::size_t i = 0; i < 4; ++i) CHECK(y[i] == doctest::Approx(by_hand[i]).epsilon(2e-6));
}

TEST_CASE("Predict: the two halves of [2, 1, 5, 3] are (2, 1.3679) and (5, 1.1353), merged (5, 1.2034)") {
    const State left = chain_of({2, 1}), right = chain_of({5, 3});
    CHECK(left.row_max == 2);
    CHECK(left.row_sum == doctest::Approx(1.367879));
    CHECK(right.row_max == 5);
    CHECK(right.row_sum == doctest::Approx(1.135335));
    CHECK(agree(merge(left, right), chain_of({2, 1, 5, 3})));
    CHECK(merge(left, right).row_sum == doctest::Approx(1.203438));
}

TEST_CASE("Predict: after n elements row_sum lies between 1 and n, and equal elements reach n") {
    State s;
    const auto row = normal_row(1000, SEED, 50);
    for (std::size_t i = 0; i < row.size(); ++i) {
        s = update(s, row[i]);
        CHECK(s.row_sum >= 1);
        CHECK(s.row_sum <= static_cast<float>(i + 1));
    }
    CHECK(same(chain_of(std::vector<float>(1000, -77.0f)), {-77, 1000}));
}

TEST_CASE("both cases of the update are one formula") {
    const State s{4, 2.5f};
    const State below = update(s, 3);  // the maximum stays: l + exp(x - m)
    CHECK(below.row_max == 4);
    CHECK(below.row_sum == doctest::Approx(2.5 + std::exp(-1.0)));
    const State above = update(s, 6);  // a new maximum: l exp(m - x) + 1
    CHECK(above.row_max == 6);
    CHECK(above.row_sum == doctest::Approx(2.5 * std::exp(-2.0) + 1));
    CHECK(same(update(s, 4), {4, 3.5f}));
}

TEST_CASE("the invariant holds after every element: row_max and row_sum are those of the prefix") {
    const auto row = normal_row(300, SEED, 10);
    State s;
    for (std::size_t i = 0; i < row.size(); ++i) {
        s = update(s, row[i]);
        const std::vector<float> prefix(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        CHECK(s.row_max == *std::max_element(prefix.begin(), prefix.end()));
        double sum = 0;
        for (const float x : prefix) sum += std::exp(static_cast<double>(x) - s.row_max);
        CHECK(s.row_sum == doctest::Approx(sum).epsilon(1e-5));
    }
}

TEST_CASE("the empty state is the identity of merge, on both sides and with itself, bit for bit") {
    for (const State s : {State{}, State{-3, 1.5f}, State{0, 1}, State{1e30f, 7}, State{-1e30f, 2}}) {
        CHECK(same(merge(s, State{}), s));
        CHECK(same(merge(State{}, s), s));
    }
    CHECK(log_sum_exp(State{}) == -INF);
    CHECK(log_sum_exp(merge(State{}, State{})) == -INF);
}

TEST_CASE("an update is a merge with the state (x, 1) of one element") {
    for (const float x : {-5.0f, 0.25f, 3.0f, 300.0f}) {
        CHECK(agree(update(State{1, 4}, x), merge(State{1, 4}, State{x, 1})));
        CHECK(same(update(State{}, x), {x, 1}));
    }
}

TEST_CASE("merge is commutative and associative up to rounding, for maxima in any order") {
    const std::vector<State> states = {{}, {-2, 1}, {0.5f, 3}, {0.5f, 1}, {7, 1.25f}, {90, 2}, {-300, 5}};
    int compared = 0;
    for (const State a : states) {
        for (const State b : states) {
            CHECK(agree(merge(a, b), merge(b, a), 2e-7));
            for (const State c : states) {
                CHECK(agree(merge(merge(a, b), c), merge(a, merge(b, c)), 5e-7));
                ++compared;
            }
        }
    }
    CHECK(compared == 343);
}

TEST_CASE("uneven chunks, empty ones among them, merge to the same state in any order") {
    for (const std::size_t n : {1u, 2u, 10u, 1000u}) {
        const auto row = normal_row(n, n, 8);
        const State whole = chain_of(row);
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
            CAPTURE(n);
            CAPTURE(seed);
            auto chunks = uneven_chunks(row, 9, seed);
            CHECK(chunks.size() == 9);
            shuffle(chunks, seed);
            State forward, backward;
            for (const State chunk : chunks) forward = merge(forward, chunk);
            for (const State chunk : chunks) backward = merge(chunk, backward);
            CHECK(agree(forward, whole, 1e-5));
            CHECK(agree(backward, whole, 1e-5));
        }
    }
}

TEST_CASE("tree and chain agree with each other and with double precision") {
    for (const std::size_t n : {0u, 1u, 255u, 256u, 257u, 1000u, 100000u}) {
        CAPTURE(n);
        const auto row = normal_row(n, n, 2);
        const State as_tree = tree(row.data(), static_cast<std::int64_t>(n)), as_chain = chain_of(row);
        CHECK(agree(as_tree, as_chain, 1e-4));
        if (n > 0) CHECK(log_sum_exp(as_tree) == doctest::Approx(exact_log_sum_exp(row)).epsilon(1e-6));
    }
}

TEST_CASE("on a long row the tree keeps the digits that the chain loses") {
    const std::int64_t n = 10'000'000;
    std::vector<float> row(static_cast<std::size_t>(n), -1.2f);
    row[0] = 0;
    const double sum = 1 + static_cast<double>(n - 1) * std::exp(static_cast<double>(-1.2f));
    CHECK(std::abs(tree(row.data(), n).row_sum - sum) < 1e-5 * sum);
    CHECK(std::abs(chain(row.data(), n).row_sum - sum) > 1e-2 * sum);
}

TEST_CASE("online softmax is softmax, for large, small and shifted rows") {
    for (const float shift : {0.0f, 1000.0f, -1000.0f, 1e6f}) {
        for (const std::size_t n : {1u, 2u, 100u, 513u}) {
            CAPTURE(shift);
            CAPTURE(n);
            auto row = normal_row(n, n, 5);
            for (float& x : row) x += shift;
            const auto y = softmax(row);
            REQUIRE(y.size() == n);
            const double lse = exact_log_sum_exp(row);
            for (std::size_t i = 0; i < n; ++i)
                CHECK(!(std::abs(y[i] - std::exp(row[i] - lse)) > 2e-6 * std::exp(row[i] - lse)));
        }
    }
    CHECK_NOTHROW(online_softmax(nullptr, nullptr, 0));
}

TEST_CASE("online softmax may write over its row") {
    std::vector<float> row = {2, 1, 5, 3};
    const auto y = softmax(row);
    online_softmax(row.data(), row.data(), 4);
    CHECK(row == y);
}

TEST_CASE("elements of -inf leave a state as it is and weigh exactly 0") {
    CHECK(same(update(State{}, -INF), State{}));
    CHECK(same(update(State{3, 2}, -INF), {3, 2}));
    CHECK(same(chain_of({-INF, 4, -INF}), {4, 1}));
    CHECK(softmax({-INF, 1, -INF, 1}) == std::vector<float>{0, 0.5f, 0, 0.5f});
    CHECK(softmax({-INF, -INF}) == std::vector<float>{0, 0});
    CHECK(log_sum_exp(chain_of({-INF, -INF})) == -INF);
}

TEST_CASE("A14: a weight below the smallest normal number is exactly 0, in a row and in every state") {
    CHECK(softmax({0, -87.4f, -90, -1e30f}) == std::vector<float>{1, 0, 0, 0});
    CHECK(softmax({0, -87.3f})[1] == doctest::Approx(std::exp(-87.3)).epsilon(1e-5));
    const float value = 1e30f;  // times exp(-90) it would not be 0
    RowState row(1), far(1);
    update(row, 0, &value);
    row.acc[0] = 0;
    update(row, -90, &value);
    CHECK(row.acc[0] == 0);
    update(far, -90, &value);
    CHECK(merge(row, far).acc[0] == 0);
    update(far, 0, &value);
    CHECK(far.acc[0] == value);
}

TEST_CASE("A9: one NaN or +inf, in any place and any grouping, makes the whole row NaN") {
    for (const float bad : {QUIET_NAN, INF}) {
        for (const float other : {0.0f, -INF, 1e30f}) {
            for (std::size_t place = 0; place < 5; ++place) {
                CAPTURE(bad);
                CAPTURE(other);
                CAPTURE(place);
                std::vector<float> row(5, other);
                row[place] = bad;
                CHECK(all_nan(softmax(row)));
                CHECK(std::isnan(log_sum_exp(chain_of(row))));
                State merged;
                for (const float x : row) merged = merge(chain_of({x}), merged);
                CHECK(std::isnan(log_sum_exp(merged)));
            }
        }
    }
    CHECK(all_nan(softmax({INF, INF})));
}

TEST_CASE("the carried row by hand: scores 2, 1, 5, 3 with values 10, 20, 30, 40 give 30.144964") {
    RowState row(1);
    const std::vector<float> scores = {2, 1, 5, 3}, values = {10, 20, 30, 40};
    const std::vector<double> acc_by_hand = {10, 17.357589, 30.864183, 36.277595};
    for (std::size_t i = 0; i < 4; ++i) {
        update(row, scores[i], &values[i]);
        CHECK(row.acc[0] == doctest::Approx(acc_by_hand[i]));
    }
    CHECK(output(row)[0] == doctest::Approx(30.144964));
    CHECK(output(row)[0] ==
          doctest::Approx(0.041371 * 10 + 0.015219 * 20 + 0.830953 * 30 + 0.112457 * 40).epsilon(1e-5));
}

TEST_CASE("the carried row equals softmax times values, whole or merged from uneven pieces") {
    for (const std::size_t head_dim : {0u, 1u, 3u, 64u}) {
        CAPTURE(head_dim);
        const Weighted w = random_weighted(200, head_dim);
        const auto exact = w.exact_output();
        check_output(w.state(0, 200), exact);
        const RowState a = w.state(0, 13), b = w.state(13, 13), c = w.state(13, 150), d = w.state(150, 200);
        check_output(merge(merge(a, b), merge(c, d)), exact);
        check_output(merge(d, merge(c, merge(b, a))), exact);
        CHECK(agree(merge(merge(a, c), d).state, w.state(0, 200).state, 1e-5));
    }
}

TEST_CASE("the carried row is rescaled when the maximum rises: largest score last, first, and rising") {
    for (const int order : {0, 1, 2}) {
        CAPTURE(order);
        Weighted w = random_weighted(64, 5, 1);
        if (order == 0) w.scores[63] = 40;
        if (order == 1) w.scores[0] = 40;
        if (order == 2) std::sort(w.scores.begin(), w.scores.end());
        check_output(w.state(0, 64), w.exact_output());
    }
}

TEST_CASE("a carried row without a key, or with keys of -inf only, is 0 with L = -inf") {
    RowState row(3);
    CHECK(output(row) == std::vector<float>{0, 0, 0});
    const std::vector<float> value = {1, 2, 3};
    update(row, -INF, value.data());
    CHECK(output(row) == std::vector<float>{0, 0, 0});
    CHECK(log_sum_exp(row.state) == -INF);
    const RowState merged = merge(row, RowState(3));
    CHECK(output(merged) == std::vector<float>{0, 0, 0});
    update(row, -7, value.data());
    CHECK(output(row) == value);
}

TEST_CASE("an element of -inf leaves the carried row as it is, whatever its value holds") {
    const std::vector<float> hidden = {INF, QUIET_NAN}, value = {1, 2};
    RowState row(2);
    update(row, -INF, hidden.data());
    CHECK(output(row) == std::vector<float>{0, 0});
    update(row, 3, value.data());
    update(row, -INF, hidden.data());
    CHECK(output(row) == value);
    CHECK(log_sum_exp(row.state) == 3);
}

TEST_CASE("A9: a NaN or +inf score makes the carried row NaN") {
    const std::vector<float> value = {1, 2};
    for (const float bad : {QUIET_NAN, INF}) {
        RowState row(2), other(2);
        update(row, bad, value.data());
        update(row, 5, value.data());
        update(other, 100, value.data());
        CHECK(all_nan(output(row)));
        CHECK(all_nan(output(merge(row, other))));
        CHECK(all_nan(output(merge(other, row))));
    }
}

TEST_CASE("bad arguments are refused by name and nothing is written") {
    std::vector<float> x(8, 1.0f), y(8, 7.0f);
    const auto refused = [](const std::string& message, const std::function<void()>& call) {
        try {
            call();
            FAIL("accepted: " << message);
        } catch (const std::invalid_argument& error) {
            CHECK(std::string(error.what()).find(message) == 0);
        }
    };
    refused("n is -1", [&] { online_softmax(x.data(), y.data(), -1); });
    refused("n is -3", [&] { chain(x.data(), -3); });
    refused("n is -3", [&] { tree(x.data(), -3); });
    refused("n is 9223372036854775807", [&] { online_softmax(x.data(), y.data(), INT64_MAX); });
    refused("x is null", [&] { online_softmax(nullptr, y.data(), 4); });
    refused("x is null", [&] { tree(nullptr, 1000); });
    refused("y is null", [&] { online_softmax(x.data(), nullptr, 4); });
    refused("y overlaps x", [&] { online_softmax(x.data(), x.data() + 1, 4); });
    refused("y overlaps x", [&] { online_softmax(x.data() + 1, x.data(), 4); });
    const auto odd = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(x.data()) + 2);
    refused("x is not aligned", [&] { online_softmax(odd, y.data(), 1); });
    refused("head_dim is -1", [&] { RowState row(-1); });
    refused("head_dim is 4611686018427387903", [&] { RowState row(INT64_MAX / 2); });
    RowState row(2);
    refused("value is null", [&] { update(row, 0, nullptr); });
    refused("o is null", [&] { write_output(row, nullptr); });
    refused("b has D = 3", [&] { merge(row, RowState(3)); });
    CHECK(same(row.state, State{}));
    CHECK(y == std::vector<float>(8, 7.0f));
    CHECK(x == std::vector<float>(8, 1.0f));
}
