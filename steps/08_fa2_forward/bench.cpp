// Step 08 measured: the FlashAttention-2 forward.
#include "attention.hpp"
#include "common/bench/forward_bench.hpp"

int main(int argc, char** argv) {
    using namespace flash;
    bench::GpuForwardStep step{
        {"08", "tiles beyond the diagonal are skipped and masks are left to the tiles on it"}};
    step.half = {step08::attention_forward<fp16>};
    step.bfloat = {step08::attention_forward<bf16>};
    step.per_block = bench::fused_per_block([](int) { return 128; });
    step.per_launch = bench::fused_per_launch();
    return bench::forward_bench(argc, argv, {step});
}
