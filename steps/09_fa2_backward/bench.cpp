// Step 09 measured: the FlashAttention-2 backward, dQ by atomics (fast) and by a second pass (deterministic).
#include "attention.hpp"
#include "common/bench/backward_bench.hpp"

namespace {

// Whole tiles, no mask. The tiles of the default head dimensions: keys of the block that sums dK and dV,
// queries of the block that sums dQ in the second pass.
double keys_of_a_block(int head_dim) {
    return head_dim <= 128 ? 128 : 64;
}
double queries_of_a_dq_block(int head_dim) {
    return head_dim <= 128 ? 128 : 64;
}

// In bytes: a tensor of a head is 2 N D, and a number for each row, in fp32, 4 N.
double bytes(const flash::Shape& s, bool deterministic, double times_queries, double times_keys) {
    const double tensor = 2.0 * s.len_q * s.head_dim, numbers = 4.0 * s.len_q;
    // Reads O, dO and L; writes the row shift, delta and, in the fast mode, a dQ of zeros in fp32.
    const double prepare = 2 * tensor + 3 * numbers + (deterministic ? 0 : 2 * tensor);
    // K and V once; for every tile of keys Q, dO, row shift and delta, and dQ added to in fp32; dK and dV.
    const double sums = 2 * tensor +
                        times_queries * (2 * tensor + 2 * numbers + (deterministic ? 0 : 2 * tensor)) +
                        2 * tensor;
    // The fp32 dQ read and written in 16 bits; or Q, dO and the numbers once, K and V for every tile of
    // queries, and dQ.
    const double finish =
        deterministic ? 2 * tensor + 2 * numbers + times_keys * 2 * tensor + tensor : 3 * tensor;
    return s.batch * s.heads_q * (prepare + sums + finish);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace flash;
    bench::GpuBackwardStep step{
        {"09", "the backward: P rebuilt from L, five products a tile, nothing N x N"}};
    step.half = {step09::attention_forward<fp16>, step09::attention_backward<fp16>,
                 step09::backward_workspace_bytes};
    step.bfloat = {step09::attention_forward<bf16>, step09::attention_backward<bf16>,
                   step09::backward_workspace_bytes};
    step.per_block = [](const Shape& s, int, bool deterministic) {
        return bytes(s, deterministic, s.len_kv / keys_of_a_block(s.head_dim),
                     s.len_q / queries_of_a_dq_block(s.head_dim));
    };
    step.per_launch = [](const Shape& s, int, bool deterministic) { return bytes(s, deterministic, 1, 1); };
    return bench::backward_bench(argc, argv, step);
}
