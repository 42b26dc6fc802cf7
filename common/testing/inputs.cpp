#include "common/testing/inputs.hpp"

#include "common/testing/random.hpp"
#include "common/testing/real_model.hpp"

namespace flash::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kGuard = 64;  // elements; keeps 16-byte alignment

// A channel that Q and K set aside to add `bump` to the scaled score: Q holds kBumpQ, K the rest.
constexpr float kBumpQ = 4;

float bump(const Shape& s, Role role, float scaled_score) {
    return role == Role::kQ ? kBumpQ : scaled_score / kBumpQ / default_scale(s.head_dim);
}

// The score that key j has over the others under a pattern.
float bump_of_key(Pattern pattern, int j, int len) {
    const float position = len > 1 ? static_cast<float>(j) / static_cast<float>(len - 1) : 0.0f;
    switch (pattern) {
        case Pattern::kLargestLast:
            return j == len - 1 ? 10.0f : 0.0f;
        case Pattern::kLargestFirst:
            return j == 0 ? 10.0f : 0.0f;
        case Pattern::kIncreasing:
            return 20.0f * position;
        case Pattern::kDecreasing:
            return -20.0f * position;
        case Pattern::kOneKeyDominates:
            return j == len * 2 / 3 ? 120.0f : 0.0f;
        default:
            return 0.0f;
    }
}

// Element (b, h, n, d) of a tensor with `shape` (len_q is its length, heads_q its heads).
float value(Pattern pattern, Role role, std::uint64_t seed, const Shape& s, int b, int h, int n, int d) {
    const auto linear = ((static_cast<std::int64_t>(b) * s.heads_q + h) * s.len_q + n) * s.head_dim + d;
    const float normal =
        random_normal(4 * seed + static_cast<std::uint64_t>(role), static_cast<std::uint64_t>(linear));
    switch (pattern) {
        case Pattern::kNormal:
            return normal;
        case Pattern::kTimes10:
            return 10 * normal;
        case Pattern::kTimes100:
            return 100 * normal;
        case Pattern::kAllEqual:
            return role == Role::kV ? normal : 1.0f;
        case Pattern::kLargestLast:
        case Pattern::kLargestFirst:
        case Pattern::kIncreasing:
        case Pattern::kDecreasing:
        case Pattern::kOneKeyDominates:
            if (d != 0 || role == Role::kV) return normal;
            return bump(s, role, role == Role::kQ ? 0 : bump_of_key(pattern, n, s.len_q));
        case Pattern::kVeryNegative:
            if (d != 0 || role == Role::kV) return normal;
            if (role == Role::kQ) return n % 2 == 0 ? kBumpQ : kBumpQ / 2;
            return bump(s, role, -200.0f);
        case Pattern::kOutlierChannels:
            if (d % 16 != 3 % s.head_dim || role == Role::kQ) return normal;
            return normal * (role == Role::kV ? 64.0f : 8.0f);
        case Pattern::kNonFinite:
            if (d == 0 && role == Role::kQ && b == 0 && n == s.len_q / 3) return kNan;
            if (d == 0 && role == Role::kQ && b == 0 && n == s.len_q / 2) return kInf;
            if (d == 0 && role == Role::kK && b > 0 && b == s.batch - 1 && n == s.len_q * 3 / 4) return kNan;
            return normal;
        case Pattern::kZeros:
            return 0.0f;
        case Pattern::kRealModel:
            return real_model().value(static_cast<int>(role), h, n, d);
    }
    return normal;
}

}  // namespace

std::string name(Storage storage) {
    switch (storage) {
        case Storage::kBhnd:
            return "(B,H,N,D)";
        case Storage::kBnhd:
            return "(B,N,H,D)";
        case Storage::kPadded:
            return "padded strides";
        case Storage::kMixed:
            return "every tensor in another order";
        case Storage::kSharedKv:
            return "K and V shared by all heads (stride 0)";
        case Storage::kSharedRow:
            return "one K and V row for all keys (stride 0)";
    }
    return "?";
}

std::string name(Pattern pattern) {
    switch (pattern) {
        case Pattern::kNormal:
            return "normal";
        case Pattern::kTimes10:
            return "normal x 10";
        case Pattern::kTimes100:
            return "normal x 100";
        case Pattern::kAllEqual:
            return "Q and K all ones";
        case Pattern::kLargestLast:
            return "largest score at the last key";
        case Pattern::kIncreasing:
            return "increasing scores";
        case Pattern::kLargestFirst:
            return "largest score at the first key";
        case Pattern::kDecreasing:
            return "decreasing scores";
        case Pattern::kVeryNegative:
            return "scores near -200 and -100";
        case Pattern::kOutlierChannels:
            return "outlier channels";
        case Pattern::kOneKeyDominates:
            return "one key dominates";
        case Pattern::kNonFinite:
            return "NaN and +inf rows";
        case Pattern::kZeros:
            return "zeros";
        case Pattern::kRealModel:
            return "real model";
    }
    return "?";
}

template <class T>
HostTensor<T> make_tensor(Storage storage, Role role, int batch, int heads, int len, int head_dim,
                          bool aligned) {
    if (storage == Storage::kMixed) {
        const bool padded = role == Role::kV || role == Role::kDo || role == Role::kDq || role == Role::kDv;
        storage = role == Role::kQ || role == Role::kDk ? Storage::kBhnd
                  : padded                              ? Storage::kPadded
                                                        : Storage::kBnhd;
    }
    HostTensor<T> t{batch, heads, len, head_dim, 0, 0, 0, 0, {}};
    // Gradients that are written are padded more than what they are gradients of.
    const bool is_gradient = role == Role::kDq || role == Role::kDk || role == Role::kDv;
    const std::int64_t gap =
        storage != Storage::kPadded ? 0 : std::int64_t{aligned ? 8 : 3} * (is_gradient ? 2 : 1);
    if (storage == Storage::kBnhd) {
        t.stride_head = head_dim;
        t.stride_row = t.stride_head * heads;
        t.stride_batch = t.stride_row * len;
    } else {
        t.stride_row = head_dim + gap;
        t.stride_head = t.stride_row * len + 2 * gap;
        t.stride_batch = t.stride_head * heads + 3 * gap;
    }
    const bool is_shared = role == Role::kK || role == Role::kV || role == Role::kDo;
    if (is_shared && storage == Storage::kSharedKv) t.stride_batch = t.stride_head = 0;
    if (is_shared && storage == Storage::kSharedRow) t.stride_row = 0;

    const bool is_output = role == Role::kO || is_gradient;
    const bool exact = !is_output && storage == Storage::kBhnd;
    t.first = exact ? 0 : kGuard;
    std::int64_t size = 2 * t.first;
    if (t.elements() != 0) size += t.index(batch - 1, heads - 1, len - 1, head_dim) - t.first;
    t.memory.assign(static_cast<std::size_t>(size), is_output ? canary<T>() : from_float<T>(kNan));
    return t;
}

template <class T> void fill(HostTensor<T>& t, Pattern pattern, Role role, std::uint64_t seed) {
    const Shape s{t.batch, t.heads, t.heads, t.len, t.len, t.head_dim};
    for (int b = 0; b < t.batch; ++b) {
        for (int h = 0; h < t.heads; ++h) {
            for (int n = 0; n < t.len; ++n) {
                for (int d = 0; d < t.head_dim; ++d) {
                    t.memory[static_cast<std::size_t>(t.index(b, h, n, d))] =
                        from_float<T>(value(pattern, role, seed, s, b, h, n, d));
                }
            }
        }
    }
}

template HostTensor<float> make_tensor(Storage, Role, int, int, int, int, bool);
template HostTensor<fp16> make_tensor(Storage, Role, int, int, int, int, bool);
template HostTensor<bf16> make_tensor(Storage, Role, int, int, int, int, bool);
template void fill(HostTensor<float>&, Pattern, Role, std::uint64_t);
template void fill(HostTensor<fp16>&, Pattern, Role, std::uint64_t);
template void fill(HostTensor<bf16>&, Pattern, Role, std::uint64_t);

}  // namespace flash::testing
