#include "common/testing/forward_case.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/reference.hpp"
#include "common/testing/random.hpp"

namespace flash::testing {
namespace {

constexpr std::int64_t kFullReferenceWork = 1 << 24;  // beyond it a sample of query rows is compared
constexpr std::int64_t kSampledRows = 96;

struct Row {
    int b, h, i;
};

Row row_at(const Shape& s, std::int64_t linear) {
    const std::int64_t i = linear % s.len_q;
    const std::int64_t h = linear / s.len_q % s.heads_q;
    const std::int64_t b = linear / s.len_q / s.heads_q;
    return {static_cast<int>(b), static_cast<int>(h), static_cast<int>(i)};
}

// All query rows, or the first, the last and a seeded choice in between.
std::vector<std::int64_t> rows_to_compare(const Shape& s, std::uint64_t seed) {
    const std::int64_t rows = static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q;
    std::set<std::int64_t> chosen;
    if (work_of(s) <= kFullReferenceWork || rows <= kSampledRows) {
        for (std::int64_t r = 0; r < rows; ++r) chosen.insert(chosen.end(), r);
    } else {
        chosen = {0, rows - 1};
        for (std::uint64_t n = 0; chosen.size() < kSampledRows; ++n)
            chosen.insert(random_below(seed, n, rows));
    }
    return {chosen.begin(), chosen.end()};
}

// O and L of the compared rows three ways, as doubles, and the sizes that the tolerance depends on.
struct Rows {
    std::vector<std::int64_t> chosen;
    std::vector<double> out_o, reference_o, twin_o;  // (rows, D)
    std::vector<double> out_lse, reference_lse, twin_lse;
    double max_score = 0;    // max |S| over visible finite scores
    double score_reach = 0;  // max over rows of scale |q| |k|: what the rounding of a score is relative to
};

template <class T> Rows compute_rows(ForwardCall<T>& call, std::uint64_t seed) {
    const Shape& s = call.shape;
    const auto args = call.host_args();
    Rows rows;
    rows.chosen = rows_to_compare(s, seed);
    for (const std::int64_t linear : rows.chosen) {
        const auto [b, h, i] = row_at(s, linear);
        const auto scores = scores_of_row<double>(args, b, h, i);
        for (const double x : scores)
            if (std::isfinite(x)) rows.max_score = std::max(rows.max_score, std::abs(x));
        const auto reference = forward_row<Exact>(args, b, h, scores);
        const auto twin = forward_row<InStepPrecision<T>>(args, b, h, scores_of_row<float>(args, b, h, i));
        rows.reference_o.insert(rows.reference_o.end(), reference.o.begin(), reference.o.end());
        rows.twin_o.insert(rows.twin_o.end(), twin.o.begin(), twin.o.end());
        rows.reference_lse.push_back(reference.lse);
        rows.twin_lse.push_back(static_cast<double>(twin.lse));
        for (int d = 0; d < s.head_dim; ++d)
            rows.out_o.push_back(to_float(call.o.memory[static_cast<std::size_t>(call.o.index(b, h, i, d))]));
        rows.out_lse.push_back(
            static_cast<double>(call.lse[static_cast<std::size_t>(ForwardCall<T>::kLseGuard + linear)]));
    }
    rows.score_reach = static_cast<double>(call.scale) * largest_norm(call.q) * largest_norm(call.k);
    return rows;
}

Gate gate_of_lse(const Rows& rows, const Shape& s) {
    const Format fp32 = format_of<float>();
    const double size = largest_finite(rows.reference_lse);
    Gate gate;
    gate.floor = kFloorUlps * fp32.ulp(size) + 4 * kFp32Roundoff * rows.max_score;
    gate.twin_bound = score_error_bound(rows.score_reach, rows.max_score, s.head_dim) + 2 * fp32.ulp(size) +
                      4 * kFp32Roundoff * (std::sqrt(s.len_kv + 1.0) + 1);
    return gate;
}

// `reference`: the compared elements of O; max_v: the largest |V| that they are made of.
template <class T>
Gate gate_of_output(const Rows& rows, const Shape& s, std::span<const double> reference, double max_v) {
    const Format format = format_of<T>();
    const double size = largest_finite(reference);
    Gate gate;
    gate.floor = kFloorUlps * format.ulp(size) + 4 * kFp32Roundoff * rows.max_score * max_v;
    // A handful of elements says little about the twin's typical error: allow one rounding of P besides.
    if (reference.size() < 64) gate.floor += format.unit_roundoff() * max_v;
    const double p_error =
        2 * (format.unit_roundoff() + score_error_bound(rows.score_reach, rows.max_score, s.head_dim)) +
        8 * kFp32Roundoff * std::sqrt(s.len_kv + 1.0) + s.len_kv * format.ulp(0) / 2;
    gate.twin_bound = format.ulp(size) + std::min(2.0, p_error) * max_v;
    return gate;
}

std::string where(const Rows& rows, const Shape& s, std::int64_t element, int width, const char* tensor) {
    const auto [b, h, i] = row_at(s, rows.chosen[static_cast<std::size_t>(element / width)]);
    return std::string(tensor) + "[b=" + std::to_string(b) + ", h=" + std::to_string(h) +
           ", i=" + std::to_string(i) +
           (width > 1 ? ", d=" + std::to_string(element % width) : std::string()) + "]";
}

// The elements of channel d of a (rows, D) matrix.
std::vector<double> channel_of(const std::vector<double>& matrix, int d, int head_dim) {
    std::vector<double> channel;
    for (std::size_t i = static_cast<std::size_t>(d); i < matrix.size();
         i += static_cast<std::size_t>(head_dim))
        channel.push_back(matrix[i]);
    return channel;
}

template <class T>
void compare_output(Judgement& judgement, const Rows& rows, const ForwardCall<T>& call, bool per_channel) {
    const Shape& s = call.shape;
    if (!per_channel) {
        const Compared values{rows.out_o, rows.reference_o, rows.twin_o};
        const auto verdict =
            compare(values, gate_of_output<T>(rows, s, rows.reference_o, largest_element(call.v)));
        absorb(judgement, verdict, values,
               verdict.first_wrong < 0 ? "" : where(rows, s, verdict.first_wrong, s.head_dim, "O"));
        return;
    }
    // A large channel must not hide garbage in a small one.
    for (int d = 0; d < s.head_dim; ++d) {
        const auto out = channel_of(rows.out_o, d, s.head_dim);
        const auto reference = channel_of(rows.reference_o, d, s.head_dim);
        const auto twin = channel_of(rows.twin_o, d, s.head_dim);
        const Compared values{out, reference, twin};
        const auto verdict =
            compare(values, gate_of_output<T>(rows, s, reference, largest_element(call.v, d)));
        absorb(judgement, verdict, values,
               verdict.first_wrong < 0
                   ? ""
                   : where(rows, s, verdict.first_wrong * s.head_dim + d, s.head_dim, "O"));
    }
}

// All of O and L is written, and nothing around them.
template <class T> std::string check_written(const ForwardCall<T>& call) {
    const std::string failure = check_written(call.o, "O");
    if (!failure.empty()) return failure;
    const auto guard = static_cast<std::size_t>(ForwardCall<T>::kLseGuard);
    for (std::size_t at = 0; at < call.lse.size(); ++at) {
        const bool is_inside = at >= guard && at + guard < call.lse.size();
        const bool untouched = bits_of(call.lse[at]) == bits_of(canary<float>());
        const std::string place = std::to_string(static_cast<std::int64_t>(at - guard));
        if (is_inside && untouched) return "L[" + place + "] was never written";
        if (!is_inside && !untouched) return "the step wrote outside L, at its element " + place;
    }
    return "";
}

}  // namespace

std::int64_t work_of(const Shape& s) {
    return static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q * s.len_kv * std::max(s.head_dim, 1);
}

std::string describe(const Shape& s) {
    return "B=" + std::to_string(s.batch) + " Hq=" + std::to_string(s.heads_q) +
           " Hkv=" + std::to_string(s.heads_kv) + " Nq=" + std::to_string(s.len_q) +
           " Nk=" + std::to_string(s.len_kv) + " D=" + std::to_string(s.head_dim);
}

std::string describe(const Mask& mask) {
    return mask.is_causal ? "causal, diagonal " + std::to_string(mask.diagonal) : std::string("no mask");
}

std::string describe(const ForwardCase& c, const char* dtype) {
    return c.name + " | " + dtype + " | " + describe(c.shape) + " | " + describe(c.mask) + " | " +
           name(c.storage) + " | " + name(c.pattern) + " | seed " + std::to_string(c.seed) +
           (c.scale == 0 ? "" : " | scale " + number(static_cast<double>(c.scale)));
}

template <class T> ForwardCall<T> make_call(const ForwardCase& c, bool aligned) {
    const Shape& s = c.shape;
    ForwardCall<T> call;
    call.shape = s;
    call.mask = c.mask;
    call.scale = c.scale != 0 ? c.scale : s.head_dim == 0 ? 1.0f : default_scale(s.head_dim);
    call.q = make_tensor<T>(c.storage, Role::kQ, s.batch, s.heads_q, s.len_q, s.head_dim, aligned);
    call.k = make_tensor<T>(c.storage, Role::kK, s.batch, s.heads_kv, s.len_kv, s.head_dim, aligned);
    call.v = make_tensor<T>(c.storage, Role::kV, s.batch, s.heads_kv, s.len_kv, s.head_dim, aligned);
    call.o = make_tensor<T>(c.storage, Role::kO, s.batch, s.heads_q, s.len_q, s.head_dim, aligned);
    fill(call.q, c.pattern, Role::kQ, c.seed);
    fill(call.k, c.pattern, Role::kK, c.seed);
    fill(call.v, c.pattern, Role::kV, c.seed);
    const std::int64_t rows = static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q;
    call.lse.assign(static_cast<std::size_t>(rows + 2 * ForwardCall<T>::kLseGuard), canary<float>());
    return call;
}

template <class T>
Judgement judge(const ForwardCall<T>& before, ForwardCall<T>& after, Pattern pattern, std::uint64_t seed) {
    Judgement judgement;
    if (!same_bits(before.q.memory, after.q.memory)) judgement.failure = "the step changed Q";
    if (!same_bits(before.k.memory, after.k.memory)) judgement.failure = "the step changed K";
    if (!same_bits(before.v.memory, after.v.memory)) judgement.failure = "the step changed V";
    if (judgement.failure.empty()) judgement.failure = check_written(after);
    if (!judgement.failure.empty()) return judgement;

    const Shape& s = after.shape;
    const Rows rows = compute_rows(after, seed);
    const Compared lse{rows.out_lse, rows.reference_lse, rows.twin_lse};
    const auto verdict = compare(lse, gate_of_lse(rows, s));
    absorb(judgement, verdict, lse,
           verdict.first_wrong < 0 ? "" : where(rows, s, verdict.first_wrong, 1, "L"));
    compare_output(judgement, rows, after, pattern == Pattern::kOutlierChannels);

    const auto expected = static_cast<std::int64_t>(rows.chosen.size()) * (s.head_dim + 1);
    if (judgement.failure.empty() && judgement.compared != expected)
        judgement.failure = "compared " + std::to_string(judgement.compared) + " elements instead of " +
                            std::to_string(expected);
    return judgement;
}

template ForwardCall<float> make_call(const ForwardCase&, bool);
template ForwardCall<fp16> make_call(const ForwardCase&, bool);
template ForwardCall<bf16> make_call(const ForwardCase&, bool);
template Judgement judge(const ForwardCall<float>&, ForwardCall<float>&, Pattern, std::uint64_t);
template Judgement judge(const ForwardCall<fp16>&, ForwardCall<fp16>&, Pattern, std::uint64_t);
template Judgement judge(const ForwardCall<bf16>&, ForwardCall<bf16>&, Pattern, std::uint64_t);

}  // namespace flash::testing
