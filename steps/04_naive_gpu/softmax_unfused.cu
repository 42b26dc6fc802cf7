#include "steps/04_naive_gpu/softmax.hpp"
#include "steps/04_naive_gpu/softmax_rows.hpp"

namespace flash::step04 {
namespace {

// The unfused kernels. Each reads a whole matrix, and two of them write one.
template <class T, int WIDTH>
__global__ void row_max_kernel(const T* __restrict__ x, float* __restrict__ row_max, std::int64_t rows,
                               int cols) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    State state;
    for_each_chunk<WIDTH>(x + row * cols, cols, [&](int, const Chunk<T, WIDTH>& chunk) {
        state.row_max = max_of(chunk, state.row_max);
    });
    state = merge_across_row(state, gpu::dynamic_smem<State>());
    if (threadIdx.x == 0) row_max[row] = state.row_max;
}

template <class T, int WIDTH>
__global__ void exp_kernel(const T* __restrict__ x, const float* __restrict__ row_max, T* __restrict__ y,
                           std::int64_t rows, int cols) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    const float max_of_row = row_max[row];
    for_each_chunk<WIDTH>(x + row * cols, cols, [&](int column, Chunk<T, WIDTH> chunk) {
        for (int i = 0; i < WIDTH; ++i) {
            chunk.value[i] = from_float<T>(exp_below(to_float(chunk.value[i]), max_of_row));
        }
        store_chunk(y + row * cols + column, chunk);
    });
}

template <class T, int WIDTH>
__global__ void row_sum_kernel(const T* __restrict__ y, float* __restrict__ row_sum, std::int64_t rows,
                               int cols) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    State state{0.0f, 0.0f};  // a fixed maximum of 0 turns the merge into a plain sum
    for_each_chunk<WIDTH>(y + row * cols, cols, [&](int, const Chunk<T, WIDTH>& chunk) {
        for (int i = 0; i < WIDTH; ++i) state.row_sum += to_float(chunk.value[i]);
    });
    state = merge_across_row(state, gpu::dynamic_smem<State>());
    if (threadIdx.x == 0) row_sum[row] = state.row_sum;
}

template <class T, int WIDTH>
__global__ void divide_kernel(T* y, const float* __restrict__ row_sum, std::int64_t rows, int cols) {
    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    const float sum = row_sum[row];
    const float inverse_sum = sum == 0.0f ? 0.0f : 1.0f / sum;
    for_each_chunk<WIDTH>(y + row * cols, cols, [&](int column, Chunk<T, WIDTH> chunk) {
        for (int i = 0; i < WIDTH; ++i) {
            chunk.value[i] = from_float<T>(to_float(chunk.value[i]) * inverse_sum);
        }
        store_chunk(y + row * cols + column, chunk);
    });
}

template <class T, int WIDTH>
void launch_unfused(const T* x, T* y, float* row_max, float* row_sum, std::int64_t rows, int cols,
                    Stream stream) {
    const auto [grid, block] = launch_for(rows, cols / WIDTH);
    gpu::launch(row_max_kernel<T, WIDTH>, grid, block, kWarpStateBytes, stream, x, row_max, rows, cols);
    gpu::launch(exp_kernel<T, WIDTH>, grid, block, 0, stream, x, row_max, y, rows, cols);
    gpu::launch(row_sum_kernel<T, WIDTH>, grid, block, kWarpStateBytes, stream, y, row_sum, rows, cols);
    gpu::launch(divide_kernel<T, WIDTH>, grid, block, 0, stream, y, row_sum, rows, cols);
}

}  // namespace

template <class T>
void softmax_unfused(const T* x, T* y, float* row_max, float* row_sum, std::int64_t rows, std::int64_t cols,
                     Stream stream) {
    if (checked_bytes(x, y, rows, cols) == 0) return;
    const Region maxima = region("row_max", row_max, rows), sums = region("row_sum", row_sum, rows);
    for (const Region& workspace : {maxima, sums}) {
        check_memory(workspace);
        check_disjoint(workspace, region("x", x, rows * cols));
        check_disjoint(workspace, region("y", y, rows * cols));
    }
    check_disjoint(sums, maxima);
    if (rows_are_16_byte_aligned(x, y, cols)) {
        launch_unfused<T, 16 / sizeof(T)>(x, y, row_max, row_sum, rows, static_cast<int>(cols), stream);
    } else {
        launch_unfused<T, 1>(x, y, row_max, row_sum, rows, static_cast<int>(cols), stream);
    }
}

template void softmax_unfused(const float*, float*, float*, float*, std::int64_t, std::int64_t, Stream);
template void softmax_unfused(const fp16*, fp16*, float*, float*, std::int64_t, std::int64_t, Stream);
template void softmax_unfused(const bf16*, bf16*, float*, float*, std::int64_t, std::int64_t, Stream);

}  // namespace flash::step04
