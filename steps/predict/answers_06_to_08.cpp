#include <cmath>
#include <cstdint>
#include <vector>

#include "common/reference.hpp"
#include "problem.hpp"
#include "steps/06_tensor_cores/attention.hpp"
#include "steps/07_async_pipeline/attention.hpp"
#include "steps/08_fa2_forward/attention.hpp"

namespace flash::predict {
namespace {

double as_number(std::uint64_t n) {
    return static_cast<double>(n);
}

// Shared memory serves the four matrices of an ldmatrix in four passes; a conflict is a pass more.
constexpr double kMatrices = 4;
double passes_of_ldmatrix(Forward<bf16> forward, int head_dim) {
    const auto counted = count<bf16>(forward, {1, 1, 1, 64, 64, head_dim});
    return kMatrices + as_number(counted.shared_bank_conflicts) / as_number(counted.ldmatrix);
}

// Root mean square of step 06's error and of the error that rounding O alone would make.
struct RoundingErrors {
    double step = 0, output = 0;
};
template <class T> RoundingErrors rounding_errors() {
    const Shape s{1, 1, 1, 128, 256, 64};
    auto call = testing::make_call<T>({"", s}, true);
    const auto exact = reference_forward(call.host_args());
    run<T>(call, step06::attention_forward<T>);
    RoundingErrors sum;
    for (int i = 0; i < s.len_q; ++i) {
        for (int d = 0; d < s.head_dim; ++d) {
            const double o = exact.o[static_cast<std::size_t>(i * s.head_dim + d)];
            const double got =
                double{to_float(call.o.memory[static_cast<std::size_t>(call.o.index(0, 0, i, d))])};
            sum.step += std::pow(got - o, 2);
            sum.output += std::pow(double{to_float(from_float<T>(static_cast<float>(o)))} - o, 2);
        }
    }
    return {std::sqrt(sum.step), std::sqrt(sum.output)};
}

std::vector<Question> questions_06() {
    return {
        {"06",
         1,
         {{"mma",
           [] {
               return as_number(count<bf16>(step06::attention_forward<bf16>, {1, 1, 1, 256, 256, 64}).mma);
           },
           kCounted}}},
        {"06",
         2,
         {{"passes", [] { return passes_of_ldmatrix(step06::attention_forward<bf16>, 64); }, kCounted}}},
        {"06",
         3,
         {{"times the error of rounding O alone",
           [] {
               const auto errors = rounding_errors<bf16>();
               return errors.step / errors.output;
           },
           "measured against double precision", 2},
          {"times the error of fp16",
           [] { return rounding_errors<bf16>().step / rounding_errors<fp16>().step; },
           "measured against double precision", 1}}},
    };
}

double shared_bytes(int stages) {
    return as_number(step07::TileShape{128, 128, 64, 4, stages}.shared_bytes());
}

double barriers_of_a_block() {
    const step07::TileShape shape = step07::chosen_tile_shape(128, gpu::device_info().shared_per_block_optin);
    return as_number(
        count<bf16>(step07::attention_forward<bf16>, {1, 1, 1, shape.block_q, 1024, 128}).barriers);
}

// K and V are all that blocks copy, besides Q, which they copy once.
double bytes_of_k_and_v() {
    const Shape s{1, 1, 1, 1024, 1024, 128};
    return as_number(count<bf16>(step07::attention_forward<bf16>, s).cp_async_bytes) -
           2.0 * s.len_q * s.head_dim;
}

std::vector<Question> questions_07() {
    return {
        {"07",
         1,
         {{"bytes with two buffers", [] { return shared_bytes(2); }, "computed by step 07's TileShape"},
          {"bytes with three", [] { return shared_bytes(3); }, "computed by step 07's TileShape"}}},
        {"07", 2, {{"barriers of a block", barriers_of_a_block, kCounted}}},
        {"07",
         3,
         {{"passes for the eight rows",
           [] { return passes_of_ldmatrix(step06::attention_forward<bf16>, 128) / kMatrices; }, kCounted},
          {"passes with the swizzle",
           [] { return passes_of_ldmatrix(step07::attention_forward<bf16>, 128) / kMatrices; }, kCounted}}},
        {"07", 4, {{"bytes of K and V", bytes_of_k_and_v, kCounted}}},
    };
}

constexpr Shape kLesson{1, 1, 1, 1024, 1024, 128};
constexpr int kBlockQ = 128, kBlockKv = 64;  // step 08's tile at D = 128

// Equal scores: each row is rescaled once, when it sees its first key.
std::function<simt::Counters()> causal_run() {
    return once([] {
        return count<bf16>(step08::attention_forward<bf16>, kLesson, Mask::causal_top_left(),
                           [](Call<bf16>& call) { set(call.q, [](int, int) { return 0.0f; }); });
    });
}

double tiles_loaded(const simt::Counters& counted) {
    const double tile_bytes = 2.0 * 2 * kBlockKv * kLesson.head_dim;  // K and V
    return (as_number(counted.cp_async_bytes) - 2.0 * kLesson.len_q * kLesson.head_dim) / tile_bytes;
}

// Tiles of which the mask lets some query of the block see a key, but not every query see every key.
double tiles_on_the_diagonal() {
    const Mask mask = Mask::causal_top_left();
    int boundary = 0;
    for (int row = 0; row < kLesson.len_q; row += kBlockQ) {
        for (int key = 0; key < kLesson.len_kv; key += kBlockKv) {
            const bool all = mask.visible_keys(row, kLesson.len_kv) >= key + kBlockKv;
            const bool any = mask.visible_keys(row + kBlockQ - 1, kLesson.len_kv) > key;
            boundary += any && !all;
        }
    }
    return boundary;
}

// How often a row is rescaled when its maximum grows by quarters / 4 powers of two in each of 16 key tiles.
// Beside one exponential a score there is one for each rescale, in the four lanes of a row.
double rescales(int quarters) {
    constexpr int kTileKeys = 32;  // step 08's tile at D = 64
    const Shape s{1, 1, 1, 128, 16 * kTileKeys, 64};
    const auto counted = count<bf16>(step08::attention_forward<bf16>, s, Mask::none(), [&](Call<bf16>& call) {
        set(call.q, [](int, int d) { return d == 0 ? 8.0f : d == 1 ? 0.25f : 0.0f; });
        set(call.k, [&](int n, int d) {
            const int tile = n / kTileKeys;
            return d == 0   ? static_cast<float>(tile)
                   : d == 1 ? static_cast<float>((quarters - 32) * tile)
                            : 0.0f;
        });
        call.scale = static_cast<float>(std::log(2.0));
    });
    return (as_number(counted.exp2) - 1.0 * s.len_q * s.len_kv) / 4 / s.len_q;
}

std::vector<Question> questions_08() {
    const auto counted = causal_run();
    return {
        {"08",
         1,
         {{"tiles loaded", [counted] { return tiles_loaded(counted()); }, kCounted},
          {"of those with a mask", tiles_on_the_diagonal, "computed by Mask::visible_keys"}}},
        {"08", 2, {{"mma", [counted] { return as_number(counted().mma); }, kCounted}}},
        {"08", 3, {{"exponentials", [counted] { return as_number(counted().exp2); }, kCounted}}},
        {"08",
         4,
         {{"times with 2^7.75", [] { return rescales(31); }, kCounted},
          {"times with 2^8.25", [] { return rescales(33); }, kCounted}}},
    };
}

}  // namespace

std::vector<Question> questions_06_to_08() {
    std::vector<Question> all;
    for (const auto& questions : {questions_06(), questions_07(), questions_08()})
        all.insert(all.end(), questions.begin(), questions.end());
    return all;
}

}  // namespace flash::predict
