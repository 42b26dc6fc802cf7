// Step 07 measured: copies that run ahead of the arithmetic, swizzled shared memory, larger query tiles.
#include "attention.hpp"
#include "common/bench/forward_bench.hpp"
#include "common/gpu/device.hpp"

int main(int argc, char** argv) {
    using namespace flash;
    bench::GpuForwardStep step{{"07", "the next tiles are copied while this one is computed"}};
    step.max_head_dim = 128;
    step.half = {step07::attention_forward<fp16>};
    step.bfloat = {step07::attention_forward<bf16>};
    step.per_block = bench::fused_per_block([](int head_dim) {
        return step07::chosen_tile_shape(head_dim, gpu::device_info().shared_per_block_optin).block_q;
    });
    step.per_launch = bench::fused_per_launch();
    return bench::forward_bench(argc, argv, {step});
}
