#include "steps/04_naive_gpu/softmax.hpp"

#include "steps/04_naive_gpu/softmax_rows.hpp"

namespace flash::step04 {
namespace {

// Pass 1 reads the row and finds (row_max, row_sum); pass 2 writes exp(x - row_max) / row_sum. ON_CHIP says
// where pass 2 reads from: the copy that pass 1 left in shared memory, or HBM again. A thread reads back only
// what it wrote itself, so the copy needs no barrier.
template <class T, int WIDTH, bool ON_CHIP>
__global__ void softmax_fused_kernel(const T* __restrict__ x, T* __restrict__ y, std::int64_t rows,
                                     int cols) {
    State* warps_smem = gpu::dynamic_smem<State>();
    T* row_smem = reinterpret_cast<T*>(warps_smem + kMaxWarps) + threadIdx.y * (ON_CHIP ? cols : 0);

    const std::int64_t row = row_of_thread();
    if (row >= rows) return;
    State state;
    for_each_chunk<WIDTH>(x + row * cols, cols, [&](int column, const Chunk<T, WIDTH>& chunk) {
        if constexpr (ON_CHIP) store_chunk(row_smem + column, chunk);
        state = update(state, chunk);
    });
    state = merge_across_row(state, warps_smem);

    const float inverse_sum = state.row_sum == 0.0f ? 0.0f : 1.0f / state.row_sum;  // 0: all entries are -inf
    const T* again = ON_CHIP ? row_smem : x + row * cols;
    for_each_chunk<WIDTH>(again, cols, [&](int column, Chunk<T, WIDTH> chunk) {
        for (int i = 0; i < WIDTH; ++i) {
            chunk.value[i] = from_float<T>(exp_below(to_float(chunk.value[i]), state.row_max) * inverse_sum);
        }
        store_chunk(y + row * cols + column, chunk);
    });
}

template <class T, int WIDTH>
void launch_fused(const T* x, T* y, std::int64_t rows, int cols, Stream stream) {
    const Launch shape = launch_for(rows, cols / WIDTH);
    const std::int64_t row_bytes = cols * static_cast<std::int64_t>(sizeof(T));
    if (row_bytes <= kOnChipRowBytes) {
        const std::size_t shared = kWarpStateBytes + shape.block.y * static_cast<std::size_t>(row_bytes);
        gpu::launch(softmax_fused_kernel<T, WIDTH, true>, shape.grid, shape.block, shared, stream, x, y, rows,
                    cols);
    } else {
        gpu::launch(softmax_fused_kernel<T, WIDTH, false>, shape.grid, shape.block, kWarpStateBytes, stream,
                    x, y, rows, cols);
    }
}

}  // namespace

template <class T> void softmax_fused(const T* x, T* y, std::int64_t rows, std::int64_t cols, Stream stream) {
    if (checked_bytes(x, y, rows, cols) == 0) return;
    if (rows_are_16_byte_aligned(x, y, cols)) {
        launch_fused<T, 16 / sizeof(T)>(x, y, rows, static_cast<int>(cols), stream);
    } else {
        launch_fused<T, 1>(x, y, rows, static_cast<int>(cols), stream);
    }
}

template void softmax_fused(const float*, float*, std::int64_t, std::int64_t, Stream);
template void softmax_fused(const fp16*, fp16*, std::int64_t, std::int64_t, Stream);
template void softmax_fused(const bf16*, bf16*, std::int64_t, std::int64_t, Stream);

}  // namespace flash::step04
