// Step 06 measured: the products on tensor cores.
#include "attention.hpp"
#include "common/bench/forward_bench.hpp"

int main(int argc, char** argv) {
    using namespace flash;
    bench::GpuForwardStep step{{"06", "both products on tensor cores; P stays in registers"}};
    step.max_head_dim = 128;
    step.half = {step06::attention_forward<fp16>};
    step.bfloat = {step06::attention_forward<bf16>};
    step.per_block = bench::fused_per_block([](int) { return 64; });
    step.per_launch = bench::fused_per_launch();
    return bench::forward_bench(argc, argv, {step});
}
