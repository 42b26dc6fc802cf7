// Attention on the CPU: over the N x N matrix of scores, and in tiles that never hold it.
// Both follow the contract of common/attention.hpp, with host pointers and any head dimension up to 256.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step03 {

inline constexpr int BLOCK_Q = 64;   // query rows of a tile
inline constexpr int BLOCK_KV = 64;  // keys of a tile

// O and L through the whole matrix of scores, one head at a time. Shapes and units: ForwardArgs.
// Throws std::invalid_argument for a call that breaks the contract, and for a score matrix of more than
// MAX_SCORE_BYTES; std::bad_alloc when the matrix does not fit in memory. Nothing is written in either case.
void attention_full(const ForwardArgs<float>& args);
inline constexpr std::int64_t MAX_SCORE_BYTES = std::int64_t{4} << 30;

// Bytes of the score matrix of one head: 4 Nq Nk. All the memory attention_full takes beside its arguments.
std::int64_t full_extra_bytes(const Shape& shape);

// O and L in tiles of BLOCK_Q x BLOCK_KV scores: FlashAttention-2, arXiv:2307.08691, Algorithm 1.
// Throws std::invalid_argument for a call that breaks the contract; nothing is then written.
void attention_forward(const ForwardArgs<float>& args);

// Bytes one thread of attention_forward takes beside its arguments:
// 4 (BLOCK_Q BLOCK_KV + BLOCK_Q D + 2 BLOCK_Q), whatever Nq and Nk are.
std::int64_t tiled_extra_bytes(int head_dim);

}  // namespace flash::step03
