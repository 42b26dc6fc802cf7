// Each named intermediate of the backward's derivation (docs/derivations.md, section 7), by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/reference.hpp"
#include "common/testing/backward_case.hpp"
#include "common/testing/backward_rows.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

// Matrices of one head in double precision, written from the derivation's formulas.
struct Matrix {
    int rows, columns;
    std::vector<double> values;
    Matrix(int r, int c)
        : rows(r), columns(c), values(static_cast<std::size_t>(r) * static_cast<std::size_t>(c)) {}
    Matrix(int r, int c, std::vector<double> v) : rows(r), columns(c), values(std::move(v)) {}
    double& operator()(int i, int j) { return values[static_cast<std::size_t>(i * columns + j)]; }
    double operator()(int i, int j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix transposed(const Matrix& a) {
    Matrix t(a.columns, a.rows);
    for (int i = 0; i < a.rows; ++i)
        for (int j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
    return t;
}

Matrix product(const Matrix& a, const Matrix& b, double factor = 1) {
    Matrix c(a.rows, b.columns);
    for (int i = 0; i < a.rows; ++i)
        for (int j = 0; j < b.columns; ++j)
            for (int n = 0; n < a.columns; ++n) c(i, j) += factor * a(i, n) * b(n, j);
    return c;
}

// sum(A o B)
double inner(const Matrix& a, const Matrix& b) {
    double sum = 0;
    for (std::size_t at = 0; at < a.values.size(); ++at) sum += a.values[at] * b.values[at];
    return sum;
}

double row_inner(const Matrix& a, const Matrix& b, int i) {
    double sum = 0;
    for (int j = 0; j < a.columns; ++j) sum += a(i, j) * b(i, j);
    return sum;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t at = 0; at < a.size(); ++at) largest = std::max(largest, std::abs(a[at] - b[at]));
    return largest;
}

// softmax of each row; a row of -inf becomes zero.
Matrix softmax(const Matrix& s) {
    Matrix p = s;
    for (int i = 0; i < s.rows; ++i) {
        std::vector<double> row(s.values.begin() + i * s.columns, s.values.begin() + (i + 1) * s.columns);
        softmax_in_place(row);
        std::copy(row.begin(), row.end(), p.values.begin() + i * s.columns);
    }
    return p;
}

// One head with queries that see no key, some keys and all keys; and everything that the derivation names.
struct Problem {
    static constexpr int kQueries = 7, kKeys = 5, kHeadDim = 6;
    BackwardCall<float> call =
        make_backward_call<float>({{"", {1, 1, 1, kQueries, kKeys, kHeadDim}, Mask::causal(-1)}}, false);
    double scale = static_cast<double>(call.scale);
    Matrix q{kQueries, kHeadDim, dense_elements<double>(call.q)};
    Matrix k{kKeys, kHeadDim, dense_elements<double>(call.k)};
    Matrix v{kKeys, kHeadDim, dense_elements<double>(call.v)};
    Matrix d_o{kQueries, kHeadDim, dense_elements<double>(call.d_o)};
    Matrix s = scores();
    Matrix p = softmax(s);
    Matrix o = product(p, v);
    Matrix dp = product(d_o, transposed(v));
    Matrix ds = score_gradient();
    BackwardResult<double> reference = reference_backward(call.host_args());

    Matrix scores() const {
        Matrix result = product(q, transposed(k), scale);
        for (int i = 0; i < kQueries; ++i)
            for (int j = 0; j < kKeys; ++j)
                if (j >= call.mask.visible_keys(i, kKeys)) result(i, j) = -INFINITY;
        return result;
    }
    double delta(int i) const { return row_inner(d_o, o, i); }
    Matrix score_gradient() const {
        Matrix result(kQueries, kKeys);
        for (int i = 0; i < kQueries; ++i)
            for (int j = 0; j < kKeys; ++j) result(i, j) = p(i, j) * (dp(i, j) - delta(i));
        return result;
    }
    // sum(O o dO) as a function of P, and of S.
    double loss_of_p(const Matrix& any_p) const { return inner(product(any_p, v), d_o); }
    double loss_of_s(const Matrix& any_s) const { return loss_of_p(softmax(any_s)); }
};

// The derivative of f by element (i, j) of x, by central differences.
double derivative(const auto& f, Matrix x, int i, int j) {
    constexpr double kStep = 1e-4;
    const double here = x(i, j);
    x(i, j) = here + kStep;
    const double above = f(x);
    x(i, j) = here - kStep;
    return (above - f(x)) / (2 * kStep);
}

}  // namespace

TEST_CASE("P: exp(S - L) is the softmax, with 0 for hidden keys and in rows that see none") {
    Problem problem;
    expect_gradients(problem.call, 1);
    for (int i = 0; i < Problem::kQueries; ++i) {
        const auto lse = static_cast<double>(problem.call.lse[static_cast<std::size_t>(i)]);
        CHECK((lse == -INFINITY) == (i == 0));
        double sum = 0;
        for (int j = 0; j < Problem::kKeys; ++j) {
            const double p = i == 0 ? 0 : std::exp(problem.s(i, j) - lse);
            CHECK(std::abs(p - problem.p(i, j)) < 1e-6);  // L is fp32
            CHECK((p == 0) == (j >= problem.call.mask.visible_keys(i, Problem::kKeys)));
            sum += problem.p(i, j);
        }
        CHECK(sum == doctest::Approx(i == 0 ? 0 : 1));
    }
}

TEST_CASE("dP = dO V^T is the derivative of the loss by P") {
    const Problem problem;
    const auto loss = [&](const Matrix& p) { return problem.loss_of_p(p); };
    for (int i = 0; i < Problem::kQueries; ++i)
        for (int j = 0; j < Problem::kKeys; ++j)
            CHECK(std::abs(derivative(loss, problem.p, i, j) - problem.dp(i, j)) < 1e-9);
}

TEST_CASE("delta: rowsum(dO o O) equals rowsum(P o dP), a pass over P that is not needed") {
    const Problem problem;
    for (int i = 0; i < Problem::kQueries; ++i)
        CHECK(std::abs(problem.delta(i) - row_inner(problem.p, problem.dp, i)) < 1e-13);
}

TEST_CASE("dS = P o (dP - delta) is the derivative of the loss by S, and its rows sum to 0") {
    const Problem problem;
    const auto loss = [&](const Matrix& s) { return problem.loss_of_s(s); };
    for (int i = 0; i < Problem::kQueries; ++i) {
        double sum = 0;
        for (int j = 0; j < Problem::kKeys; ++j) {
            sum += problem.ds(i, j);
            if (j < problem.call.mask.visible_keys(i, Problem::kKeys))
                CHECK(std::abs(derivative(loss, problem.s, i, j) - problem.ds(i, j)) < 1e-7);
            else
                CHECK(problem.ds(i, j) == 0);
        }
        CHECK(std::abs(sum) < 1e-13);
    }
}

TEST_CASE("dV = P^T dO, dK = scale dS^T Q and dQ = scale dS K are the reference's gradients") {
    const Problem problem;
    const Matrix dv = product(transposed(problem.p), problem.d_o);
    const Matrix dk = product(transposed(problem.ds), problem.q, problem.scale);
    const Matrix dq = product(problem.ds, problem.k, problem.scale);
    CHECK(largest_difference(dv.values, problem.reference.dv) < 1e-13);
    CHECK(largest_difference(dk.values, problem.reference.dk) < 1e-13);
    CHECK(largest_difference(dq.values, problem.reference.dq) < 1e-13);
}

TEST_CASE("the worked example: two keys with P = 1/4 and 3/4") {
    // docs/derivations.md: V = (1, 5), dO = 2, so O = 4, dP = (2, 10), delta = 8, dS = (-3/2, 3/2).
    Matrix p(1, 2, {0.25, 0.75}), v(2, 1, {1, 5}), d_o(1, 1, {2});
    const Matrix o = product(p, v), dp = product(d_o, transposed(v));
    CHECK(o(0, 0) == 4);
    CHECK(dp.values == std::vector<double>{2, 10});
    const double delta = row_inner(d_o, o, 0);
    CHECK(delta == 8);
    CHECK(delta == row_inner(p, dp, 0));
    CHECK(p(0, 0) * (dp(0, 0) - delta) == -1.5);
    CHECK(p(0, 1) * (dp(0, 1) - delta) == 1.5);
    CHECK(product(transposed(p), d_o).values == std::vector<double>{0.5, 1.5});
}
