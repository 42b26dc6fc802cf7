// One forward call to judge: its case, its tensors on the host, and the judgement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/testing/inputs.hpp"
#include "common/testing/judging.hpp"

namespace flash::testing {

// What a step can do; cases outside it are adapted (head_dim, alignment) or left out (work).
struct Capabilities {
    const char* step;           // "step 05": for messages
    int max_head_dim = 256;     // largest D
    int head_dim_multiple = 1;  // D must be a multiple of this
    bool aligned = false;       // needs 16-byte aligned pointers and strides in multiples of 8 elements
    std::int64_t max_work = 4'000'000;  // largest B * Hq * Nq * Nk * max(D, 1) of one case
};

struct ForwardCase {
    std::string name;
    Shape shape;
    Mask mask = {};
    Storage storage = Storage::kBhnd;
    Pattern pattern = Pattern::kNormal;
    std::uint64_t seed = 1;
    float scale = 0;  // 0: default_scale(D), 1 when D is 0
};

std::int64_t work_of(const Shape& shape);
std::string describe(const Shape& shape);
std::string describe(const Mask& mask);

// Everything needed to repeat a case, in one line.
std::string describe(const ForwardCase& c, const char* dtype);

// The tensors of a call, guard bands included. Outputs are filled with NaN.
template <class T> struct ForwardCall {
    Shape shape;
    Mask mask = {};
    float scale = 0;
    HostTensor<T> q, k, v, o;
    std::vector<float> lse;  // kLseGuard elements before and after
    static constexpr std::int64_t kLseGuard = 64;

    // The arguments, for copies of the memories that begin at the given addresses.
    ForwardArgs<T> args(const T* q_base, const T* k_base, const T* v_base, T* o_base, float* lse_base) const {
        return {shape,          q.view(q_base),       k.view(k_base), v.view(v_base),
                o.view(o_base), lse_base + kLseGuard, mask,           scale};
    }
    ForwardArgs<T> host_args() {
        return args(q.memory.data(), k.memory.data(), v.memory.data(), o.memory.data(), lse.data());
    }
};

template <class T> ForwardCall<T> make_call(const ForwardCase& c, bool aligned);

// Checks the outputs of a call that a step has filled: that all of O and L is written and nothing else is,
// and that the values are right. Of calls too large for a full reference at least 64 seeded query rows are
// compared. `before`: the call as it was handed to the step, to see that the inputs are untouched.
template <class T>
Judgement judge(const ForwardCall<T>& before, ForwardCall<T>& after, Pattern pattern, std::uint64_t seed);

}  // namespace flash::testing
