// The judges judged: an honest attention passes the conformance cases, and each wrong one is reported.
#include <doctest/doctest.h>

#include "common/argument_checks.hpp"
#include "common/reference.hpp"
#include "common/testing/conformance.hpp"

using namespace flash;
using namespace flash::testing;

namespace {

// The twin behind the contract's interface.
template <class T> void twin(const ForwardArgs<T>& args) {
    check_arguments(args, Limits{"the twin"});
    const auto result = twin_forward(args);
    const Shape& s = args.shape;
    std::size_t row = 0;
    for (int b = 0; b < s.batch; ++b) {
        for (int h = 0; h < s.heads_q; ++h) {
            for (int i = 0; i < s.len_q; ++i, ++row) {
                T* o = args.o.data + row_offset(args.o, b, h, i);
                const auto D = static_cast<std::size_t>(s.head_dim);
                for (std::size_t d = 0; d < D; ++d) o[d] = from_float<T>(result.o[row * D + d]);
                args.lse[row] = result.lse[row];
            }
        }
    }
}

const Capabilities kTwin{.step = "twin", .max_work = 20'000'000};

}  // namespace

TEST_CASE_TEMPLATE("an honest attention passes every conformance case", T, float, fp16, bf16) {
    run_forward_conformance<T, HostBuffer>(kTwin, &twin<T>);
}

TEST_CASE_TEMPLATE("an honest attention passes the fuzz", T, float, fp16, bf16) {
    run_forward_fuzz<T, HostBuffer>(kTwin, &twin<T>);
}

TEST_CASE_TEMPLATE("an honest attention commits none of the public faults", T, float, fp16, bf16) {
    run_public_faults<T, HostBuffer>(kTwin, &twin<T>);
}

TEST_CASE_TEMPLATE("bad calls are refused", T, float, fp16, bf16) {
    run_bad_arguments<T, HostBuffer>(kTwin, &twin<T>);
}
