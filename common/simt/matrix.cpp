// The warp-wide matrix instructions, computed for all 32 lanes when the last lane arrives, and their bank
// conflicts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "common/simt/memory_access.hpp"
#include "common/simt/warp_operation.hpp"
#include "common/types.hpp"

namespace flash::simt {

namespace {

constexpr std::uint32_t kAllLanes = 0xffffffffu;

// Shared memory serves eight 16-byte rows in one pass when they lie in different groups of four banks. The
// extra passes are the largest number of different rows in one group, less one. Unused rows are ~0.
std::uint64_t extra_passes(const std::uint32_t (&rows)[8]) {
    std::uint64_t passes = 1;
    for (std::uint32_t group = 0; group < 8; ++group) {
        std::uint64_t different = 0;
        for (int i = 0; i < 8; ++i) {
            const bool here = rows[i] != ~0u && rows[i] / 16 % 8 == group;
            different += here && std::find(rows, rows + i, rows[i]) == rows + i ? 1u : 0u;
        }
        passes = std::max(passes, different);
    }
    return passes - 1;
}

// All fp16 values as fp32: a table, because a product converts 384 of them.
const float* fp16_values() {
    static const auto table = [] {
        auto values = std::make_unique<float[]>(65536);
        for (std::uint32_t bits = 0; bits < 65536; ++bits)
            values[bits] = float_from_fp16_bits(static_cast<std::uint16_t>(bits));
        return values;
    }();
    return table.get();
}

struct MmaOperand {
    MmaType type;
    Accumulator acc;
    Fragment a;
    std::uint32_t b[2];
};

// Element pairs of a lane, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   a[0] A(g, 2t..2t+1)   a[1] A(g+8, 2t..2t+1)   a[2] A(g, 2t+8..2t+9)   a[3] A(g+8, 2t+8..2t+9)
//   b[0] B(2t..2t+1, g)   b[1] B(2t+8..2t+9, g)
//   c[0..1] C(g, 2t..2t+1)   c[2..3] C(g+8, 2t..2t+1)
void multiply(MmaOperand* const* lanes) {
    const float* const fp16_value = fp16_values();
    const auto value = [&](std::uint32_t pair, int half) {
        const auto bits = static_cast<std::uint16_t>(pair >> (16 * half));
        return lanes[0]->type == MmaType::kFp16 ? fp16_value[bits] : float_from_bf16_bits(bits);
    };
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < kWarp; ++lane) {
        const MmaOperand& own = *lanes[lane];
        const int g = lane / 4, t = lane % 4;
        for (int e = 0; e < 2; ++e) {
            for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][2 * t + e + i / 2 * 8] = value(own.a.r[i], e);
            for (int i = 0; i < 2; ++i) b[2 * t + e + i * 8][g] = value(own.b[i], e);
            for (int i = 0; i < 2; ++i) c[g + i * 8][2 * t + e] = own.acc.c[2 * i + e];
        }
    }
    for (int m = 0; m < 16; ++m) {
        for (int k = 0; k < 16; ++k) {
            for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
        }
    }
    for (int lane = 0; lane < kWarp; ++lane) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) lanes[lane]->acc.c[i] = c[g + i / 2 * 8][2 * t + i % 2];
    }
}

struct LdmatrixOperand {
    std::uint32_t row;  // offset of the row whose address this lane gives
    bool transposed;
    Fragment result;
};

void load_matrices(LdmatrixOperand* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        std::uint16_t elements[8][8];
        std::uint32_t rows[8];
        for (int i = 0; i < 8; ++i) {
            rows[i] = lanes[matrix * 8 + i]->row;
            std::memcpy(elements[i], reinterpret_cast<const void*>(machine.shared_begin + rows[i]), 16);
        }
        machine.counters.shared_bank_conflicts += extra_passes(rows);
        for (int lane = 0; lane < kWarp; ++lane) {
            const int row = lane / 4, column = lane % 4 * 2;
            const bool t = lanes[lane]->transposed;
            const std::uint32_t low = t ? elements[column][row] : elements[row][column];
            const std::uint32_t high = t ? elements[column + 1][row] : elements[row][column + 1];
            lanes[lane]->result.r[matrix] = high << 16 | low;
        }
    }
    ++machine.counters.ldmatrix;
}

}  // namespace

Fragment ldmatrix(std::uint32_t row, bool transposed, Site site) {
    const RuntimeScope scope;
    const std::uintptr_t address = machine.shared_begin + row;
    if (row % 16 != 0) fail_misaligned(Access::kRead, 16, address);
    access_shared(machine, address, 16, Access::kRead);
    LdmatrixOperand mine{row, transposed, {}};
    warp_operation(transposed ? "ldmatrix.trans" : "ldmatrix", kAllLanes, site, mine, load_matrices);
    return mine.result;
}

Accumulator mma(MmaType type, Accumulator acc, Fragment a, std::uint32_t b0, std::uint32_t b1, Site site) {
    const RuntimeScope scope;
    MmaOperand mine{type, acc, a, {b0, b1}};
    warp_operation("mma", kAllLanes, site, mine, [](MmaOperand* const* lanes) {
        multiply(lanes);
        ++machine.counters.mma;
    });
    return mine.acc;
}

// The n-th cp.async of each lane since the latest barrier make one access of the warp.
void note_async_row(Thread& thread, std::uint32_t offset) {
    auto& rows = running_warp().async_rows;
    const std::size_t at = thread.async_turn++ * kWarp;
    if (rows.size() < at + kWarp) rows.resize(at + kWarp, ~0u);
    rows[at + static_cast<std::size_t>(thread.id % kWarp)] = offset;
}

void count_async_conflicts(Warp& warp) {
    for (std::size_t at = 0; at < warp.async_rows.size(); at += 8) {
        std::uint32_t rows[8];
        std::copy_n(warp.async_rows.begin() + static_cast<std::ptrdiff_t>(at), 8, rows);
        machine.counters.shared_bank_conflicts += extra_passes(rows);
    }
    warp.async_rows.clear();
}

float exp2_flushed(float x) {
    ++machine.counters.exp2;
    const float result = std::exp2(x);  // a subnormal x gives 1, flushed or not
    return result < 0x1p-126f ? 0.0f : result;
}

}  // namespace flash::simt
