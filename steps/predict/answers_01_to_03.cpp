#include <cmath>
#include <cstdint>
#include <vector>

#include "common/bench/inputs.hpp"
#include "common/bench/memory.hpp"
#include "questions.hpp"
#include "steps/01_safe_softmax/softmax.hpp"
#include "steps/02_online_softmax/softmax.hpp"
#include "steps/03_tiled_attention/attention.hpp"
#include "steps/03_tiled_attention/loop_order.hpp"

namespace flash::predict {
namespace {

constexpr const char* kStep01 = "computed by step 01's naive_softmax";
constexpr const char* kStep02 = "computed by step 02's update and merge";

template <class T> float first_of_naive_softmax(const std::vector<float>& row) {
    std::vector<T> x;
    for (const float value : row) x.push_back(from_float<T>(value));
    step01::naive_softmax(x.data(), x.data(), static_cast<std::int64_t>(x.size()));
    return to_float(x[0]);
}

// A row of one number has the softmax 1, as long as the exponential exists.
double first_fp16_failure() {
    for (std::uint16_t bits = 0; bits < 0x7c00u; ++bits) {
        const float x = float_from_fp16_bits(bits);
        if (first_of_naive_softmax<fp16>({x}) != 1) return static_cast<double>(x);
    }
    return INFINITY;
}

step02::State state_of(const std::vector<float>& row) {
    return step02::chain(row.data(), static_cast<std::int64_t>(row.size()));
}

// One head of attention on the CPU, on standard normal inputs.
struct Head {
    Head(int len_q, int len_kv, int head_dim)
        : shape{1, 1, 1, len_q, len_kv, head_dim},
          q(bench::random_normal(std::int64_t{len_q} * head_dim, 1)),
          k(bench::random_normal(std::int64_t{len_kv} * head_dim, 2)),
          v(bench::random_normal(std::int64_t{len_kv} * head_dim, 3)),
          o(q.size()),
          lse(static_cast<std::size_t>(len_q)) {}

    ForwardArgs<float> args() {
        return {shape,
                dense_bhnd<const float>(q.data(), 1, shape.len_q, shape.head_dim),
                dense_bhnd<const float>(k.data(), 1, shape.len_kv, shape.head_dim),
                dense_bhnd<const float>(v.data(), 1, shape.len_kv, shape.head_dim),
                dense_bhnd<float>(o.data(), 1, shape.len_q, shape.head_dim),
                lse.data(),
                Mask::none(),
                default_scale(shape.head_dim)};
    }

    Shape shape;
    std::vector<float> q, k, v, o, lse;
};

double extra_bytes(void (*forward)(const ForwardArgs<float>&), int len_q, int len_kv) {
    Head head(len_q, len_kv, 64);
    return static_cast<double>(bench::peak_extra_host_bytes([&] { forward(head.args()); }));
}

step03::Traffic traffic(step03::Traffic (*order)(const ForwardArgs<float>&, int, int)) {
    Head head(1024, 1024, 64);
    return order(head.args(), 64, 64);
}

double times_that_k_and_v_are_read() {
    return static_cast<double>(traffic(step03::fa2_forward).kv_loads) / (2 * 1024 * 64);
}

double fa1_elements_over_fa2() {
    return static_cast<double>(traffic(step03::fa1_forward).elements()) /
           static_cast<double>(traffic(step03::fa2_forward).elements());
}

}  // namespace

std::vector<Question> questions_01_to_03() {
    const auto halves = [] { return step02::merge(state_of({2, 1}), state_of({5, 3})); };
    std::vector<float> one_counts(1000, -1000.0f);
    one_counts[0] = 0;
    return {
        {"01", 1, {{"first fp16 score that fails", first_fp16_failure, kStep01, 7}}},
        {"01",
         2,
         {{"first result",
           [] {
               return double{first_of_naive_softmax<float>({88.5f, 88.5f})};
           },
           kStep01}}},
        {"01",
         3,
         {{"share of each", [] { return double{first_of_naive_softmax<fp16>(std::vector<float>(4096))}; },
           kStep01, 5}}},
        {"02",
         1,
         {{"running sum",
           [] {
               return double{state_of({2, 1, 5}).row_sum};
           },
           kStep02, 5}}},
        {"02",
         2,
         {{"maximum of all four", [halves] { return double{halves().row_max}; }, kStep02},
          {"sum of all four", [halves] { return double{halves().row_sum}; }, kStep02, 5}}},
        {"02",
         3,
         {{"least sum of 1000 elements", [one_counts] { return double{state_of(one_counts).row_sum}; },
           kStep02},
          {"largest", [] { return double{state_of(std::vector<float>(1000, -77.0f)).row_sum}; }, kStep02}}},
        {"03",
         1,
         {{"times as much for the whole matrix",
           [] {
               return extra_bytes(step03::attention_full, 512, 512) /
                      extra_bytes(step03::attention_full, 256, 256);
           },
           "measured at operator new"},
          {"times as much for one query tile",
           [] {
               return extra_bytes(step03::attention_forward, step03::BLOCK_Q, 512) /
                      extra_bytes(step03::attention_forward, step03::BLOCK_Q, 256);
           },
           "measured at operator new"}}},
        {"03", 2, {{"times", times_that_k_and_v_are_read, "counted by step 03's fa2_forward"}}},
        {"03",
         3,
         {{"elements of FlashAttention 1 / FlashAttention-2", fa1_elements_over_fa2,
           "counted by step 03's fa1_forward and fa2_forward", 3}}},
    };
}

}  // namespace flash::predict
