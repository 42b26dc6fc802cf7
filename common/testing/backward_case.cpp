#include "common/testing/backward_case.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "common/testing/backward_rows.hpp"
#include "common/testing/random.hpp"

namespace flash::testing {
namespace {

constexpr std::int64_t kFullReferenceWork = 1 << 24;  // beyond it a sample of rows is compared
constexpr std::int64_t kSampledRows = 96;
constexpr double kTwinFactor = 3;
constexpr std::byte kUnwritten{0xff};

// All rows, or the first, the last and a seeded choice in between.
std::vector<std::int64_t> rows_to_compare(const Shape& s, std::int64_t rows, std::uint64_t seed) {
    if (work_of(s) <= kFullReferenceWork || rows <= kSampledRows) {
        std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    std::set<std::int64_t> chosen = {0, rows - 1};
    for (std::uint64_t n = 0; chosen.size() < kSampledRows; ++n) chosen.insert(random_below(seed, n, rows));
    return {chosen.begin(), chosen.end()};
}

float gradient_value(Gradient gradient, std::uint64_t seed, std::int64_t linear, int row, int len) {
    const float normal = random_normal(~seed, static_cast<std::uint64_t>(linear));
    switch (gradient) {
        case Gradient::kNormal:
            return normal;
        case Gradient::kOnes:
            return 1.0f;
        case Gradient::kOneRow:
            return row == len * 2 / 3 ? normal : 0.0f;
        case Gradient::kLarge:
            return 16 * normal;
    }
    return normal;
}

// What is at (b, h, n, d) of a tensor with these sizes.
template <class T> void set_elements(HostTensor<T>& t, const auto& value) {
    std::int64_t linear = 0;
    for (int b = 0; b < t.batch; ++b)
        for (int h = 0; h < t.heads; ++h)
            for (int n = 0; n < t.len; ++n)
                for (int d = 0; d < t.head_dim; ++d, ++linear)
                    t.memory[static_cast<std::size_t>(t.index(b, h, n, d))] = from_float<T>(value(linear, n));
}

std::string name(Gradient gradient) {
    switch (gradient) {
        case Gradient::kNormal:
            return "dO normal";
        case Gradient::kOnes:
            return "dO all ones";
        case Gradient::kOneRow:
            return "dO zero but for one row";
        case Gradient::kLarge:
            return "dO normal x 16";
    }
    return "?";
}

// True for every key head (b, h_kv) of which some element of these tensors is not finite.
template <class T> std::vector<bool> heads_with_non_finite(const HostTensor<T>& t, int heads_kv) {
    std::vector<bool> found(static_cast<std::size_t>(t.batch) * static_cast<std::size_t>(heads_kv), false);
    for (int b = 0; b < t.batch; ++b)
        for (int h = 0; h < t.heads; ++h)
            for (int n = 0; n < t.len; ++n)
                for (int d = 0; d < t.head_dim; ++d)
                    if (!std::isfinite(to_float(t.memory[static_cast<std::size_t>(t.index(b, h, n, d))])))
                        found[static_cast<std::size_t>(b * heads_kv + h / (t.heads / heads_kv))] = true;
    return found;
}

}  // namespace

std::string describe(const BackwardCase& c, const char* dtype, bool deterministic) {
    return describe(c.forward, dtype) + " | " + name(c.gradient) +
           (deterministic ? " | deterministic" : " | fast");
}

template <class T> void BackwardCall<T>::choose_mode(bool is_deterministic, std::int64_t bytes) {
    deterministic = is_deterministic;
    workspace_bytes = bytes;
    const std::int64_t padded = (bytes + kWorkspaceGuard - 1) / kWorkspaceGuard * kWorkspaceGuard;
    workspace.assign(static_cast<std::size_t>(padded + 2 * kWorkspaceGuard), kUnwritten);
}

template <class T> BackwardCall<T> make_backward_call(const BackwardCase& c, bool aligned) {
    const Shape& s = c.forward.shape;
    const auto like_q = [&](Role role) {
        return make_tensor<T>(c.forward.storage, role, s.batch, s.heads_q, s.len_q, s.head_dim, aligned);
    };
    const auto like_k = [&](Role role) {
        return make_tensor<T>(c.forward.storage, role, s.batch, s.heads_kv, s.len_kv, s.head_dim, aligned);
    };
    BackwardCall<T> call;
    call.shape = s;
    call.mask = c.forward.mask;
    call.scale = c.forward.scale != 0 ? c.forward.scale : s.head_dim == 0 ? 1.0f : default_scale(s.head_dim);
    call.q = like_q(Role::kQ);
    call.k = like_k(Role::kK);
    call.v = like_k(Role::kV);
    call.o = like_q(Role::kSavedO);
    call.d_o = like_q(Role::kDo);
    call.dq = like_q(Role::kDq);
    call.dk = like_k(Role::kDk);
    call.dv = like_k(Role::kDv);
    fill(call.q, c.forward.pattern, Role::kQ, c.forward.seed);
    fill(call.k, c.forward.pattern, Role::kK, c.forward.seed);
    fill(call.v, c.forward.pattern, Role::kV, c.forward.seed);
    set_elements(call.o, [](std::int64_t, int) { return 0.0f; });
    set_elements(call.d_o, [&](std::int64_t linear, int n) {
        return gradient_value(c.gradient, c.forward.seed, linear, n, s.len_q);
    });
    call.lse.assign(static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.heads_q) *
                        static_cast<std::size_t>(s.len_q),
                    0.0f);
    return call;
}

namespace {

template <class Precision, class T>
typename BackwardRows<Precision>::Inputs inputs_of(const BackwardCall<T>& call) {
    using Real = typename Precision::Real;
    return {call.shape,
            call.mask,
            call.scale,
            dense_elements<Real>(call.q),
            dense_elements<Real>(call.k),
            dense_elements<Real>(call.v),
            dense_elements<Real>(call.d_o)};
}

// O and L as an exact forward leaves them, in the call's types.
template <class T> void save_forward(BackwardCall<T>& call, const BackwardRows<Exact>& exact) {
    const auto D = static_cast<std::int64_t>(call.shape.head_dim);
    set_elements(call.o, [&](std::int64_t linear, int) {
        return static_cast<float>(
            exact.query_rows()[static_cast<std::size_t>(linear / D)].o[static_cast<std::size_t>(linear % D)]);
    });
    for (std::size_t row = 0; row < call.lse.size(); ++row)
        call.lse[row] = static_cast<float>(exact.query_rows()[row].lse);
}

template <class Real> void append(std::vector<double>& to, const std::vector<Real>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

template <class Twin>
void compute_query_rows(ExpectedGradients& expected, const BackwardRows<Exact>& exact, const Twin& twin) {
    for (const std::int64_t row : expected.dq.rows) {
        const auto gradient = exact.query_gradient(row);
        append(expected.dq.reference, gradient.dq);
        append(expected.dq.magnitude, gradient.dq_magnitude);
        append(expected.dq.twin, twin.query_gradient(row).dq);
    }
}

template <class Twin>
void compute_key_rows(ExpectedGradients& expected, const BackwardRows<Exact>& exact, const Twin& twin) {
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
}

// A tile product multiplies the zeros of hidden pairs too, and 0 times a NaN or an infinity is NaN: under a
// causal mask a key head with such a number among its rows has no specified gradients beyond those that must
// be NaN.
template <class T> void mark_unspecified(ExpectedGradients& expected, const BackwardCall<T>& call) {
    const Shape& s = call.shape;
    if (!call.mask.is_causal || s.heads_kv == 0) {
        for (auto* rows : {&expected.dq, &expected.dk, &expected.dv})
            rows->unspecified.assign(rows->rows.size(), false);
        return;
    }
    std::vector<bool> bad(static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.heads_kv), false);
    for (const auto* tensor : {&call.q, &call.k, &call.v, &call.d_o}) {
        const auto found = heads_with_non_finite(*tensor, s.heads_kv);
        for (std::size_t head = 0; head < bad.size(); ++head) bad[head] = bad[head] || found[head];
    }
    for (const std::int64_t row : expected.dq.rows) {
        const std::int64_t head = row / s.len_q / (s.heads_q / s.heads_kv);
        expected.dq.unspecified.push_back(bad[static_cast<std::size_t>(head)]);
    }
    for (const std::int64_t row : expected.dk.rows)
        expected.dk.unspecified.push_back(bad[static_cast<std::size_t>(row / s.len_kv)]);
    expected.dv.unspecified = expected.dk.unspecified;
}

}  // namespace

template <class T> ExpectedGradients expect_gradients(BackwardCall<T>& call, std::uint64_t seed) {
    const Shape& s = call.shape;
    const BackwardRows<Exact> exact(inputs_of<Exact>(call));
    save_forward(call, exact);
    const BackwardRows<InStepPrecision<T>> twin(inputs_of<InStepPrecision<T>>(call),
                                                dense_elements<float>(call.o), call.lse);
    ExpectedGradients expected;
    expected.dq.rows = rows_to_compare(s, static_cast<std::int64_t>(s.batch) * s.heads_q * s.len_q, seed);
    expected.dk.rows =
        rows_to_compare(s, static_cast<std::int64_t>(s.batch) * s.heads_kv * s.len_kv, seed + 1);
    expected.dv.rows = expected.dk.rows;
    compute_query_rows(expected, exact, twin);
    compute_key_rows(expected, exact, twin);
    mark_unspecified(expected, call);
    for (const auto& row : exact.query_rows()) {
        expected.max_score = std::max(expected.max_score, row.max_score);
        if (std::isfinite(row.lse)) expected.max_score = std::max(expected.max_score, std::abs(row.lse));
        expected.pairs += row.sum != 0 ? s.len_kv : 0;
    }
    expected.score_reach = static_cast<double>(call.scale) * largest_norm(call.q) * largest_norm(call.k);
    return expected;
}

namespace {

enum class Which { kDq, kDk, kDv };

// The elements of a gradient that are compared, of one channel or of all: where each lies in the (rows, D)
// matrices, and its values.
struct Selection {
    std::vector<std::size_t> element;
    std::vector<double> out, reference, twin, magnitude;
};

template <class T> Selection select(const HostTensor<T>& gradient, const ExpectedRows& rows, int channel) {
    Selection selection;
    const auto D = static_cast<std::size_t>(gradient.head_dim);
    for (std::size_t r = 0; r < rows.rows.size(); ++r) {
        const std::int64_t row = rows.rows[r];
        const int n = static_cast<int>(row % gradient.len);
        const int h = static_cast<int>(row / gradient.len % gradient.heads);
        const int b = static_cast<int>(row / gradient.len / gradient.heads);
        for (std::size_t d = 0; d < D; ++d) {
            const std::size_t at = r * D + d;
            if (channel >= 0 && d != static_cast<std::size_t>(channel)) continue;
            if (rows.unspecified[r] && std::isfinite(rows.reference[at])) continue;
            selection.element.push_back(at);
            selection.out.push_back(static_cast<double>(to_float(
                gradient.memory[static_cast<std::size_t>(gradient.index(b, h, n, static_cast<int>(d)))])));
            selection.reference.push_back(rows.reference[at]);
            selection.twin.push_back(rows.twin[at]);
            selection.magnitude.push_back(rows.magnitude[at]);
        }
    }
    return selection;
}

// What the errors of one gradient may be. Relative errors are those of its terms: P, or P (dP - delta) with
// both parts taken by size.
template <class T>
Gate gate_of(const BackwardCall<T>& call, const ExpectedGradients& expected, const Selection& values,
             Which which) {
    const Shape& s = call.shape;
    const Format format = format_of<T>();
    const double size = largest_finite(values.reference);
    const double magnitude = largest_finite(values.magnitude);
    Gate gate;
    gate.twin_factor = kTwinFactor;
    // The room of the forward's floor, for P rebuilt from an fp32 score and an fp32 L; and the two fp32 sums
    // that dP and delta are.
    gate.floor = kFloorUlps * format.ulp(size) + 4 * kFp32Roundoff * (expected.max_score + 1) * magnitude;
    // A handful of numbers says little about the twin's typical error: allow one rounding of P or dS besides.
    if (std::min<std::int64_t>(expected.pairs, static_cast<std::int64_t>(values.reference.size())) < 64)
        gate.floor += format.unit_roundoff() * magnitude;

    const int group = s.heads_kv == 0 ? 0 : s.heads_q / s.heads_kv;
    const double terms = which == Which::kDq ? s.len_kv : static_cast<double>(s.len_q) * group;
    const double p_error =
        std::expm1(2 * score_error_bound(expected.score_reach, expected.max_score, s.head_dim) +
                   8 * kFp32Roundoff * std::sqrt(s.len_kv + 1.0));
    const double sums = 16 * kFp32Roundoff * (std::sqrt(terms + 1) + std::sqrt(s.head_dim + 1.0));
    // P and dS below the normal numbers of the type are off by half its smallest one.
    const double tiny = format.ulp(0) / 2;
    const double largest_d_o = largest_element(call.d_o);
    if (which == Which::kDv) {
        gate.twin_bound = format.ulp(size) + (p_error + 2 * format.unit_roundoff() + sums) * magnitude +
                          terms * tiny * largest_d_o;
    } else {
        const double other =
            static_cast<double>(call.scale) * largest_element(which == Which::kDq ? call.k : call.q);
        const double tiny_delta = s.head_dim * largest_d_o * (s.len_kv * largest_element(call.v) + 1) * tiny;
        gate.twin_bound = format.ulp(size) + (3 * p_error + 4 * format.unit_roundoff() + sums) * magnitude +
                          terms * other * (tiny + tiny_delta);
    }
    return gate;
}

template <class T>
std::string where(const HostTensor<T>& gradient, const ExpectedRows& rows, std::size_t element,
                  const char* tensor) {
    const auto D = static_cast<std::size_t>(gradient.head_dim);
    const std::int64_t row = rows.rows[element / D];
    return std::string(tensor) + "[b=" + std::to_string(row / gradient.len / gradient.heads) +
           ", h=" + std::to_string(row / gradient.len % gradient.heads) +
           ", i=" + std::to_string(row % gradient.len) + ", d=" + std::to_string(element % D) + "]";
}

template <class T>
void judge_gradient(Judgement& judgement, const BackwardCall<T>& call, const ExpectedGradients& expected,
                    Which which, bool per_channel) {
    const bool is_dq = which == Which::kDq, is_dk = which == Which::kDk;
    const HostTensor<T>& gradient = is_dq ? call.dq : is_dk ? call.dk : call.dv;
    const ExpectedRows& rows = is_dq ? expected.dq : is_dk ? expected.dk : expected.dv;
    const char* tensor = is_dq ? "dQ" : is_dk ? "dK" : "dV";
    // Channel by channel where a large channel could hide garbage in a small one.
    for (int channel = per_channel ? 0 : -1; channel < (per_channel ? gradient.head_dim : 0); ++channel) {
        const Selection selection = select(gradient, rows, channel);
        const Compared values{selection.out, selection.reference, selection.twin};
        const auto verdict = compare(values, gate_of(call, expected, selection, which));
        absorb(judgement, verdict, values,
               verdict.first_wrong < 0
                   ? ""
                   : where(gradient, rows, selection.element[static_cast<std::size_t>(verdict.first_wrong)],
                           tensor));
    }
}

// How many elements of a gradient have to be compared.
std::int64_t specified_elements(const ExpectedRows& rows, int head_dim) {
    std::int64_t count = 0;
    const auto D = static_cast<std::size_t>(head_dim);
    for (std::size_t at = 0; at < rows.rows.size() * D; ++at)
        count += !(rows.unspecified[at / D] && std::isfinite(rows.reference[at]));
    return count;
}

template <class T> std::string check_memory(const BackwardCall<T>& before, const BackwardCall<T>& after) {
    struct Input {
        const char* name;
        const HostTensor<T>*was, *is;
    };
    const Input inputs[] = {{"Q", &before.q, &after.q},
                            {"K", &before.k, &after.k},
                            {"V", &before.v, &after.v},
                            {"O", &before.o, &after.o},
                            {"dO", &before.d_o, &after.d_o}};
    for (const Input& input : inputs)
        if (!same_bits(input.was->memory, input.is->memory))
            return std::string("the step changed ") + input.name;
    if (!same_bits(before.lse, after.lse)) return "the step changed L";
    for (const auto& failure :
         {check_written(after.dq, "dQ"), check_written(after.dk, "dK"), check_written(after.dv, "dV")})
        if (!failure.empty()) return failure;
    const auto guard = BackwardCall<T>::kWorkspaceGuard;
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(after.workspace.size()); ++at) {
        const bool inside = at >= guard && at < guard + after.workspace_bytes;
        if (!inside && after.workspace[static_cast<std::size_t>(at)] != kUnwritten)
            return "the step wrote outside its workspace, at byte " + std::to_string(at - guard) + " of " +
                   std::to_string(after.workspace_bytes);
    }
    return "";
}

}  // namespace

template <class T>
Judgement judge_gradients(const BackwardCall<T>& after, const ExpectedGradients& expected, Pattern pattern) {
    Judgement judgement;
    const bool per_channel = pattern == Pattern::kOutlierChannels;
    for (const Which which : {Which::kDv, Which::kDk, Which::kDq})
        judge_gradient(judgement, after, expected, which, per_channel);
    std::int64_t wanted = 0;
    for (const auto* rows : {&expected.dq, &expected.dk, &expected.dv})
        wanted += specified_elements(*rows, after.shape.head_dim);
    if (judgement.failure.empty() && judgement.compared != wanted)
        judgement.failure = "compared " + std::to_string(judgement.compared) + " elements instead of " +
                            std::to_string(wanted);
    return judgement;
}

template <class T>
Judgement judge(const BackwardCall<T>& before, const BackwardCall<T>& after,
                const ExpectedGradients& expected, Pattern pattern) {
    const std::string failure = check_memory(before, after);
    if (failure.empty()) return judge_gradients(after, expected, pattern);
    Judgement judgement;
    judgement.failure = failure;
    return judgement;
}

template struct BackwardCall<float>;
template struct BackwardCall<fp16>;
template struct BackwardCall<bf16>;
template BackwardCall<float> make_backward_call(const BackwardCase&, bool);
template BackwardCall<fp16> make_backward_call(const BackwardCase&, bool);
template BackwardCall<bf16> make_backward_call(const BackwardCase&, bool);
template ExpectedGradients expect_gradients(BackwardCall<float>&, std::uint64_t);
template ExpectedGradients expect_gradients(BackwardCall<fp16>&, std::uint64_t);
template ExpectedGradients expect_gradients(BackwardCall<bf16>&, std::uint64_t);
template Judgement judge_gradients(const BackwardCall<float>&, const ExpectedGradients&, Pattern);
template Judgement judge_gradients(const BackwardCall<fp16>&, const ExpectedGradients&, Pattern);
template Judgement judge_gradients(const BackwardCall<bf16>&, const ExpectedGradients&, Pattern);
template Judgement judge(const BackwardCall<float>&, const BackwardCall<float>&, const ExpectedGradients&,
                         Pattern);
template Judgement judge(const BackwardCall<fp16>&, const BackwardCall<fp16>&, const ExpectedGradients&,
                         Pattern);
template Judgement judge(const BackwardCall<bf16>&, const BackwardCall<bf16>&, const ExpectedGradients&,
                         Pattern);

}  // namespace flash::testing
