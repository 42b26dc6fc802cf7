// Two orders of the same two loops: FlashAttention's (keys outside) and FlashAttention-2's (queries outside),
// with every element they move between memory and a tile counted as it moves.
#pragma once

#include <cstdint>

#include "common/attention.hpp"

namespace flash::step03 {

// Elements moved between memory and tiles, and divisions of output elements, over all heads of a call.
struct Traffic {
    std::int64_t q_loads = 0;
    std::int64_t kv_loads = 0;
    std::int64_t o_loads = 0;
    std::int64_t o_stores = 0;
    std::int64_t state_loads = 0;   // row_max and row_sum
    std::int64_t state_stores = 0;  // row_max, row_sum and lse
    std::int64_t divisions = 0;

    std::int64_t elements() const {
        return q_loads + kv_loads + o_loads + o_stores + state_loads + state_stores;
    }
};

// Both compute O and L by the contract of common/attention.hpp (host pointers, D up to 256) in tiles of
// block_q x block_kv scores, and throw std::invalid_argument for a call that breaks it or a tile size
// outside 1 .. 1024.

// K/V outside, Q inside: arXiv:2205.14135, Algorithm 1. O, row_max and row_sum live in memory; each pass of
// the inner loop loads them, brings O to its divided form and stores them again.
Traffic fa1_forward(const ForwardArgs<float>& args, int block_q, int block_kv);

// Q outside, K/V inside: arXiv:2307.08691, Algorithm 1. O, row_max and row_sum stay in the tile until the
// row is finished; O is divided once.
Traffic fa2_forward(const ForwardArgs<float>& args, int block_q, int block_kv);

}  // namespace flash::step03
