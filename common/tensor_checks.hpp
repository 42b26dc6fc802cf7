// The single checks that argument_checks.hpp puts together: shapes, scales, views and what they overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "common/attention.hpp"

namespace flash {

// What a step accepts beyond the contract.
struct Limits {
    const char* step;           // "step 05", for the message
    int max_head_dim = 256;     // largest D
    int head_dim_multiple = 1;  // D must be a multiple of this
    bool aligned = false;       // pointers 16-byte aligned and strides multiples of 8 elements
};

namespace detail {

[[noreturn]] inline void refuse(const std::string& sentence) {
    throw std::invalid_argument(sentence);
}

// A view with its sizes and its type erased: what the checks look at.
struct CheckedTensor {
    const char* name;
    const void* data;
    std::array<std::int64_t, 4> size;    // batch, head, row, element
    std::array<std::int64_t, 4> stride;  // in elements; the last is 1
    std::int64_t element_bytes;
    bool is_output;

    bool empty() const { return size[0] == 0 || size[1] == 0 || size[2] == 0 || size[3] == 0; }
};

template <class T>
CheckedTensor checked(const char* name, const TensorView<T>& view, int batch, int heads, int len,
                      int head_dim) {
    return {name,
            view.data,
            {batch, heads, len, head_dim},
            {view.stride_batch, view.stride_head, view.stride_row, 1},
            static_cast<std::int64_t>(sizeof(T)),
            !std::is_const_v<T>};
}

// Bytes from the first to one past the last element.
inline std::int64_t span_bytes(const CheckedTensor& t) {
    std::int64_t last = 0;
    bool overflow = false;
    for (int d = 0; d < 4; ++d) {
        std::int64_t reach = 0;
        overflow |= __builtin_mul_overflow(t.size[d] - 1, t.stride[d], &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
    }
    std::int64_t bytes = 0;
    overflow |=
        __builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, t.element_bytes, &bytes);
    if (overflow)
        refuse(std::string(t.name) + " spans more than 2^63 bytes; sizes times strides must fit in 64 bits");
    return bytes;
}

// True when two different elements of t are sure to lie at different addresses: sorted by stride, each
// dimension steps over everything the smaller ones cover.
inline bool elements_are_distinct(const CheckedTensor& t) {
    std::array<std::pair<std::int64_t, std::int64_t>, 4> dims{};  // (stride, size)
    for (int d = 0; d < 4; ++d) dims[d] = {t.size[d] == 1 ? 0 : t.stride[d], t.size[d]};
    std::sort(dims.begin(), dims.end());
    std::int64_t covered = 1;
    for (const auto& [stride, size] : dims) {
        if (size == 1) continue;
        if (stride < covered) return false;
        covered = stride * (size - 1) + covered;
    }
    return true;
}

inline void check_tensor(const CheckedTensor& t, const Limits& limits) {
    static constexpr std::array<const char*, 3> kStrideNames = {"stride_batch", "stride_head", "stride_row"};
    for (int d = 0; d < 3; ++d) {
        if (t.stride[d] < 0) {
            refuse(std::string(t.name) + "." + kStrideNames[d] + " is " + std::to_string(t.stride[d]) +
                   "; strides must be >= 0");
        }
    }
    if (t.empty()) return;
    const std::string name = t.name;
    if (t.data == nullptr) refuse(name + ".data is null; a tensor with elements needs memory");
    const std::int64_t alignment = limits.aligned ? 16 : t.element_bytes;
    if (reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(alignment) != 0) {
        refuse(name + ".data is not aligned; " + limits.step + " needs " + std::to_string(alignment) +
               "-byte alignment");
    }
    for (int d = 0; d < 3 && limits.aligned; ++d) {
        if (t.size[d] > 1 && t.stride[d] % 8 != 0) {
            refuse(name + "." + kStrideNames[d] + " is " + std::to_string(t.stride[d]) + "; " + limits.step +
                   " needs strides that are multiples of 8 elements");
        }
    }
    span_bytes(t);
    if (t.is_output && !elements_are_distinct(t)) {
        refuse(name + "'s strides (" + std::to_string(t.stride[0]) + ", " + std::to_string(t.stride[1]) +
               ", " + std::to_string(t.stride[2]) +
               ") make its elements overlap; an output needs an address per element");
    }
}

// An output may not share memory with any other tensor of the call.
inline void check_disjoint(const CheckedTensor& output, const CheckedTensor& other) {
    if (output.empty() || other.empty()) return;
    const auto begin_a = reinterpret_cast<std::uintptr_t>(output.data);
    const auto begin_b = reinterpret_cast<std::uintptr_t>(other.data);
    const auto end_a = begin_a + static_cast<std::uintptr_t>(span_bytes(output));
    const auto end_b = begin_b + static_cast<std::uintptr_t>(span_bytes(other));
    if (begin_a < end_b && begin_b < end_a) {
        refuse(std::string(output.name) + " overlaps " + other.name +
               " in memory; outputs need memory of their own");
    }
}

inline void check_shape(const Shape& s, const Limits& limits) {
    const std::array<std::pair<const char*, int>, 6> sizes = {{{"batch", s.batch},
                                                               {"heads_q", s.heads_q},
                                                               {"heads_kv", s.heads_kv},
                                                               {"len_q", s.len_q},
                                                               {"len_kv", s.len_kv},
                                                               {"head_dim", s.head_dim}}};
    for (const auto& [name, value] : sizes) {
        if (value < 0)
            refuse(std::string("shape.") + name + " is " + std::to_string(value) + "; sizes must be >= 0");
    }
    // Row and key indices, and their sums with the diagonal and a tile, are ints in the kernels.
    constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 65536;
    if (static_cast<std::int64_t>(s.len_q) + s.len_kv > kMaxTokens) {
        refuse("shape.len_q + shape.len_kv is " +
               std::to_string(static_cast<std::int64_t>(s.len_q) + s.len_kv) +
               "; together they must be at most " + std::to_string(kMaxTokens));
    }
    const bool divides = s.heads_kv == 0 ? s.heads_q == 0 : s.heads_q % s.heads_kv == 0;
    if (!divides) {
        refuse("shape.heads_kv is " + std::to_string(s.heads_kv) +
               ", which does not divide shape.heads_q = " + std::to_string(s.heads_q) +
               "; every key head serves the same number of query heads");
    }
    if (s.head_dim > limits.max_head_dim || s.head_dim % limits.head_dim_multiple != 0) {
        refuse("shape.head_dim is " + std::to_string(s.head_dim) + "; " + limits.step + " accepts " +
               (limits.head_dim_multiple == 1
                    ? std::string("any up to ")
                    : "multiples of " + std::to_string(limits.head_dim_multiple) + " up to ") +
               std::to_string(limits.max_head_dim));
    }
}

inline void check_scale(float scale) {
    if (!(std::isfinite(scale) && scale > 0)) {
        refuse("scale is " + std::to_string(scale) +
               "; it must be finite and > 0 (usually 1 / sqrt(head_dim))");
    }
}

}  // namespace detail

}  // namespace flash
