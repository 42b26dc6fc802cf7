#include "common/testing/backward_conformance.hpp"

#include <algorithm>
#include <exception>

#include "common/testing/random.hpp"

namespace flash::testing {
namespace {

// One case in both modes: makes the tensors, calls the step, judges, adds to the report.
template <class T>
void run_case(Report& report, const BackwardCase& c, const Capabilities& can, const BackwardStep<T>& step) {
    auto call = make_backward_call<T>(c, can.aligned);
    const auto expected = expect_gradients(call, c.forward.seed);
    for (const bool deterministic : {false, true}) {
        ++report.cases;
        std::string failure;
        try {
            call.choose_mode(deterministic, step.workspace_bytes(call.shape, deterministic));
            auto run = call;
            step.execute(run, {});
            const auto judgement = judge(call, run, expected, c.forward.pattern);
            report.compared += judgement.compared;
            report.worst_error_share = std::max(report.worst_error_share, judgement.worst_error_share);
            report.worst_twin_share = std::max(report.worst_twin_share, judgement.worst_twin_share);
            failure = judgement.failure;
        } catch (const std::exception& error) {
            failure = std::string("threw: ") + error.what();
        }
        if (!failure.empty())
            report.failures.push_back(describe(c, dtype_name<T>(), deterministic) + "\n    " + failure);
    }
}

}  // namespace

std::vector<BackwardCase> backward_cases(const Capabilities& can) {
    std::vector<BackwardCase> cases;
    for (const ForwardCase& c : forward_cases(can)) cases.push_back({c});
    const auto add = [&](const std::string& name, Shape shape, Mask mask, Storage storage, Pattern pattern,
                         Gradient gradient) {
        shape.head_dim = supported_head_dim(shape.head_dim, can);
        if (work_of(shape) > can.max_work) return;
        cases.push_back({{name, shape, mask, storage, pattern, cases.size() + 1}, gradient});
    };
    using enum Storage;
    using enum Pattern;
    const auto top_left = Mask::causal_top_left();
    add("the gradient of a sum", {1, 2, 1, 37, 53, 16}, top_left, kBhnd, kNormal, Gradient::kOnes);
    add("the gradient of a sum of one output row", {1, 2, 1, 71, 90, 16}, Mask::none(), kPadded, kNormal,
        Gradient::kOneRow);
    add("the gradient of a sum of one output row, causal", {1, 2, 1, 71, 90, 16}, top_left, kMixed, kNormal,
        Gradient::kOneRow);
    add("a large gradient", {1, 2, 1, 61, 80, 16}, top_left, kBnhd, kIncreasing, Gradient::kLarge);
    return cases;
}

template <class T> Report check_backward_conformance(const Capabilities& can, const BackwardStep<T>& step) {
    Report report;
    for (const BackwardCase& c : backward_cases(can)) run_case(report, c, can, step);
    return report;
}

template <class T>
Report check_backward_fuzz(const Capabilities& can, const BackwardStep<T>& step, std::uint64_t seed,
                           int cases) {
    Report report;
    for (int n = 0; n < cases; ++n) {
        const std::uint64_t s = seed + static_cast<std::uint64_t>(n);
        const auto gradient =
            static_cast<Gradient>(random_below(~s, 0, static_cast<int>(Gradient::kLarge) + 1));
        run_case(report, {fuzz_case(can, s), gradient}, can, step);
    }
    return report;
}

template Report check_backward_conformance(const Capabilities&, const BackwardStep<float>&);
template Report check_backward_conformance(const Capabilities&, const BackwardStep<fp16>&);
template Report check_backward_conformance(const Capabilities&, const BackwardStep<bf16>&);
template Report check_backward_fuzz(const Capabilities&, const BackwardStep<float>&, std::uint64_t, int);
template Report check_backward_fuzz(const Capabilities&, const BackwardStep<fp16>&, std::uint64_t, int);
template Report check_backward_fuzz(const Capabilities&, const BackwardStep<bf16>&, std::uint64_t, int);

}  // namespace flash::testing
