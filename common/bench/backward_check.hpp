// What the gradients of a bench's call should be: of a few heads and a sample of their rows, so that a call
// of any size is checked in seconds. O and L are those of the call.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "common/testing/backward_case.hpp"
#include "common/testing/backward_rows.hpp"
#include "common/testing/random.hpp"

namespace flash::bench {

inline constexpr std::int64_t kComparedHeads = 4;  // of keys, each with the query heads that read it
inline constexpr std::int64_t kComparedRows = 96;  // of each gradient

// Numbers below n: the first, the last and a seeded choice between; all where there are no more than `most`.
inline std::vector<std::int64_t> sample(std::int64_t n, std::int64_t most, std::uint64_t seed) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(std::min(n, most)));
    std::iota(all.begin(), all.end(), 0);
    if (n <= most) return all;
    std::set<std::int64_t> chosen = {0, n - 1};
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < most; ++i)
        chosen.insert(testing::random_below(seed, i, n));
    return {chosen.begin(), chosen.end()};
}

// Heads first_from .. of batch entry b_from, to heads 0 .. of batch entry b_to; both dense.
template <class T>
void copy_heads(const testing::HostTensor<T>& from, int b_from, int first_from, testing::HostTensor<T>& to,
                int b_to) {
    const std::int64_t elements = std::int64_t{to.heads} * to.len * to.head_dim;
    if (elements == 0) return;
    std::copy_n(from.memory.begin() + from.index(b_from, first_from, 0, 0), elements,
                to.memory.begin() + to.index(b_to, 0, 0, 0));
}

// The same call with some of its heads alone, as batch entries with one key head: no gradient depends on the
// other heads. Storage is dense (B, H, N, D).
template <class T>
testing::BackwardCall<T> some_heads(const testing::BackwardCall<T>& all, std::uint64_t seed) {
    const Shape& s = all.shape;
    const int group = s.heads_q / s.heads_kv;
    const auto heads = sample(std::int64_t{s.batch} * s.heads_kv, kComparedHeads, seed);
    const Shape shape{static_cast<int>(heads.size()), group, 1, s.len_q, s.len_kv, s.head_dim};
    auto some = testing::make_backward_call<T>(
        {{"", shape, all.mask, testing::Storage::kBhnd, testing::Pattern::kZeros, seed, all.scale}}, true);
    for (int b = 0; b < shape.batch; ++b) {
        const auto head = heads[static_cast<std::size_t>(b)];
        const int from_b = static_cast<int>(head / s.heads_kv), head_kv = static_cast<int>(head % s.heads_kv);
        copy_heads(all.q, from_b, head_kv * group, some.q, b);
        copy_heads(all.o, from_b, head_kv * group, some.o, b);
        copy_heads(all.d_o, from_b, head_kv * group, some.d_o, b);
        copy_heads(all.dq, from_b, head_kv * group, some.dq, b);
        copy_heads(all.k, from_b, head_kv, some.k, b);
        copy_heads(all.v, from_b, head_kv, some.v, b);
        copy_heads(all.dk, from_b, head_kv, some.dk, b);
        copy_heads(all.dv, from_b, head_kv, some.dv, b);
        std::copy_n(all.lse.begin() + (std::int64_t{from_b} * s.heads_q + head_kv * group) * s.len_q,
                    std::int64_t{group} * s.len_q, some.lse.begin() + std::int64_t{b} * group * s.len_q);
    }
    return some;
}

// A sample of the gradients that belong to a call, in double precision and as an honest backward in the
// step's precision has them, both from the call's O and L.
template <class T>
testing::ExpectedGradients gradients_of(const testing::BackwardCall<T>& call, std::uint64_t seed) {
    using testing::dense_elements;
    const Shape& s = call.shape;
    const testing::BackwardRows<Exact> exact(
        {s, call.mask, call.scale, dense_elements<double>(call.q), dense_elements<double>(call.k),
         dense_elements<double>(call.v), dense_elements<double>(call.d_o)},
        dense_elements<double>(call.o), call.lse);
    const testing::BackwardRows<InStepPrecision<T>> twin(
        {s, call.mask, call.scale, dense_elements<float>(call.q), dense_elements<float>(call.k),
         dense_elements<float>(call.v), dense_elements<float>(call.d_o)},
        dense_elements<float>(call.o), call.lse);
    testing::ExpectedGradients expected;
    const auto append = [](std::vector<double>& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
    };
    expected.dq.rows = sample(std::int64_t{s.batch} * s.heads_q * s.len_q, kComparedRows, seed);
    for (const std::int64_t row : expected.dq.rows) {
        const auto gradient = exact.query_gradient(row);
        append(expected.dq.reference, gradient.dq);
        append(expected.dq.magnitude, gradient.dq_magnitude);
        append(expected.dq.twin, twin.query_gradient(row).dq);
    }
    expected.dk.rows = sample(std::int64_t{s.batch} * s.heads_kv * s.len_kv, kComparedRows, seed + 1);
    expected.dv.rows = expected.dk.rows;
    for (const std::int64_t row : expected.dk.rows) {
        const auto gradient = exact.key_gradient(row);
        const auto twin_gradient = twin.key_gradient(row);
        append(expected.dk.reference, gradient.dk);
        append(expected.dk.magnitude, gradient.dk_magnitude);
        append(expected.dk.twin, twin_gradient.dk);
        append(expected.dv.reference, gradient.dv);
        append(expected.dv.magnitude, gradient.dv_magnitude);
        append(expected.dv.twin, twin_gradient.dv);
    }
    for (auto* rows : {&expected.dq, &expected.dk, &expected.dv})
        rows->unspecified.assign(rows->rows.size(), false);
    for (const float lse : call.lse) {
        if (!std::isfinite(lse)) continue;
        expected.max_score = std::max(expected.max_score, std::abs(double{lse}));
        expected.pairs += s.len_kv;
    }
    expected.score_reach =
        static_cast<double>(call.scale) * testing::largest_norm(call.q) * testing::largest_norm(call.k);
    return expected;
}

}  // namespace flash::bench
