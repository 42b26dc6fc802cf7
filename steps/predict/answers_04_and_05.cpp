#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "problem.hpp"
#include "steps/04_naive_gpu/attention.hpp"
#include "steps/04_naive_gpu/softmax.hpp"
#include "steps/04_naive_gpu/vector_add.hpp"
#include "steps/05_flash_forward/attention.hpp"

namespace flash::predict {
namespace {

double live_threads_of_the_last_block() {
    const auto blocks = static_cast<std::size_t>(step04::blocks_for(300, 128));
    gpu::DeviceBuffer<int> live(blocks);
    std::vector<int> counts(blocks, 0);
    live.copy_from_host(counts.data());
    step04::count_live_threads(live.data(), 300);
    gpu::synchronize();
    live.copy_to_host(counts.data());
    return counts.back();
}

double unfused_bytes_over_fused() {
    constexpr int kRows = 16, kColumns = 1024;
    std::vector<float> host(kRows * kColumns);
    std::iota(host.begin(), host.end(), 0.0f);
    gpu::DeviceBuffer<float> x(host.size()), y(host.size()), row_max(kRows), row_sum(kRows);
    x.copy_from_host(host.data());
    const auto fused = count([&] { step04::softmax_fused(x.data(), y.data(), kRows, kColumns); });
    const auto unfused = count([&] {
        step04::softmax_unfused(x.data(), y.data(), row_max.data(), row_sum.data(), kRows, kColumns);
    });
    return bytes_per_launch(unfused) / bytes_per_launch(fused);
}

// Step 04's bytes for one head in bf16. The emulator cannot run a length like 16,384, so the lesson's formula
// stands in, once it has given what is counted at a length that the emulator can run.
double naive_operations_per_byte(double len) {
    const auto bytes = [](double n) { return n * n * (8 + 2 * 2) + 4 * 2 * n * 64 + 4 * n; };
    const double counted =
        bytes_per_launch(count<bf16>(step04::attention_forward<bf16>, {1, 1, 1, 128, 128, 64}));
    if (counted != bytes(128)) throw std::logic_error("step 04's bytes are not those of its formula");
    return 4 * len * len * 64 / bytes(len);
}

constexpr Shape kLong{1, 1, 1, 32768, 32768, 64};

double lse_bytes() {
    return static_cast<double>(kLong.len_q) * sizeof(*ForwardArgs<bf16>{}.lse);
}

// Two key tiles, four barriers in each.
double blocks_of_step_05() {
    return static_cast<double>(
               count<float>(step05::attention_forward<float>, {2, 3, 3, 100, 100, 64}).barriers) /
           (2 * 4);
}

// What 100 queries store more than 64: a row is D elements of O and one of L.
double rows_of_the_second_tile() {
    const auto stored = [](int len) {
        return static_cast<double>(count<float>(step05::attention_forward<float>, {1, 1, 1, len, 100, 64})
                                       .global_store_bytes_issued);
    };
    return (stored(100) - stored(64)) / (64 * 4 + 4);
}

double traffic_of_small_tiles_over_large() {
    const Shape s{1, 1, 1, 256, 256, 64};
    return bytes_per_block(count<float>(step05::attention_forward_small_tiles<float>, s)) /
           bytes_per_block(count<float>(step05::attention_forward<float>, s));
}

double shared_loads_per_multiply_add(Forward<float> forward) {
    const Shape s{1, 1, 1, 64, 64, 64};
    const double multiply_adds = 2.0 * s.len_q * s.len_kv * s.head_dim;
    return static_cast<double>(count<float>(forward, s).shared_load_bytes) / sizeof(float) / multiply_adds;
}

double lse_of_33_equal_keys() {
    auto call = testing::make_call<bf16>({"", {1, 1, 1, 1, 33, 64}}, true);
    set(call.q, [](int, int) { return 0.0f; });
    run<bf16>(call, step05::attention_forward<bf16>);
    return static_cast<double>(call.lse[static_cast<std::size_t>(call.kLseGuard)]);
}

}  // namespace

std::vector<Question> questions_04_and_05() {
    return {
        {"04",
         1,
         {{"blocks", [] { return static_cast<double>(step04::blocks_for(300, 128)); },
           "computed by step 04's blocks_for"},
          {"threads of the last block that have an element", live_threads_of_the_last_block,
           "counted by step 04's count_live_threads"}}},
        {"04", 2, {{"times the bytes", unfused_bytes_over_fused, kCounted, 2}}},
        {"04",
         3,
         {{"operations per byte", [] { return naive_operations_per_byte(16384); },
           "by the formula, which the emulator's count confirms", 2}}},
        {"04",
         4,
         {{"bytes of S and P", [] { return static_cast<double>(step04::slice_workspace_bytes<bf16>(kLong)); },
           "computed by step 04's slice_workspace_bytes"},
          {"bytes of L", lse_bytes, "the size of ForwardArgs::lse"}}},
        {"05",
         1,
         {{"blocks", blocks_of_step_05, kCounted},
          {"rows of the second tile", rows_of_the_second_tile, kCounted}}},
        {"05", 2, {{"times as many", traffic_of_small_tiles_over_large, kCounted, 2}}},
        {"05",
         3,
         {{"numbers for a multiply-add with 16 x 16",
           [] { return shared_loads_per_multiply_add(step05::attention_forward_small_tiles<float>); },
           kCounted, 4},
          {"with 64 x 64", [] { return shared_loads_per_multiply_add(step05::attention_forward<float>); },
           kCounted, 4}}},
        {"05", 4, {{"L", lse_of_33_equal_keys, "computed by step 05", 4}}},
    };
}

}  // namespace flash::predict
