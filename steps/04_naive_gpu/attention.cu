#include "steps/04_naive_gpu/attention.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "common/argument_checks.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/gpu.hpp"
#include "common/types.hpp"

namespace flash::step04 {
namespace {

constexpr Limits kLimits{"step 04", 256};
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr unsigned kThreads = 256;                                         // per block
constexpr std::int64_t kMaxThreads = std::int64_t{kThreads} * 0x7fffffff;  // of a grid's x dimension

// What a kernel needs to know of the call, with S and P for the (batch, head) slices first_slice ..
// first_slice + slices - 1. Query head h of batch entry b is slice b * Hq + h.
template <class T> struct Problem {
    Shape shape;
    TensorView<const T> q, k, v;
    TensorView<T> o;
    float* lse;  // (B, Hq, Nq)
    float* s;    // (slices, Nq, Nk)
    T* p;        // (slices, Nq, Nk)
    std::int64_t first_slice, slices;
    int diagonal;  // key j is visible to query i when j <= i + diagonal
    float scale;
};

template <class T>
__device__ __forceinline__ T* row_of(const TensorView<T>& view, std::int64_t b, std::int64_t h,
                                     std::int64_t n) {
    return view.data + b * view.stride_batch + h * view.stride_head + n * view.stride_row;
}

__device__ __forceinline__ std::int64_t global_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// S[i][j] = scale * q_i . k_j, or -inf where the mask hides key j. One thread per element of S: neighbouring
// threads have neighbouring j, so they share q_i and store side by side, but read rows of K that lie
// stride_row apart.
template <class T> __global__ void scores_kernel(Problem<T> problem) {
    const Shape& shape = problem.shape;
    const std::int64_t element = global_thread();
    if (element >= problem.slices * shape.len_q * shape.len_kv) return;
    const std::int64_t j = element % shape.len_kv;
    const std::int64_t i = element / shape.len_kv % shape.len_q;
    const std::int64_t slice = problem.first_slice + element / shape.len_kv / shape.len_q;
    const std::int64_t b = slice / shape.heads_q, h = slice % shape.heads_q;

    float score = -INFINITY;
    if (j <= i + problem.diagonal) {
        const T* q = row_of(problem.q, b, h, i);
        const T* k = row_of(problem.k, b, h / (shape.heads_q / shape.heads_kv), j);
        float dot = 0.0f;
        for (int d = 0; d < shape.head_dim; ++d) dot += to_float(q[d]) * to_float(k[d]);
        score = problem.scale * dot;
    }
    problem.s[element] = score;
}

__device__ __forceinline__ float max_across_warp(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
    return x;
}
__device__ __forceinline__ float sum_across_warp(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
    return x;
}

// P = softmax of the rows of S, rounded to T, and L: the three passes of step 01, one warp per row.
template <class T> __global__ void softmax_kernel(Problem<T> problem) {
    const std::int64_t len_kv = problem.shape.len_kv;
    const std::int64_t row = global_thread() / 32;  // of the (slices * Nq) rows in S
    const int lane = threadIdx.x % 32;
    if (row >= problem.slices * problem.shape.len_q) return;
    const float* s = problem.s + row * len_kv;

    float row_max = -INFINITY;
    for (std::int64_t j = lane; j < len_kv; j += 32) row_max = fmaxf(row_max, s[j]);
    row_max = max_across_warp(row_max);
    // A row of nothing but -inf: subtracting 0 gives exp(-inf) = 0, subtracting -inf would give NaN.
    const float shift = row_max == -INFINITY ? 0.0f : row_max;

    float row_sum = 0.0f;
    for (std::int64_t j = lane; j < len_kv; j += 32) row_sum += expf(s[j] - shift);
    row_sum = sum_across_warp(row_sum);

    const float inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
    T* p = problem.p + row * len_kv;
    for (std::int64_t j = lane; j < len_kv; j += 32) p[j] = from_float<T>(expf(s[j] - shift) * inverse_sum);
    // fmaxf drops a NaN but the sum keeps it. Without any visible key this is -inf + log(0) = -inf.
    if (lane == 0) problem.lse[problem.first_slice * problem.shape.len_q + row] = row_max + logf(row_sum);
}

// O = P V, one thread per element of O: neighbouring threads share P[i][j] and read neighbouring elements of
// V.
template <class T> __global__ void output_kernel(Problem<T> problem) {
    const Shape& shape = problem.shape;
    const std::int64_t element = global_thread();
    if (element >= problem.slices * shape.len_q * shape.head_dim) return;
    const std::int64_t d = element % shape.head_dim;
    const std::int64_t row = element / shape.head_dim;  // of the (slices * Nq) rows in P
    const std::int64_t i = row % shape.len_q;
    const std::int64_t slice = problem.first_slice + row / shape.len_q;
    const std::int64_t b = slice / shape.heads_q, h = slice % shape.heads_q;

    const T* p = problem.p + row * shape.len_kv;
    const T* v = row_of(problem.v, b, h / (shape.heads_q / shape.heads_kv), 0) + d;
    float acc = 0.0f;
    for (std::int64_t j = 0; j < shape.len_kv; ++j)
        acc += to_float(p[j]) * to_float(v[j * problem.v.stride_row]);
    row_of(problem.o, b, h, i)[d] = from_float<T>(acc);
}

// One thread for each of n elements. Nothing to do is no launch: a grid of zero blocks is an error in CUDA.
template <class T>
void launch_over(std::int64_t n, void (*kernel)(Problem<T>), const Problem<T>& problem, Stream stream) {
    if (n == 0) return;
    const std::int64_t blocks = (n + kThreads - 1) / kThreads;
    gpu::launch(kernel, dim3(checked_grid(blocks, kLimits)), dim3(kThreads), 0, stream, problem);
}

void check_workspace(const void* workspace, std::int64_t bytes, std::int64_t slice_bytes) {
    if (bytes < slice_bytes) {
        throw std::invalid_argument("the workspace has " + std::to_string(bytes) +
                                    " bytes; S and P of one (batch, head) slice need " +
                                    std::to_string(slice_bytes));
    }
    if (slice_bytes > 0 && !workspace) throw std::invalid_argument("workspace is null; S and P need memory");
    if (reinterpret_cast<std::uintptr_t>(workspace) % alignof(float) != 0) {
        throw std::invalid_argument("workspace is not aligned; S needs 4-byte alignment");
    }
}

// `bytes` of the workspace are used.
template <class T>
void check_workspace_is_apart(const ForwardArgs<T>& args, const void* workspace, std::int64_t bytes) {
    const Shape& s = args.shape;
    const detail::CheckedTensor used{"workspace", workspace, {1, 1, 1, bytes}, {0, 0, 0, 1}, 1, true};
    const TensorView<float> lse{args.lse, static_cast<std::int64_t>(s.heads_q) * s.len_q, s.len_q, 1};
    for (const auto& tensor : {detail::checked("q", args.q, s.batch, s.heads_q, s.len_q, s.head_dim),
                               detail::checked("k", args.k, s.batch, s.heads_kv, s.len_kv, s.head_dim),
                               detail::checked("v", args.v, s.batch, s.heads_kv, s.len_kv, s.head_dim),
                               detail::checked("o", args.o, s.batch, s.heads_q, s.len_q, s.head_dim),
                               detail::checked("lse", lse, s.batch, s.heads_q, s.len_q, 1)}) {
        detail::check_disjoint(used, tensor);
    }
}

}  // namespace

template <class T> std::int64_t slice_workspace_bytes(const Shape& shape) {
    detail::check_shape(shape, kLimits);  // which also keeps the product within 64 bits
    return static_cast<std::int64_t>(shape.len_q) * shape.len_kv *
           static_cast<std::int64_t>(sizeof(float) + sizeof(T));
}

template <class T> std::int64_t workspace_bytes(const Shape& shape) {
    const std::int64_t slice_bytes = slice_workspace_bytes<T>(shape);
    const std::int64_t slices = static_cast<std::int64_t>(shape.batch) * shape.heads_q;
    if (slice_bytes == 0 || slices == 0) return 0;
    return std::min(slices, std::max<std::int64_t>(1, kWorkspaceLimit / slice_bytes)) * slice_bytes;
}

template <class T> void attention_forward(const ForwardArgs<T>& args) {
    check_arguments(args, kLimits);
    gpu::DeviceBuffer<std::byte> workspace(static_cast<std::size_t>(workspace_bytes<T>(args.shape)));
    attention_forward(args, workspace.data(), static_cast<std::int64_t>(workspace.size()));
    gpu::synchronize();  // the kernels still use the workspace
}

template <class T> void attention_forward(const ForwardArgs<T>& args, void* workspace, std::int64_t bytes) {
    check_arguments(args, kLimits);
    const Shape& shape = args.shape;
    const std::int64_t slice_bytes = slice_workspace_bytes<T>(shape);
    const std::int64_t all_slices = static_cast<std::int64_t>(shape.batch) * shape.heads_q;
    if (all_slices == 0 || shape.len_q == 0) return;
    check_workspace(workspace, bytes, slice_bytes);

    const std::int64_t slice_threads = static_cast<std::int64_t>(shape.len_q) *
                                       std::max({shape.len_kv, shape.head_dim, 32});  // of the largest kernel
    std::int64_t per_chunk = std::min(all_slices, std::max<std::int64_t>(1, kMaxThreads / slice_threads));
    if (slice_bytes > 0) per_chunk = std::min(per_chunk, bytes / slice_bytes);
    check_workspace_is_apart(args, workspace, per_chunk * slice_bytes);
    Problem<T> problem{shape,
                       args.q,
                       args.k,
                       args.v,
                       args.o,
                       args.lse,
                       static_cast<float*>(workspace),
                       nullptr,
                       0,
                       0,
                       args.mask.kernel_diagonal(shape),
                       args.scale};
    for (std::int64_t first = 0; first < all_slices; first += per_chunk) {
        problem.first_slice = first;
        problem.slices = std::min(per_chunk, all_slices - first);
        const std::int64_t rows = problem.slices * shape.len_q;
        problem.p = reinterpret_cast<T*>(problem.s + rows * shape.len_kv);
        launch_over(rows * shape.len_kv, scores_kernel<T>, problem, args.stream);
        launch_over(rows * 32, softmax_kernel<T>, problem, args.stream);
        launch_over(rows * shape.head_dim, output_kernel<T>, problem, args.stream);
    }
}

template std::int64_t slice_workspace_bytes<float>(const Shape&);
template std::int64_t slice_workspace_bytes<fp16>(const Shape&);
template std::int64_t slice_workspace_bytes<bf16>(const Shape&);
template std::int64_t workspace_bytes<float>(const Shape&);
template std::int64_t workspace_bytes<fp16>(const Shape&);
template std::int64_t workspace_bytes<bf16>(const Shape&);
template void attention_forward(const ForwardArgs<float>&);
template void attention_forward(const ForwardArgs<fp16>&);
template void attention_forward(const ForwardArgs<bf16>&);
template void attention_forward(const ForwardArgs<float>&, void*, std::int64_t);
template void attention_forward(const ForwardArgs<fp16>&, void*, std::int64_t);
template void attention_forward(const ForwardArgs<bf16>&, void*, std::int64_t);

}  // namespace flash::step04
