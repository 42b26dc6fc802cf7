// Refuses a bad call before anything is launched or written: std::invalid_argument with one sentence that
// names the argument, its value and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/attention.hpp"
#include "common/tensor_checks.hpp"

namespace flash {

// Throws std::invalid_argument when the call breaks the contract or the step's limits; touches no tensor
// data.
template <class T> void check_arguments(const ForwardArgs<T>& args, const Limits& limits) {
    const Shape& s = args.shape;
    detail::check_shape(s, limits);
    detail::check_scale(args.scale);
    const TensorView<float> lse_view{args.lse, static_cast<std::int64_t>(s.heads_q) * s.len_q, s.len_q, 1};
    const auto q = detail::checked("q", args.q, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto k = detail::checked("k", args.k, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    const auto v = detail::checked("v", args.v, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    const auto o = detail::checked("o", args.o, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto lse = detail::checked("lse", lse_view, s.batch, s.heads_q, s.len_q, 1);
    for (const auto& tensor : {q, k, v, o}) detail::check_tensor(tensor, limits);
    detail::check_tensor(lse, Limits{limits.step});
    for (const auto& output : {o, lse}) {
        for (const auto& input : {q, k, v}) detail::check_disjoint(output, input);
    }
    detail::check_disjoint(o, lse);
}

// The same for a backward call. `workspace_needed`: bytes of workspace that the step will use, at a 16-byte
// aligned address.
template <class T>
void check_arguments(const BackwardArgs<T>& args, const Limits& limits, std::int64_t workspace_needed) {
    const Shape& s = args.shape;
    detail::check_shape(s, limits);
    detail::check_scale(args.scale);
    const TensorView<const float> lse_view{args.lse, static_cast<std::int64_t>(s.heads_q) * s.len_q, s.len_q,
                                           1};
    const TensorView<std::byte> workspace_view{static_cast<std::byte*>(args.workspace), 0, 0, 0};
    const auto q = detail::checked("q", args.q, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto k = detail::checked("k", args.k, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    const auto v = detail::checked("v", args.v, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    const auto o = detail::checked("o", args.o, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto d_o = detail::checked("d_o", args.d_o, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto lse = detail::checked("lse", lse_view, s.batch, s.heads_q, s.len_q, 1);
    const auto dq = detail::checked("dq", args.dq, s.batch, s.heads_q, s.len_q, s.head_dim);
    const auto dk = detail::checked("dk", args.dk, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    const auto dv = detail::checked("dv", args.dv, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    auto workspace = detail::checked("workspace", workspace_view, 1, 1, 1, 0);
    workspace.size[3] = workspace_needed;
    for (const auto& tensor : {q, k, v, o, d_o, dq, dk, dv}) detail::check_tensor(tensor, limits);
    detail::check_tensor(lse, Limits{limits.step});
    if (args.workspace_bytes < workspace_needed) {
        detail::refuse("workspace_bytes is " + std::to_string(args.workspace_bytes) + "; " + limits.step +
                       " needs " + std::to_string(workspace_needed) + " for this shape");
    }
    Limits workspace_limits{limits.step};
    workspace_limits.aligned = true;
    detail::check_tensor(workspace, workspace_limits);
    const auto outputs = {dq, dk, dv, workspace};
    for (const auto* output = outputs.begin(); output != outputs.end(); ++output) {
        for (const auto& input : {q, k, v, o, lse, d_o}) detail::check_disjoint(*output, input);
        for (const auto* other = output + 1; other != outputs.end(); ++other)
            detail::check_disjoint(*output, *other);
    }
}

namespace detail {

template <class T> void tidy_strides(TensorView<T>& view, int batch, int heads, int len, int head_dim) {
    if (batch == 0 || heads == 0 || len == 0 || head_dim == 0) view = {};
    if (batch <= 1) view.stride_batch = 0;
    if (heads <= 1) view.stride_head = 0;
    if (len <= 1) view.stride_row = 0;
}

}  // namespace detail

// The same call with stride 0 in every dimension of size 0 or 1, where the caller's stride may be any number,
// and with null for tensors without elements: kernels then form no address beyond a tensor and none that is
// not aligned.
template <class T> ForwardArgs<T> without_idle_strides(ForwardArgs<T> args) {
    const Shape& s = args.shape;
    detail::tidy_strides(args.q, s.batch, s.heads_q, s.len_q, s.head_dim);
    for (auto* view : {&args.k, &args.v})
        detail::tidy_strides(*view, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    detail::tidy_strides(args.o, s.batch, s.heads_q, s.len_q, s.head_dim);
    return args;
}
template <class T> BackwardArgs<T> without_idle_strides(BackwardArgs<T> args) {
    const Shape& s = args.shape;
    for (auto* view : {&args.q, &args.o, &args.d_o})
        detail::tidy_strides(*view, s.batch, s.heads_q, s.len_q, s.head_dim);
    for (auto* view : {&args.k, &args.v})
        detail::tidy_strides(*view, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    detail::tidy_strides(args.dq, s.batch, s.heads_q, s.len_q, s.head_dim);
    for (auto* view : {&args.dk, &args.dv})
        detail::tidy_strides(*view, s.batch, s.heads_kv, s.len_kv, s.head_dim);
    return args;
}

// The product of sizes that are not negative, for the bytes of a workspace.
inline std::int64_t checked_bytes(std::initializer_list<std::int64_t> factors) {
    std::int64_t bytes = 1;
    bool overflow = false;
    for (const std::int64_t factor : factors) overflow |= __builtin_mul_overflow(bytes, factor, &bytes);
    const bool zero = std::any_of(factors.begin(), factors.end(), [](std::int64_t x) { return x == 0; });
    if (overflow && !zero) detail::refuse("the workspace needs more than 2^63 bytes: split the batch");
    return zero ? 0 : bytes;
}

// The x size of a grid with one block for each of `blocks` units of work; no other grid dimension is used,
// because they end at 65,535.
inline unsigned checked_grid(std::int64_t blocks, const Limits& limits) {
    if (blocks > 0x7fffffff) {
        detail::refuse("the shape needs " + std::to_string(blocks) + " blocks; " + limits.step +
                       " can launch 2147483647: split the batch");
    }
    return static_cast<unsigned>(blocks);
}

}  // namespace flash
