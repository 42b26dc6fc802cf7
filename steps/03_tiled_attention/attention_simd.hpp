// The tiled algorithm of attention.hpp, made fast. Read attention.cpp first: the mathematics and
// the tiles are the same; what differs is how the numbers lie in memory and how many a single instruction
// works on.
#pragma once

#include <string_view>
#include <vector>

#include "common/attention.hpp"

namespace flash::step03 {

// Writes O and L as attention_forward does, for D up to 256; the contract and its errors are those of
// common/attention.hpp.
//
// Extra memory: K and V are copied once per key head into the order the inner loops read, so unlike
// attention_forward this needs O(Nk * D): 4 * (Nk rounded up * D + Nk * D rounded up) bytes a key head,
// rounded to the kernel's strip of at most 64, held for as many key heads at a time as there are threads
// (for more when they are small, up to 4 MB in all). Beside that, 250 KB of stack a thread.
void attention_simd(const ForwardArgs<float>& args);

// The same with an instruction set of the caller's choice, one of simd_instruction_sets().
void attention_simd(const ForwardArgs<float>& args, std::string_view instruction_set);

// What this processor can run, best first: "avx512", "avx2" and "baseline" (SSE2, NEON, ...) on x86-64.
std::vector<std::string_view> simd_instruction_sets();

}  // namespace flash::step03
