// Every legal tile shape of step 07, built from the same kernel: prints the shared-memory budget of each,
// checks it, times it and writes rows for the heat map. On the emulator, which has no time, it prints and
// checks.
#include <string>
#include <utility>
#include <vector>

// The kernel itself, so that more tile shapes can be built from it.
#include "attention.cu"
#include "common/bench/device_bench.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/forward_problem.hpp"
#include "common/bench/session.hpp"

namespace flash::step07 {
namespace {

using Problem = bench::ForwardProblem<bf16, gpu::DeviceBuffer>;

constexpr int kBlockQ[] = {64, 128};
constexpr int kBlockKv[] = {32, 64, 128};
constexpr int kWarps[] = {4, 8};
constexpr int kStages[] = {2, 3};

// Shape number I of the grid above.
template <int HEAD_DIM, int I> constexpr TileShape grid_shape() {
    return {HEAD_DIM, kBlockQ[I % 2], kBlockKv[I / 2 % 3], kWarps[I / 6 % 2], kStages[I / 12]};
}

// The accumulator and the scores of a warp must fit into its registers, with 16 or 32 rows a warp, and a
// slice of the copies must not be longer than a tile.
constexpr bool is_legal(const TileShape& s) {
    const int rows = s.block_q / s.warps;
    const int slice = s.warps * 32 / (s.head_dim / 8);
    return (rows == 16 || rows == 32) && slice <= s.block_kv &&
           rows * (s.head_dim + s.block_kv) / 32 <= 224 && s.shared_bytes() <= 227 * 1024;
}

// A tile shape and the function that was built for it.
struct Built {
    TileShape shape;
    void (*launch)(const ForwardArgs<bf16>&);
};

template <int HEAD_DIM, int I> void add_if_legal(std::vector<Built>& all) {
    constexpr TileShape s = grid_shape<HEAD_DIM, I>();
    if constexpr (is_legal(s))
        all.push_back({s, launch_forward<bf16, HEAD_DIM, s.block_q, s.block_kv, s.warps, s.stages>});
}

template <int HEAD_DIM> std::vector<Built> all_shapes() {
    std::vector<Built> all;
    [&]<int... I>(std::integer_sequence<int, I...>) {
        (add_if_legal<HEAD_DIM, I>(all), ...);
    }
    (std::make_integer_sequence<int, 24>{});
    return all;
}

std::string name_of(const TileShape& s) {
    return std::to_string(s.block_q) + "x" + std::to_string(s.block_kv) + ", " + std::to_string(s.warps) +
           " warps, " + std::to_string(s.stages) + " stages";
}

void sweep(bench::Session& session, const std::vector<Built>& shapes, int len, int batch, int heads) {
    const bool is_timed = session.backend() != "emulator";
    const std::size_t available = gpu::device_info().shared_per_block_optin;
    Problem problem({batch, heads, heads, len, len, shapes.at(0).shape.head_dim}, Mask::none());
    std::vector<bench::Variant> variants;
    for (const Built& candidate : shapes) {
        const TileShape& s = candidate.shape;
        const bench::Metric budget{"shared_memory", "bytes",
                                   bench::exactly(static_cast<double>(s.shared_bytes()))};
        const bench::Case row{name_of(s), session.backend(), "sweep", "bf16", problem.shape(), Mask::none()};
        if (s.shared_bytes() > available) {
            session.record(row, {budget});  // legal, but not on this device
            continue;
        }
        session.check(name_of(s), problem.failure([&](const ForwardArgs<bf16>& args) {
            candidate.launch(args);
            gpu::synchronize();
        }));
        variants.push_back({name_of(s),
                            [&problem, &candidate] { candidate.launch(problem.args()); },
                            {bench::forward_flops(problem.shape(), Mask::none()),
                             bench::forward_bytes(problem.shape(), sizeof(bf16))},
                            0,
                            {budget}});
        if (!is_timed) session.record(row, {budget});
    }
    if (!is_timed) return;
    const auto watch = bench::device_stopwatch();
    session.measure({"", session.backend(), "sweep", "bf16", problem.shape(), Mask::none()}, *watch, variants,
                    bench::measure_device_peaks("bf16"), {2, 5, 20, 0.05});
}

}  // namespace
}  // namespace flash::step07

int main(int argc, char** argv) {
    using namespace flash;
    const bench::StepInfo info{"07", "which tile shapes fit, and which is fastest"};
    return bench::run_device_bench(argc, argv, info, [](bench::Session& session) {
        const bool small = session.backend() == "emulator";
        const int len = small ? 128 : 4096, batch = small ? 1 : 4;
        step07::sweep(session, step07::all_shapes<64>(), len, batch, small ? 1 : 32);
        step07::sweep(session, step07::all_shapes<128>(), len, batch, small ? 1 : 16);
    });
}
