// The whole bench of a step's attention_backward, beside forward_bench.hpp: variant "fast" and variant
// "deterministic", each checked and then timed on a GPU or counted on the emulator.
#pragma once

#include <functional>

#include "common/bench/backward_problem.hpp"
#include "common/bench/session.hpp"
#include "common/types.hpp"

namespace flash::bench {

// Bytes of global memory one call moves, by formula, without a mask and with whole tiles.
using BackwardTraffic = std::function<double(const Shape&, int element_bytes, bool deterministic)>;

struct GpuBackwardStep {
    StepInfo info;
    int max_head_dim = 256;
    int max_len = 16384;  // longest sequence that is timed on a GPU
    BackwardFunctions<fp16> half = {};
    BackwardFunctions<bf16> bfloat = {};
    BackwardTraffic per_block = {};   // each byte once per thread block
    BackwardTraffic per_launch = {};  // each byte once per kernel launch
};

int backward_bench(int argc, char** argv, const GpuBackwardStep& step);

}  // namespace flash::bench
