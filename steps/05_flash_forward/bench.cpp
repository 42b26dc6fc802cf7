// Step 05 measured: the fused kernel, and the same kernel with tiles of 16 x 16.
#include "attention.hpp"
#include "common/bench/forward_bench.hpp"

int main(int argc, char** argv) {
    using namespace flash;
    bench::GpuForwardStep step{{"05", "one fused kernel: S and P never leave the chip"}};
    step.fp32 = {step05::attention_forward<float>};
    step.half = {step05::attention_forward<fp16>};
    step.bfloat = {step05::attention_forward<bf16>};
    step.per_block = bench::fused_per_block([](int head_dim) { return head_dim <= 128 ? 64 : 32; });
    step.per_launch = bench::fused_per_launch();

    bench::GpuForwardStep small = step;
    small.variant = "forward, 16 x 16 tiles";
    small.fp32 = {step05::attention_forward_small_tiles<float>};
    small.half = {};
    small.bfloat = {};
    small.per_block = bench::fused_per_block([](int) { return 16; });
    return bench::forward_bench(argc, argv, {step, small});
}
