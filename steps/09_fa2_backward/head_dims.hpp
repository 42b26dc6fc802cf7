// The head dimensions that step 09 is built for. FLASH_STEPS_HEAD_DIMS chooses them when the tree is
// configured.
#pragma once

// Bit D / 32 stands for D: 32, 64, 96, 128 or 256.
#ifndef FLASH_STEPS_HEAD_DIM_BITS
#define FLASH_STEPS_HEAD_DIM_BITS (1 << 64 / 32 | 1 << 128 / 32 | 1 << 256 / 32)
#endif

namespace flash::step09 {

constexpr bool is_built(int head_dim) {
    return (FLASH_STEPS_HEAD_DIM_BITS >> head_dim / 32 & 1) != 0;
}

constexpr int largest_head_dim() {
    int largest = 256;
    while (!is_built(largest)) largest -= 32;
    return largest;
}

}  // namespace flash::step09
