// Each device primitive alone, called from the host: one warp (or block) runs it on data that the test
// chooses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace flash::primitives {

using Words = std::vector<std::uint32_t>;

// rows: 32 rows of 8 16-bit elements, row r at 16 r bytes of shared memory. Lane i names row order[i].
// Returns r[0..3] of each lane.
Words ldmatrix(const std::vector<std::uint16_t>& rows, const Words& order, bool transposed);

// D = A B + C of one warp. a, b, c: the operands of each lane, 4, 2 and 4 words a lane. Returns d, 4 a lane.
template <class T>
std::vector<float> mma_fragments(const Words& a, const Words& b, const std::vector<float>& c);

// D = A B with A 16 x 16 and B 16 x 8, both row-major in shared memory, through ldmatrix (B transposed on the
// way), mma, and the layout of the accumulator.
template <class T> std::vector<float> multiply(const std::vector<T>& a, const std::vector<T>& b);

// (A B) B2 with A B rounded to T and kept in registers as the A operand of the second product. B 16 x 16, B2
// 16 x 8.
template <class T>
std::vector<float> multiply_twice(const std::vector<T>& a, const std::vector<T>& b, const std::vector<T>& b2);

// Lane i copies bytes[i] of the 16 bytes at 16 i, by cp.async. Returns the 512 bytes of shared memory
// afterwards.
std::vector<std::uint8_t> cp_async(const std::vector<std::uint8_t>& source, const std::vector<int>& bytes);

// Two groups in flight, the first used while the second may still be on its way. Returns both, first group
// first.
std::vector<std::uint8_t> cp_async_two_groups(const std::vector<std::uint8_t>& source);

// What each of the 32 lanes receives when lane i passes value[i].
enum class Shuffle { kIndexed, kXor, kUp, kDown };
std::vector<float> shuffle(Shuffle kind, const std::vector<float>& value, int argument, int width);

struct Votes {
    std::uint32_t any, all, ballot;
};
Votes vote(const std::vector<int>& predicate);

template <class T> Words pack2(const std::vector<float>& low, const std::vector<float>& high);

// Each packed pair taken apart again: low values, then high values.
template <class T> std::vector<float> unpack2(const Words& packed);

// One block of 2 * pairs warps: warp i < pairs hands `rounds` numbers to warp pairs + i through shared memory
// and an mbarrier of the two. Returns what each receiving
// thread has got, round after round: rounds x (32 * pairs).
std::vector<int> hand_over(int pairs, int rounds);

// `blocks` blocks of 32 lanes each add x[4 * lane ..] to the same 128 floats.
std::vector<float> atomic_add_x4(const std::vector<float>& x, int blocks);

std::vector<float> exp2_approx(const std::vector<float>& x);

// Every thread of a grid adds its number to one counter of each type and takes part in one maximum.
struct AtomicResults {
    int sum_int, max_int;
    unsigned sum_unsigned, max_unsigned;
    unsigned long long sum_long;
    float sum_float;
    int shared_sum;  // gathered per block in shared memory first
};
AtomicResults atomics(int blocks, int threads);

// A sum over one block through shared memory with a barrier per halving.
float block_sum(const std::vector<float>& x);

// Where chunk c of row r lies in a tile of `rows` rows, in bytes: element r * (head_dim / 8) + c of
// `swizzled`. The same place reached from chunk c % 2 by along_row: `along`.
struct Swizzle {
    std::vector<int> swizzled, along;
};
Swizzle swizzle(int head_dim, int rows);

// Copies 16 bytes at a time, and 8.
std::vector<float> copy_float4(const std::vector<float>& x);
std::vector<float> copy_float2(const std::vector<float>& x);

}  // namespace flash::primitives
