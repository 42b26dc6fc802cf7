// What the fused and the unfused row softmax share: how threads load a row, how their partial results meet,
// the launch shape and the argument checks. Device code, for softmax.cu and softmax_unfused.cu only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/gpu/gpu.hpp"
#include "common/types.hpp"

namespace flash::step04 {

constexpr float kLog2E = 1.4426950408889634f;
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kMaxWarps = 32;      // of a block
constexpr int kLoadsInFlight = 4;  // independent loads per thread: one at a time would leave the memory idle
constexpr int kRowsPerBlock = 8;   // when a warp does a row
constexpr std::int64_t kMaxCols = 1 << 30;
constexpr std::int64_t kMaxBlocks = 0x7fffffff;  // of a grid

// What one thread loads at once: 16 bytes where the rows' alignment allows, one element where it does not.
template <class T, int WIDTH> struct Chunk { T value[WIDTH]; };

template <class T, int WIDTH> __device__ __forceinline__ Chunk<T, WIDTH> load_chunk(const T* from) {
    Chunk<T, WIDTH> chunk;
    if constexpr (WIDTH == 1) {
        chunk.value[0] = *from;
    } else {
        static_assert(sizeof(chunk) == sizeof(uint4), "the widest load is 16 bytes");
        const uint4 bits = *reinterpret_cast<const uint4*>(from);
        std::memcpy(&chunk, &bits, sizeof(chunk));
    }
    return chunk;
}

template <class T, int WIDTH>
__device__ __forceinline__ void store_chunk(T* to, const Chunk<T, WIDTH>& chunk) {
    if constexpr (WIDTH == 1) {
        *to = chunk.value[0];
    } else {
        uint4 bits;
        std::memcpy(static_cast<void*>(&bits), &chunk, sizeof(bits));
        *reinterpret_cast<uint4*>(to) = bits;
    }
}

// Calls f(column, chunk) for this thread's chunks of a row. The loads of a batch are issued before the first
// is used.
template <int WIDTH, class T, class F>
__device__ __forceinline__ void for_each_chunk(const T* row, int cols, F f) {
    const int stride = static_cast<int>(blockDim.x) * WIDTH;
    for (int first = static_cast<int>(threadIdx.x) * WIDTH; first < cols; first += kLoadsInFlight * stride) {
        Chunk<T, WIDTH> batch[kLoadsInFlight];
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i) {
            if (first + i * stride < cols) batch[i] = load_chunk<T, WIDTH>(row + first + i * stride);
        }
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i) {
            if (first + i * stride < cols) f(first + i * stride, batch[i]);
        }
    }
}

// exp(x - row_max) for x <= row_max. A maximum of -inf (nothing but masked entries so far) is replaced by 0:
// then -inf gives 0 instead of -inf - -inf = NaN, while NaN stays NaN.
__device__ __forceinline__ float exp_below(float x, float row_max) {
    const float shift = row_max == -INFINITY ? 0.0f : row_max;
    return gpu::exp2_approx((x - shift) * kLog2E);
}

// The running pair of the online softmax (step 02).
struct State {
    float row_max = -INFINITY;
    float row_sum = 0.0f;  // of exp(x - row_max)
};

template <class T, int WIDTH>
__device__ __forceinline__ float max_of(const Chunk<T, WIDTH>& chunk, float row_max) {
    for (int i = 0; i < WIDTH; ++i) row_max = fmaxf(row_max, to_float(chunk.value[i]));
    return row_max;
}

template <class T, int WIDTH>
__device__ __forceinline__ State update(State state, const Chunk<T, WIDTH>& chunk) {
    const float row_max = max_of(chunk, state.row_max);
    float row_sum = state.row_sum * exp_below(state.row_max, row_max);
    for (int i = 0; i < WIDTH; ++i) row_sum += exp_below(to_float(chunk.value[i]), row_max);
    return {row_max, row_sum};
}

// Merges the states of a warp's 32 lanes; every lane gets the result.
__device__ __forceinline__ State merge_across_warp(State state) {
    float row_max = state.row_max;
    for (int offset = 16; offset > 0; offset /= 2) {
        row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, offset));
    }
    float row_sum = state.row_sum * exp_below(state.row_max, row_max);
    for (int offset = 16; offset > 0; offset /= 2) row_sum += __shfl_xor_sync(kFullWarp, row_sum, offset);
    return {row_max, row_sum};
}

// Merges the states of all threads of a row (threadIdx.x); every thread gets the result.
__device__ __forceinline__ State merge_across_row(State state, State* warps_smem) {
    state = merge_across_warp(state);
    if (blockDim.x == 32) return state;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
        warps_smem[warp].row_max = state.row_max;
        warps_smem[warp].row_sum = state.row_sum;
    }
    __syncthreads();  // every warp's state is there
    State other;
    if (lane < blockDim.x / 32) {
        other.row_max = warps_smem[lane].row_max;
        other.row_sum = warps_smem[lane].row_sum;
    }
    return merge_across_warp(other);
}

// The row that this thread works on. Beyond the last row only where a warp does a row, so that no barrier
// waits for it.
__device__ __forceinline__ std::int64_t row_of_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// A short row is one warp's work, a longer one a block's. About two batches of loads per thread, and blocks
// of at most 384 threads: three of them fit an SM's registers, and while one waits for its row another
// writes.
struct Launch {
    dim3 grid, block;
};

inline Launch launch_for(std::int64_t rows, int chunks) {
    const bool warp_per_row = chunks <= 32 * kLoadsInFlight;
    const unsigned rows_per_block = warp_per_row ? kRowsPerBlock : 1;
    const int wanted = (chunks / (2 * kLoadsInFlight) + 31) / 32 * 32;
    const auto threads = warp_per_row ? 32u : static_cast<unsigned>(std::clamp(wanted, 64, 384));
    const std::int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
    if (blocks > kMaxBlocks) {
        throw std::invalid_argument("rows is " + std::to_string(rows) + ", which needs " +
                                    std::to_string(blocks) + " blocks; a grid has at most 2^31 - 1");
    }
    return {dim3(static_cast<unsigned>(blocks)), dim3(threads, rows_per_block)};
}

constexpr std::size_t kWarpStateBytes = kMaxWarps * sizeof(State);

[[noreturn]] inline void refuse(const std::string& sentence) {
    throw std::invalid_argument(sentence);
}

// Memory of a call, by the name of its argument; it has elements.
struct Region {
    const char* name;
    const void* data;
    std::int64_t bytes;
    std::int64_t element_bytes;
};

inline void check_memory(const Region& region) {
    const std::string name = region.name;
    if (!region.data) refuse(name + " is null; a matrix with elements needs memory");
    if (reinterpret_cast<std::uintptr_t>(region.data) % static_cast<std::uintptr_t>(region.element_bytes) !=
        0) {
        refuse(name + " is not aligned; " + std::to_string(region.element_bytes) +
               "-byte alignment is needed");
    }
}

inline void check_disjoint(const Region& output, const Region& other) {
    const auto begin = reinterpret_cast<std::uintptr_t>(output.data);
    const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data);
    if (begin < other_begin + static_cast<std::uintptr_t>(other.bytes) &&
        other_begin < begin + static_cast<std::uintptr_t>(output.bytes)) {
        refuse(std::string(output.name) + " overlaps " + other.name + "; it needs memory of its own");
    }
}

template <class T> Region region(const char* name, const T* data, std::int64_t elements) {
    return {name, data, elements * static_cast<std::int64_t>(sizeof(T)), sizeof(T)};
}

// Bytes of the matrix; 0 means nothing to do.
template <class T> std::int64_t checked_bytes(const T* x, const T* y, std::int64_t rows, std::int64_t cols) {
    if (rows < 0) refuse("rows is " + std::to_string(rows) + "; it must be >= 0");
    if (cols < 0) refuse("cols is " + std::to_string(cols) + "; it must be >= 0");
    if (cols > kMaxCols) {
        refuse("cols is " + std::to_string(cols) + "; at most " + std::to_string(kMaxCols) +
               " are accepted, so that a column fits in 32 bits");
    }
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(rows, cols, &bytes) ||
        __builtin_mul_overflow(bytes, static_cast<std::int64_t>(sizeof(T)), &bytes)) {
        refuse("rows is " + std::to_string(rows) + " and cols " + std::to_string(cols) +
               "; the matrix must fit in 2^63 bytes");
    }
    if (bytes == 0) return 0;
    const Region input = region("x", x, rows * cols), output = region("y", y, rows * cols);
    check_memory(input);
    check_memory(output);
    check_disjoint(output, input);
    return bytes;
}

template <class T> bool rows_are_16_byte_aligned(const T* x, const T* y, std::int64_t cols) {
    const auto together = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y) |
                          static_cast<std::uintptr_t>(cols) * sizeof(T);
    return together % 16 == 0;
}

}  // namespace flash::step04
