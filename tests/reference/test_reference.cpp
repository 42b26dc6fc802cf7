// What must hold of the reference and its twin, whatever the numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "common/reference.hpp"
#include "common/testing/random.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

// A small backward problem in fp32 whose inputs lie on a grid of 2^-12, so that a step of 2^-12 is exact.
struct Problem {
    Shape shape;
    Mask mask;
    std::vector<float> q, k, v, d_o;

    Problem(const Shape& s, Mask m) : shape(s), mask(m) {
        const auto elements = [&s](int heads, int len) {
            return static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(heads) *
                   static_cast<std::size_t>(len) * static_cast<std::size_t>(s.head_dim);
        };
        q = grid(1, elements(s.heads_q, s.len_q));
        k = grid(2, elements(s.heads_kv, s.len_kv));
        v = grid(3, elements(s.heads_kv, s.len_kv));
        d_o = grid(4, elements(s.heads_q, s.len_q));
    }

    BackwardArgs<float> args() const {
        BackwardArgs<float> a;
        a.shape = shape;
        a.q = dense_bhnd(q.data(), shape.heads_q, shape.len_q, shape.head_dim);
        a.k = dense_bhnd(k.data(), shape.heads_kv, shape.len_kv, shape.head_dim);
        a.v = dense_bhnd(v.data(), shape.heads_kv, shape.len_kv, shape.head_dim);
        a.d_o = dense_bhnd(d_o.data(), shape.heads_q, shape.len_q, shape.head_dim);
        a.mask = mask;
        a.scale = default_scale(shape.head_dim);
        return a;
    }
    // sum(O o dO), whose gradient the backward computes.
    double loss() const {
        const auto o = forward<Exact>(args()).o;
        double sum = 0;
        for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * static_cast<double>(d_o[i]);
        return sum;
    }

  private:
    static std::vector<float> grid(std::uint64_t seed, std::size_t n) {
        std::vector<float> values;
        for (std::size_t i = 0; i < n; ++i)
            values.push_back(std::round(random_normal(seed, i) * 4096.0f) / 4096.0f);
        return values;
    }
};

// Central differences of the loss in every element of x, against its gradient.
void expect_gradient(Problem& problem, std::vector<float>& x, const std::vector<double>& gradient) {
    constexpr float kStep = 0x1p-12f;
    REQUIRE(x.size() == gradient.size());
    double largest_error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float here = x[i];
        x[i] = here + kStep;
        const double above = problem.loss();
        x[i] = here - kStep;
        const double below = problem.loss();
        x[i] = here;
        largest_error = std::max(largest_error, std::abs((above - below) / (2 * 0x1p-12) - gradient[i]));
    }
    CHECK(largest_error < 1e-6);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

}  // namespace

TEST_CASE("the gradients of the reference equal finite differences") {
    const std::vector<Problem> problems = {
        {{1, 1, 1, 5, 7, 4}, Mask::none()},
        {{1, 2, 2, 6, 6, 3}, Mask::causal_top_left()},
        {{2, 4, 2, 3, 8, 5}, Mask::causal(5)},
        {{1, 2, 1, 7, 4, 4}, Mask::causal(-3)},  // rows without a key
    };
    for (Problem problem : problems) {
        const auto gradients = reference_backward(problem.args());
        expect_gradient(problem, problem.q, gradients.dq);
        expect_gradient(problem, problem.k, gradients.dk);
        expect_gradient(problem, problem.v, gradients.dv);
    }
}

TEST_CASE("D7: a query that sees no key has a zero gradient and no effect on dK and dV") {
    // Queries 0 and 1 see nothing; without them the diagonal moves by two.
    const Problem with({1, 1, 1, 6, 4, 4}, Mask::causal(-2));
    Problem without({1, 1, 1, 4, 4, 4}, Mask::causal(0));
    for (auto [from, to] : {std::pair{&with.q, &without.q}, std::pair{&with.d_o, &without.d_o}})
        to->assign(from->begin() + 2 * 4, from->end());
    without.k = with.k;
    without.v = with.v;
    const auto a = reference_backward(with.args()), b = reference_backward(without.args());
    for (int i = 0; i < 2 * 4; ++i) CHECK(a.dq[static_cast<std::size_t>(i)] == 0);
    CHECK(largest_difference({a.dq.begin() + 2 * 4, a.dq.end()}, b.dq) == 0);
    CHECK(largest_difference(a.dk, b.dk) == 0);
    CHECK(largest_difference(a.dv, b.dv) == 0);
}

TEST_CASE("D4: dK and dV of a key head are the sums over its query heads") {
    const Problem grouped({1, 4, 2, 5, 6, 4}, Mask::causal_top_left());
    Problem repeated({1, 4, 4, 5, 6, 4}, Mask::causal_top_left());
    repeated.q = grouped.q;
    repeated.d_o = grouped.d_o;
    const std::size_t head = 6 * 4;
    for (auto [from, to] : {std::pair{&grouped.k, &repeated.k}, std::pair{&grouped.v, &repeated.v}})
        for (std::size_t h = 0; h < 4; ++h)
            std::copy_n(from->begin() + static_cast<std::ptrdiff_t>(h / 2 * head), head,
                        to->begin() + static_cast<std::ptrdiff_t>(h * head));
    const auto a = reference_backward(grouped.args()), b = reference_backward(repeated.args());
    CHECK(largest_difference(a.dq, b.dq) == 0);
    for (std::size_t i = 0; i < a.dk.size(); ++i) {
        const std::size_t first = i / head * 2 * head + i % head;
        CHECK(a.dk[i] == doctest::Approx(b.dk[first] + b.dk[first + head]).epsilon(1e-13));
        CHECK(a.dv[i] == doctest::Approx(b.dv[first] + b.dv[first + head]).epsilon(1e-13));
    }
}

TEST_CASE("B9: zero channels change nothing as long as the scale stays") {
    const Problem narrow({1, 1, 1, 4, 6, 5}, Mask::none());
    Problem wide({1, 1, 1, 4, 6, 8}, Mask::none());
    for (auto [from, to] :
         {std::pair{&narrow.q, &wide.q}, std::pair{&narrow.k, &wide.k}, std::pair{&narrow.v, &wide.v}})
        for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] = i % 8 < 5 ? (*from)[i / 8 * 5 + i % 8] : 0.0f;
    auto wide_args = wide.args();
    wide_args.scale = narrow.args().scale;
    const auto a = forward<Exact>(narrow.args()), b = forward<Exact>(wide_args);
    CHECK(a.lse == b.lse);
    for (std::size_t i = 0; i < b.o.size(); ++i) CHECK(b.o[i] == (i % 8 < 5 ? a.o[i / 8 * 5 + i % 8] : 0.0));
}

TEST_CASE("the twin of fp32 agrees with the reference to fp32's precision, gradients included") {
    const Problem problem({2, 4, 2, 9, 11, 6}, Mask::causal(3));
    const auto exact = reference_backward(problem.args());
    const auto twin = twin_backward(problem.args());
    CHECK(largest_difference(exact.dq, {twin.dq.begin(), twin.dq.end()}) < 1e-5);
    CHECK(largest_difference(exact.dk, {twin.dk.begin(), twin.dk.end()}) < 1e-5);
    CHECK(largest_difference(exact.dv, {twin.dv.begin(), twin.dv.end()}) < 1e-5);
    CHECK(largest_difference(exact.dv, {twin.dv.begin(), twin.dv.end()}) > 0);
}

TEST_CASE_TEMPLATE("softmax_in_place: NaN and +inf make the row NaN, -inf is a masked key", Real, float,
                   double) {
    constexpr Real kInf = std::numeric_limits<Real>::infinity();
    std::vector<Real> row = {0, kInf};
    CHECK(std::isnan(softmax_in_place(row)));
    CHECK(std::isnan(row[0]));
    row = {std::numeric_limits<Real>::quiet_NaN()};
    CHECK(std::isnan(softmax_in_place(row)));
    row = {-kInf, 0, 0};
    CHECK(softmax_in_place(row) == doctest::Approx(std::log(2.0)));
    CHECK(row == std::vector<Real>{0, Real(0.5), Real(0.5)});
    row = {-kInf, -kInf};
    CHECK(softmax_in_place(row) == -kInf);
    CHECK(row == std::vector<Real>{0, 0});
    row = {};
    CHECK(softmax_in_place(row) == -kInf);
}
