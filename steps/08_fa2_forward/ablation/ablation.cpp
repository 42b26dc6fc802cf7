// Step 08 beside itself with one idea undone at a time, bf16, timed in turns. Needs a GPU.
#include <string>
#include <vector>

#include "attention.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/bench/session.hpp"
#include "common/gpu/device.hpp"
#include "variants.hpp"

namespace {

using namespace flash;
using Problem = bench::ForwardProblem<bf16, gpu::DeviceBuffer>;

void compare(bench::Session& session, int head_dim, int len) {
    std::vector<Ablation> versions = {{"forward", step08::attention_forward<bf16>}};
    versions.insert(versions.end(), std::begin(kAblations), std::end(kAblations));
    const auto watch = bench::device_stopwatch();
    const bench::Peaks peaks = bench::measure_device_peaks("bf16");
    const int heads = 2048 / head_dim;
    Problem small({1, 2, 2, 1000, 1000, head_dim}, Mask::none());  // for the checks, which run on the CPU
    Problem problem({16384 / len, heads, heads, len, len, head_dim}, Mask::none());
    for (const Mask& mask : {Mask::none(), Mask::causal_top_left()}) {
        small.set_mask(mask);
        problem.set_mask(mask);
        std::vector<bench::Variant> variants;
        for (const Ablation& version : versions) {
            const auto call = [&problem, &version] { version.forward(problem.args()); };
            session.check(
                std::string(version.name) + ", " + std::to_string(head_dim) + ", " + std::to_string(len),
                small.failure([&](const ForwardArgs<bf16>& args) {
                    version.forward(args);
                    gpu::synchronize();
                }));
            variants.push_back({version.name,
                                call,
                                {bench::forward_flops(problem.shape(), mask),
                                 bench::forward_bytes(problem.shape(), sizeof(bf16))}});
        }
        session.measure({"", session.backend(), "ablation", "bf16", problem.shape(), mask}, *watch, variants,
                        peaks, {2, 5, 30, 0.1});
    }
}

}  // namespace

int main(int argc, char** argv) {
    const bench::StepInfo info{
        "08", "what each idea of the forward gives: the step, and one idea undone at a time"};
    return bench::run_bench(
        argc, argv, info, bench::device_backend(), bench::device_label(), [](bench::Session& session) {
            const std::string why_not = gpu::why_no_device();
            if (!why_not.empty()) throw bench::DeviceMissing(why_not);
            if (session.backend() == "emulator") {
                throw bench::DeviceMissing("the ablation is a matter of time; the emulator has none");
            }
            for (const int head_dim : {64, 128}) {
                for (const int len : {1024, 4096}) compare(session, head_dim, len);
            }
        });
}
