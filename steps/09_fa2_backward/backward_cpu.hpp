// The backward in tiles on the CPU, short and plain: the loops that the GPU kernel has.
#pragma once

#include "common/attention.hpp"

namespace flash::step09 {

// dQ, dK and dV of the whole contract in fp32; host pointers, any head dimension up to 256. Takes its scratch
// memory itself and needs no workspace; bitwise equal from run to run in either mode.
// Throws std::invalid_argument for a call that breaks the contract; nothing is then written.
// Source: Dao, "FlashAttention-2", arXiv:2307.08691, algorithm 2.
void attention_backward_cpu(const BackwardArgs<float>& args);

}  // namespace flash::step09
