// The whole bench of a GPU step's attention_forward, so that a step's bench.cpp only names its functions.
//
// On a GPU: checks, then times bf16 and fp16 (and fp32 where the step has it) and reports TFLOP/s and peak
// extra memory. On the emulator: checks, then counts, and sets the counts beside what the step's model
// predicts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/attention.hpp"
#include "common/bench/session.hpp"
#include "common/gpu/device.hpp"
#include "common/types.hpp"

namespace flash::bench {

template <class T> using Forward = std::function<void(const ForwardArgs<T>&)>;

// One element type of a step. `prepare` is for steps that need memory of their own: it returns the function
// to time with that memory already there.
template <class T> struct GpuForward {
    Forward<T> call;
    std::function<Forward<T>(const Shape&)> prepare = {};
};

// Bytes of global memory one call moves, by formula, to be compared with what the emulator counts.
using TrafficModel = std::function<double(const Shape&, int element_bytes)>;

struct GpuForwardStep {
    StepInfo info;
    std::string variant = "forward";
    int max_head_dim = 256;
    int max_len = 16384;          // longest sequence that is timed on a GPU
    GpuForward<float> fp32 = {};  // without a call: the step has no such function
    GpuForward<fp16> half = {};
    GpuForward<bf16> bfloat = {};
    TrafficModel per_block = {};              // each byte once per thread block; no mask
    TrafficModel per_launch = {};             // each byte once per kernel launch; no mask
    std::function<void(Session&)> more = {};  // what only this step measures
};

// Models of the fused kernels (step 05 on). Each block reads its Q tile, all of K and V, and writes its tile
// of O and L: 2 Nq D + ceil(Nq / BLOCK_Q) 2 Nk D elements and 4 Nq bytes a head.
TrafficModel fused_per_block(std::function<int(int head_dim)> block_q);
// Every tensor once: 4 N D elements and 4 N bytes a head.
TrafficModel fused_per_launch();

// One entry per version of the step; the first one's info stands for the program.
int forward_bench(int argc, char** argv, const std::vector<GpuForwardStep>& versions);

}  // namespace flash::bench
