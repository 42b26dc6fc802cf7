// The backward's part of the measuring harness, over the tiled backward on the CPU.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "common/bench/backward_problem.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/reference.hpp"
#include "common/testing/host_buffer.hpp"
#include "steps/09_fa2_backward/backward_cpu.hpp"

namespace {

using namespace flash;
using namespace flash::bench;
using Problem = BackwardProblem<float, testing::HostBuffer>;

// O and L in double precision, rounded.
void forward(const ForwardArgs<float>& args) {
    const auto result = reference_forward(args);
    const Shape& s = args.shape;
    for (std::int64_t b = 0, row = 0; b < s.batch; ++b) {
        for (int h = 0; h < s.heads_q; ++h) {
            for (int n = 0; n < s.len_q; ++n, ++row) {
                args.lse[row] = static_cast<float>(result.lse[static_cast<std::size_t>(row)]);
                for (int d = 0; d < s.head_dim; ++d) {
                    const auto at = static_cast<std::size_t>(row * s.head_dim + d);
                    args.o.data[row_offset(args.o, b, h, n) + d] = static_cast<float>(result.o[at]);
                }
            }
        }
    }
}

using Change = std::function<void(BackwardArgs<float>&)>;

// What the check says about the tiled backward with its arguments changed before, or its results after.
std::string failure(const Shape& shape, const Mask& mask, const Change& before, const Change& after) {
    const auto backward = [&](const BackwardArgs<float>& args) {
        BackwardArgs<float> changed = args;
        if (before) before(changed);
        step09::attention_backward_cpu(changed);
        if (after) after(changed);
    };
    Problem problem(shape, mask, {&forward, backward, [](const Shape&, bool) { return std::int64_t{0}; }});
    const std::string fast = problem.failure(false);
    CHECK(problem.failure(true) == fast);
    return fast;
}

}  // namespace

TEST_CASE(
    "a backward is five products: 10 D operations a visible pair, and every tensor moves at least once") {
    const Shape s{2, 6, 3, 40, 50, 64};
    CHECK(backward_flops(s, Mask::none()) == 10.0 * 2 * 6 * 64 * 40 * 50);
    CHECK(backward_flops(s, Mask::causal(0)) == 2.5 * forward_flops(s, Mask::causal(0)));
    CHECK(backward_bytes(s, 2) == 4 * (2 * 6 * 40 + 2 * 3 * 50) * 64 * 2 + 2 * 6 * 40 * 4);
}

TEST_CASE("a sample has the first, the last, no number twice, and all where there are few") {
    CHECK(sample(3, 4, 1) == std::vector<std::int64_t>{0, 1, 2});
    CHECK(sample(0, 4, 1).empty());
    const auto some = sample(1'000'000'000, 4, 1);
    CHECK(some.size() == 4);
    CHECK(some.front() == 0);
    CHECK(some.back() == 999'999'999);
    CHECK(some != sample(1'000'000'000, 4, 2));
}

TEST_CASE("right gradients pass and wrong ones are named before anything is measured") {
    // More heads and rows than are compared.
    const Shape s{2, 6, 3, 40, 50, 16};
    for (const Mask& mask : {Mask::none(), Mask::causal(3), Mask::causal(-20)}) {
        CHECK(failure(s, mask, {}, {}) == "");
        const auto wrong_scale = [](BackwardArgs<float>& args) { args.scale *= 1.01f; };
        CHECK(failure(s, mask, wrong_scale, {}).find("the error is larger than allowed") !=
              std::string::npos);
        const auto other_diagonal = [](BackwardArgs<float>& args) { args.mask = Mask::causal(2); };
        CHECK(failure(s, mask, other_diagonal, {}) != "");
    }
    const auto last_row_of_dk = [&](BackwardArgs<float>& args) {
        args.dk.data[row_offset(args.dk, 1, 2, s.len_kv - 1)] += 1;
    };
    CHECK(failure(s, Mask::none(), {}, last_row_of_dk).find("dK[b=3") != std::string::npos);
    const auto unwritten = [&](BackwardArgs<float>& args) {
        args.dv.data[row_offset(args.dv, 0, 1, 7) + 3] = testing::canary<float>();
    };
    CHECK(failure(s, Mask::none(), {}, unwritten) == "dV[b=0, h=1, i=7, d=3] was never written");
}
