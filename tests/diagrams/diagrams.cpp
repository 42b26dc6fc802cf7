#include "diagrams.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/simt/counters.hpp"
#include "common/testing/backward_conformance.hpp"
#include "common/testing/conformance.hpp"
#include "steps/02_online_softmax/softmax.hpp"
#include "steps/05_flash_forward/attention.hpp"
#include "steps/08_fa2_forward/attention.hpp"
#include "steps/09_fa2_backward/attention.hpp"
#include "tests/primitives/primitives.hpp"

namespace flash::diagrams {
namespace {

constexpr int kLanes = 32;

struct Lines {
    std::string text = "picture,row,column,a,b\n";
    void add(const char* picture, int row, int column, double a, double b) {
        char line[128];
        std::snprintf(line, sizeof line, "%s,%d,%d,%.7g,%.7g\n", picture, row, column, a, b);
        text += line;
    }
};

// A 16 x 16 tile whose element (row, column) is its own number, through ldmatrix; lane i names row name(i) of
// the 32 half rows, of which 2 r and 2 r + 1 are row r. a: the lane that received an element; b: 2 * register
// + half.
void add_operand(Lines& lines, const char* picture, int (*name)(int lane), bool transposed) {
    std::vector<std::uint16_t> tile(16 * 16);
    for (std::size_t i = 0; i < tile.size(); ++i) tile[i] = static_cast<std::uint16_t>(i);
    primitives::Words order;
    for (int lane = 0; lane < kLanes; ++lane) order.push_back(static_cast<std::uint32_t>(name(lane)));
    const auto words = primitives::ldmatrix(tile, order, transposed);
    std::vector<std::array<int, 2>> holder(tile.size());
    for (int lane = 0; lane < kLanes; ++lane) {
        for (int r = 0; r < 4; ++r) {
            const std::uint32_t word = words[static_cast<std::size_t>(lane * 4 + r)];
            holder.at(word & 0xffffu) = {lane, 2 * r};
            holder.at(word >> 16) = {lane, 2 * r + 1};
        }
    }
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 16; ++column) {
            const auto& [lane, place] = holder[static_cast<std::size_t>(row * 16 + column)];
            lines.add(picture, row, column, lane, place);
        }
}

// C[row][column] = 8 row + column, made by an mma from operands that ldmatrix loaded. a: lane; b: register.
void add_accumulator(Lines& lines) {
    std::vector<std::uint16_t> a_tile(16 * 16), b_tile(16 * 16);
    for (int i = 0; i < 16; ++i) {
        const auto set = [](std::vector<std::uint16_t>& tile, int row, int column, float value) {
            tile[static_cast<std::size_t>(row * 16 + column)] = fp16_bits_from_float(value);
        };
        set(a_tile, i, 0, static_cast<float>(8 * i));
        set(a_tile, i, 1, 1);
        set(b_tile, 0, i, 1);
        set(b_tile, 1, i, static_cast<float>(i));
    }
    primitives::Words order;
    for (int lane = 0; lane < kLanes; ++lane)
        order.push_back(static_cast<std::uint32_t>(lane % 16 * 2 + lane / 16));
    const auto a = primitives::ldmatrix(a_tile, order, false),
               both = primitives::ldmatrix(b_tile, order, true);
    primitives::Words b;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        b.push_back(both[lane * 4]);
        b.push_back(both[lane * 4 + 1]);
    }
    const auto c = primitives::mma_fragments<fp16>(a, b, std::vector<float>(kLanes * 4));
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int number = static_cast<int>(c[static_cast<std::size_t>(lane * 4 + i)]);
            lines.add("accumulator", number / 8, number % 8, lane, i);
        }
}

// a: the group of four banks in which chunk `column` of a row lies as it comes; b: swizzled.
void add_swizzle(Lines& lines) {
    constexpr int kHeadDim = 64, kChunks = kHeadDim / 8;
    const auto places = primitives::swizzle(kHeadDim, 8);
    for (int row = 0; row < 8; ++row)
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int swizzled = places.swizzled[static_cast<std::size_t>(row * kChunks + chunk)];
            lines.add("swizzle", row, chunk, (row * kChunks + chunk) % 8, swizzled / 16 % 8);
        }
}

template <class T>
simt::Counters counted(void (*forward)(const ForwardArgs<T>&), const Shape& shape, const Mask& mask) {
    auto call = testing::make_call<T>({"", shape, mask}, true);
    return simt::count([&] { testing::execute_on<T, gpu::DeviceBuffer>(forward)(call, {}); });
}

// A causal head of N queries and keys. The block of each query tile runs alone, as queries with a diagonal
// further on, and what it loads of K and V says how many key tiles it visits: from the first on, one after
// the other. a: 0 for a tile that nobody sees a key of, 1 where some see some, 2 where all see all; b: 1 if
// it is loaded.
template <class T>
void add_tiles(Lines& lines, const char* picture, void (*forward)(const ForwardArgs<T>&), int len,
               int head_dim, int block_q, int block_kv) {
    const Mask mask = Mask::causal_top_left();
    for (int first = 0; first < len; first += block_q) {
        const int rows = std::min(block_q, len - first);
        const auto c = counted<T>(forward, {1, 1, 1, rows, len, head_dim}, Mask::causal(first));
        const auto bytes = static_cast<double>(c.global_load_bytes_distinct_per_launch);
        const double row_bytes = static_cast<double>(head_dim) * sizeof(T);
        const double keys = (bytes - rows * row_bytes) / (2 * row_bytes);
        const int loaded = (static_cast<int>(keys) + block_kv - 1) / block_kv;
        for (int key = 0; key < len; key += block_kv) {
            const bool any = mask.visible_keys(first + rows - 1, len) > key;
            const bool all = mask.visible_keys(first, len) >= key + block_kv;
            lines.add(picture, first / block_q, key / block_kv,
                      all   ? 2
                      : any ? 1
                            : 0,
                      key / block_kv < loaded);
        }
    }
}

// Step 09's backward at D = 64, a causal head of N queries and keys: the block of each key tile runs alone,
// as keys with a diagonal further back, and the exponentials that it takes say how many query tiles it walks,
// the last ones. a: as above; b: 1 if it is walked.
void add_backward_tiles(Lines& lines, int len, int block_q, int block_kv) {
    const Mask mask = Mask::causal_top_left();
    const auto step = testing::backward_step<bf16, gpu::DeviceBuffer>(&step09::attention_backward<bf16>,
                                                                      &step09::backward_workspace_bytes);
    for (int first = 0; first < len; first += block_kv) {
        const Shape shape{1, 1, 1, len, block_kv, 64};
        auto call = testing::make_backward_call<bf16>({{"", shape, Mask::causal(-first)}}, true);
        call.choose_mode(false, step09::backward_workspace_bytes(shape, false));
        const auto counted = simt::count([&] { step.execute(call, {}); });
        const int walked = static_cast<int>(counted.exp2) / (block_q * block_kv);
        for (int row = 0; row < len; row += block_q) {
            const bool any = mask.visible_keys(row + block_q - 1, len) > first;
            const bool all = mask.visible_keys(row, len) >= first + block_kv;
            lines.add("walk_09", first / block_kv, row / block_q,
                      all   ? 2
                      : any ? 1
                            : 0,
                      row / block_q >= len / block_q - walked);
        }
    }
}

// The README's row with values 10, 20, 30, 40. Column 0: the score and its value; 1: m and l; 2: acc and acc
// / l.
void add_states(Lines& lines) {
    const std::vector<float> scores = {2, 1, 5, 3}, values = {10, 20, 30, 40};
    step02::RowState row(1);
    for (std::size_t i = 0; i < scores.size(); ++i) {
        step02::update(row, scores[i], &values[i]);
        float output = 0;
        step02::write_output(row, &output);
        const int place = static_cast<int>(i);
        const auto add = [&](int column, float a, float b) {
            lines.add("state", place, column, static_cast<double>(a), static_cast<double>(b));
        };
        add(0, scores[i], values[i]);
        add(1, row.state.row_max, row.state.row_sum);
        add(2, row.acc[0], output);
    }
}

}  // namespace

std::string all_lines() {
    if (!simt::hooks_enabled())
        throw std::runtime_error("this build counts no loads: it must run on the emulator");
    Lines lines;
    add_states(lines);
    add_accumulator(lines);
    add_operand(
        lines, "operand_a", [](int lane) { return lane % 16 * 2 + lane / 16; }, false);
    add_operand(
        lines, "operand_b_of_k", [](int lane) { return (lane % 8 + lane / 16 * 8) * 2 + lane / 8 % 2; },
        false);
    add_operand(
        lines, "operand_b_of_v", [](int lane) { return lane % 16 * 2 + lane / 16; }, true);
    add_swizzle(lines);
    add_tiles<bf16>(lines, "tiles_08", step08::attention_forward<bf16>, 1024, 128, 128, 64);
    add_tiles<bf16>(lines, "walk_05", step05::attention_forward<bf16>, 300, 64, 64, 64);
    add_tiles<bf16>(lines, "walk_08", step08::attention_forward<bf16>, 300, 128, 128, 64);
    add_backward_tiles(lines, 1024, 64, 128);
    return lines.text;
}

}  // namespace flash::diagrams
