// One backward call to judge: its case, its tensors on the host, and the judgement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/testing/forward_case.hpp"

namespace flash::testing {

// What dO holds. Its padding is NaN, like that of every input.
enum class Gradient {
    kNormal,
    kOnes,    // the gradient of a plain sum
    kOneRow,  // zero but for one query row of each head: shows a delta or an L taken from another row
    kLarge,   // normal x 16
};

struct BackwardCase {
    ForwardCase forward;  // shape, mask, storage, pattern of Q, K and V, seed, scale
    Gradient gradient = Gradient::kNormal;
};

// Everything needed to repeat a case, in one line.
std::string describe(const BackwardCase& c, const char* dtype, bool deterministic);

// Where the memories of a call begin: on the host, or copies of them on a device.
template <class T> struct BackwardMemory {
    const T *q, *k, *v, *o, *d_o;
    const float* lse;
    T *dq, *dk, *dv;
    std::byte* workspace;
};

// The tensors of a call, guard bands included. Outputs are filled with NaN, the workspace with bytes of 0xff,
// which are NaN in every type.
template <class T> struct BackwardCall {
    Shape shape;
    Mask mask = {};
    float scale = 0;
    bool deterministic = false;
    HostTensor<T> q, k, v, o, d_o, dq, dk, dv;
    std::vector<float> lse;
    std::vector<std::byte> workspace;  // kWorkspaceGuard bytes before, at least as many after
    std::int64_t workspace_bytes = 0;
    static constexpr std::int64_t kWorkspaceGuard = 256;

    void choose_mode(bool is_deterministic, std::int64_t bytes);
    BackwardArgs<T> args(const BackwardMemory<T>& at) const {
        return {shape,
                q.view(at.q),
                k.view(at.k),
                v.view(at.v),
                o.view(at.o),
                at.lse,
                d_o.view(at.d_o),
                dq.view(at.dq),
                dk.view(at.dk),
                dv.view(at.dv),
                mask,
                scale,
                at.workspace + kWorkspaceGuard,
                workspace_bytes,
                deterministic};
    }
    BackwardArgs<T> host_args() {
        return args({q.memory.data(), k.memory.data(), v.memory.data(), o.memory.data(), d_o.memory.data(),
                     lse.data(), dq.memory.data(), dk.memory.data(), dv.memory.data(), workspace.data()});
    }
};

// Q, K, V and dO filled; O and L still zero, and no workspace chosen.
template <class T> BackwardCall<T> make_backward_call(const BackwardCase& c, bool aligned);

// The rows of a gradient that are compared.
struct ExpectedRows {
    std::vector<std::int64_t> rows;                  // numbers through (B, H, N)
    std::vector<double> reference, twin, magnitude;  // (rows, D)
    std::vector<bool> unspecified;  // (rows): values that are left out where the reference is finite
};
struct ExpectedGradients {
    ExpectedRows dq, dk, dv;
    double max_score = 0;    // max |S| and |L| over visible finite scores
    double score_reach = 0;  // max over rows of scale |q| |k|
    std::int64_t pairs =
        0;  // query rows with a key, times keys: roundings of P and dS that the errors average over
};

// Computes O and L of a call in double precision, puts them, rounded, into the call, and returns the
// gradients that belong to its inputs. Of calls too large for all rows at least 64 seeded ones of each
// gradient.
template <class T> ExpectedGradients expect_gradients(BackwardCall<T>& call, std::uint64_t seed);

// Checks the outputs of a call that a step has filled: that all of dQ, dK and dV is written and nothing else
// is, and that the values are right. `before`: the call as it was handed to the step, to see that the inputs
// are untouched.
template <class T>
Judgement judge(const BackwardCall<T>& before, const BackwardCall<T>& after,
                const ExpectedGradients& expected, Pattern pattern);

// The values alone.
template <class T>
Judgement judge_gradients(const BackwardCall<T>& after, const ExpectedGradients& expected, Pattern pattern);

}  // namespace flash::testing
