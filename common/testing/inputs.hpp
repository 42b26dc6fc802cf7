// The tensors of a test case on the host: storage orders, guard bands, and value patterns that each hide or
// show a different mistake (docs/numerics.md says which).
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "common/attention.hpp"
#include "common/types.hpp"

namespace flash::testing {

enum class Storage {
    kBhnd,      // dense (B, H, N, D); inputs are allocated at their exact size
    kBnhd,      // dense (B, N, H, D)
    kPadded,    // (B, H, N, D) with gaps after every row, head and batch entry
    kMixed,     // Q (B, H, N, D), K (B, N, H, D), V padded, O (B, N, H, D): no two views that a mistake could
                // confuse have the same strides; dO, dQ and dV are padded too, dK is (B, H, N, D)
    kSharedKv,  // one key head for all batch entries and heads: strides 0 in K and V, and in dO
    kSharedRow,  // one key row for all keys: stride 0 between the rows of K and V, and of dO
};

enum class Pattern {
    kNormal,
    kTimes10,
    kTimes100,
    kAllEqual,         // Q and K all ones: every weight is 1 / (visible keys)
    kLargestLast,      // the last key has the largest score: shows a forgotten rescale
    kIncreasing,       // every key block holds a new maximum, for every causal row too
    kLargestFirst,     // hides a forgotten rescale
    kDecreasing,       // no block after the first changes the maximum
    kVeryNegative,     // scaled scores near -200 (even queries) and -100 (odd queries)
    kOutlierChannels,  // every 16th channel of K is 8 times, of V 64 times as large
    kOneKeyDominates,  // one weight is 1, the others underflow
    kNonFinite,  // NaN and +inf in two rows of Q (first batch entry), NaN in a row of K (last of several)
    kZeros,
    kRealModel,  // Q, K, V of a sentence model's layer on real text (tests/fixtures)
};

std::string name(Storage storage);
std::string name(Pattern pattern);

// kO is written by a forward call; a backward call reads it as kSavedO.
enum class Role { kQ, kK, kV, kO, kSavedO, kDo, kDq, kDk, kDv };

// A tensor (B, H, N, D) with its memory, guard bands included.
template <class T> struct HostTensor {
    int batch = 0, heads = 0, len = 0, head_dim = 0;
    std::int64_t stride_batch = 0, stride_head = 0, stride_row = 0;
    std::int64_t first = 0;  // where in memory element (0, 0, 0, 0) lies
    std::vector<T> memory;

    std::int64_t index(int b, int h, int n, int d) const {
        return first + b * stride_batch + h * stride_head + n * stride_row + d;
    }
    // The view of a copy of `memory` that begins at base.
    template <class U> TensorView<U> view(U* base) const {
        return {base == nullptr ? nullptr : base + first, stride_batch, stride_head, stride_row};
    }
    std::int64_t elements() const { return static_cast<std::int64_t>(batch) * heads * len * head_dim; }
};

// Allocates a tensor and fills all of its memory with NaN: outputs with canary<T>(). `aligned`: pads by
// multiples of 8 elements, so that rows stay 16-byte aligned.
template <class T>
HostTensor<T> make_tensor(Storage storage, Role role, int batch, int heads, int len, int head_dim,
                          bool aligned);

// Element (b, h, n, d) of every batch entry b becomes value(h, n, d), or value(n, d) for every head too.
template <class T, class Value> void set(HostTensor<T>& t, const Value& value) {
    for (int b = 0; b < t.batch; ++b)
        for (int h = 0; h < t.heads; ++h)
            for (int n = 0; n < t.len; ++n)
                for (int d = 0; d < t.head_dim; ++d) {
                    T& element = t.memory[static_cast<std::size_t>(t.index(b, h, n, d))];
                    if constexpr (std::is_invocable_v<Value, int, int, int>) {
                        element = from_float<T>(value(h, n, d));
                    } else {
                        element = from_float<T>(value(n, d));
                    }
                }
}

template <class T> void fill(HostTensor<T>& tensor, Pattern pattern, Role role, std::uint64_t seed);

template <class T> std::uint32_t bits_of(T x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(T));
    return bits;
}

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The T whose lowest bits these are.
template <class T> T from_bits(std::uint32_t bits) {
    T x;
    std::memcpy(static_cast<void*>(&x), &bits, sizeof(T));
    return x;
}

// A NaN with a payload that no computation yields: what an output element holds until it is written.
template <class T> T canary() {
    const std::uint32_t bits = sizeof(T) == 4                            ? 0x7fc5a5a5u
                               : bits_of(from_float<T>(1.0f)) == 0x3c00u ? 0x7e5au
                                                                         : 0x7fdau;
    return from_bits<T>(bits);
}

}  // namespace flash::testing
