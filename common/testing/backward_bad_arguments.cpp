// Backward calls that must be refused: one change to a good call each.
#include "common/testing/backward_conformance.hpp"
#include "common/testing/bad_arguments.hpp"

namespace flash::testing {
namespace {

template <class T> std::vector<BadArgument<BackwardArgs<T>>> bad_tensors(const Capabilities& can) {
    using Args = BackwardArgs<T>;
    constexpr int kMaxInt = std::numeric_limits<int>::max();
    return {
        {"null Q", "q.data is null", [](Args& a) { a.q.data = nullptr; }},
        {"null K", "k.data is null", [](Args& a) { a.k.data = nullptr; }},
        {"null V", "v.data is null", [](Args& a) { a.v.data = nullptr; }},
        {"null O", "o.data is null", [](Args& a) { a.o.data = nullptr; }},
        {"null L", "lse.data is null", [](Args& a) { a.lse = nullptr; }},
        {"null dO", "d_o.data is null", [](Args& a) { a.d_o.data = nullptr; }},
        {"null dQ", "dq.data is null", [](Args& a) { a.dq.data = nullptr; }},
        {"null dK", "dk.data is null", [](Args& a) { a.dk.data = nullptr; }},
        {"null dV", "dv.data is null", [](Args& a) { a.dv.data = nullptr; }},
        {"dO between two elements", "d_o.data is not aligned",
         [](Args& a) { a.d_o.data = shifted(a.d_o.data, 1); }},
        {"dQ between two elements", "dq.data is not aligned",
         [](Args& a) { a.dq.data = shifted(a.dq.data, 1); }},
        {"L between two elements", "lse.data is not aligned", [](Args& a) { a.lse = shifted(a.lse, 2); }},
        {"dO off its 16-byte alignment", "d_o.data is not aligned", [](Args& a) { a.d_o.data += 1; },
         can.aligned},
        {"dK off its 16-byte alignment", "dk.data is not aligned", [](Args& a) { a.dk.data += 1; },
         can.aligned},
        {"O's rows off their 16-byte alignment", "o.stride_row is", [](Args& a) { a.o.stride_row += 1; },
         can.aligned},
        {"dV's rows off their 16-byte alignment", "dv.stride_row is", [](Args& a) { a.dv.stride_row += 1; },
         can.aligned},
        {"a negative stride", "d_o.stride_row is -1", [](Args& a) { a.d_o.stride_row = -1; }},
        {"dQ's rows overlap", "dq's strides", [](Args& a) { a.dq.stride_row = a.dq.stride_head; }},
        {"all heads of dK in one place", "dk's strides", [](Args& a) { a.dk.stride_head = 0; }},
        {"all batch entries of dV in one place", "dv's strides", [](Args& a) { a.dv.stride_batch = 0; }},
        {"dQ in the place of Q", "dq overlaps q", [](Args& a) { a.dq.data = const_cast<T*>(a.q.data); }},
        {"dQ in the place of dO", "dq overlaps", [](Args& a) { a.dq.data = const_cast<T*>(a.d_o.data); }},
        {"dK in the place of K", "dk overlaps k", [](Args& a) { a.dk.data = const_cast<T*>(a.k.data); }},
        {"dV in the place of O", "dv overlaps o", [](Args& a) { a.dv.data = const_cast<T*>(a.o.data); }},
        {"dV in the place of L", "dv overlaps",
         [](Args& a) { a.dv.data = reinterpret_cast<T*>(const_cast<float*>(a.lse)); }},
        {"dK in the place of dV", "dk overlaps dv", [](Args& a) { a.dk = a.dv; }},
        {"dQ in the place of dK", "dq overlaps", [](Args& a) { a.dq.data = a.dk.data; }},
        {"sizes whose product overflows", "more than 2^63 bytes",
         [](Args& a) {
             a.shape.batch = a.shape.heads_q = a.shape.heads_kv = kMaxInt;
             a.shape.len_q = kMaxInt / 2;
             a.dq.stride_row = a.shape.head_dim;
             a.dq.stride_head = a.dq.stride_row * kMaxInt;
             a.dq.stride_batch = std::numeric_limits<std::int64_t>::max() / 8 * 8;
         }},
        {"strides whose span overflows", "d_o spans more than 2^63 bytes",
         [](Args& a) { a.d_o.stride_batch = std::int64_t{1} << 62; }},
    };
}

// For steps that need a workspace.
template <class T> std::vector<BadArgument<BackwardArgs<T>>> bad_workspaces() {
    using Args = BackwardArgs<T>;
    return {
        {"no workspace", "workspace.data is null", [](Args& a) { a.workspace = nullptr; }},
        {"a workspace that is one byte too small", "workspace_bytes is",
         [](Args& a) { --a.workspace_bytes; }},
        {"a workspace of -1 bytes", "workspace_bytes is -1", [](Args& a) { a.workspace_bytes = -1; }},
        {"a workspace off its 16-byte alignment", "workspace.data is not aligned",
         [](Args& a) { a.workspace = static_cast<std::byte*>(a.workspace) + 8; }},
        {"a workspace inside Q", "overlaps", [](Args& a) { a.workspace = const_cast<T*>(a.q.data); }},
        {"a workspace inside dV", "overlaps workspace", [](Args& a) { a.workspace = a.dv.data; }},
    };
}

template <class T> bool nothing_written(const BackwardCall<T>& before, const BackwardCall<T>& after) {
    return same_bits(before.dq.memory, after.dq.memory) && same_bits(before.dk.memory, after.dk.memory) &&
           same_bits(before.dv.memory, after.dv.memory) && before.workspace == after.workspace;
}

template <class T>
std::string answer_to(const BadArgument<BackwardArgs<T>>& bad, const BackwardCall<T>& call,
                      const BackwardStep<T>& step) {
    auto run = call;
    const std::string failure = refusal_failure(bad.named, [&] { step.execute(run, bad.edit); });
    if (failure.empty() && !nothing_written(call, run)) return "was refused, but something was written first";
    return failure;
}

}  // namespace

template <class T>
std::vector<NamedCheck> backward_bad_arguments(const Capabilities& can, const BackwardStep<T>& step) {
    const int head_dim = can.head_dim_multiple > 1 ? can.head_dim_multiple : 8;
    const BackwardCase good{{"", {2, 4, 2, 5, 6, head_dim}}};
    std::vector<NamedCheck> checks;
    for (const bool deterministic : {false, true}) {
        const std::int64_t bytes = step.workspace_bytes(good.forward.shape, deterministic);
        auto changes = bad_tensors<T>(can);
        // What does not depend on the mode is asked once.
        if (!deterministic) append(changes, bad_sizes<BackwardArgs<T>>(can));
        if (bytes > 0) append(changes, bad_workspaces<T>());
        for (const auto& change : changes) {
            if (!change.applies) continue;
            const std::string mode = deterministic ? ", in deterministic mode" : "";
            checks.push_back({change.what + " is refused" + mode, [=] {
                                  auto call = make_backward_call<T>(good, can.aligned);
                                  call.choose_mode(deterministic, bytes);
                                  return answer_to(change, call, step);
                              }});
        }
    }
    return checks;
}

template std::vector<NamedCheck> backward_bad_arguments(const Capabilities&, const BackwardStep<float>&);
template std::vector<NamedCheck> backward_bad_arguments(const Capabilities&, const BackwardStep<fp16>&);
template std::vector<NamedCheck> backward_bad_arguments(const Capabilities&, const BackwardStep<bf16>&);

}  // namespace flash::testing
