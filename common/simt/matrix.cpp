// The warp-wide matrix instructions, computed for all 32 lanes when the last lane arrives.
#include <cstring>
#include <memory>

#include "common/simt/aligned_access.hpp"
#include "common/simt/warp_operation.hpp"
#include "common/types.hpp"

namespace flash::simt {

namespace {

constexpr std::uint32_t kAllLanes = 0xffffffffu;

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
    Accumulator acc;
    Fragment a;
    std::uint32_t b[2];
};

// Element pairs of a lane, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   a[0] A(g, 2t..2t+1)   a[1] A(g+8, 2t..2t+1)   a[2] A(g, 2t+8..2t+9)   a[3] A(g+8, 2t+8..2t+9)
//   b[0] B(2t..2t+1, g)   b[1] B(2t+8..2t+9, g)
//   c[0..1] C(g, 2t..2t+1)   c[2..3] C(g+8, 2t..2t+1)
template <MmaType kType> void multiply(MmaOperand* const* lanes) {
    const float* const fp16_value = fp16_values();
    const auto unpack = [&](std::uint32_t pair, float& low, float& high) {
        const auto low_bits = static_cast<std::uint16_t>(pair),
                   high_bits = static_cast<std::uint16_t>(pair >> 16);
        low = kType == MmaType::kFp16 ? fp16_value[low_bits] : float_from_bf16_bits(low_bits);
        high = kType == MmaType::kFp16 ? fp16_value[high_bits] : float_from_bf16_bits(high_bits);
    };
    float a[16][16], b[16][8], c[16][8];
    for (int g = 0; g < 8; ++g) {
        for (int t = 0; t < 4; ++t) {
            const MmaOperand& own = *lanes[4 * g + t];
            const int k = 2 * t;
            unpack(own.a.r[0], a[g][k], a[g][k + 1]);
            unpack(own.a.r[1], a[g + 8][k], a[g + 8][k + 1]);
            unpack(own.a.r[2], a[g][k + 8], a[g][k + 9]);
            unpack(own.a.r[3], a[g + 8][k + 8], a[g + 8][k + 9]);
            unpack(own.b[0], b[k][g], b[k + 1][g]);
            unpack(own.b[1], b[k + 8][g], b[k + 9][g]);
            for (int i = 0; i < 4; ++i) c[g + i / 2 * 8][2 * t + i % 2] = own.acc.c[i];
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
    ++machine.counters.mma;
}

struct LdmatrixOperand {
    std::uint32_t row;  // offset of the row whose address this lane gives
    bool transposed;
    Fragment result;
};

void load_matrices(LdmatrixOperand* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        std::uint16_t elements[8][8];
        for (int i = 0; i < 8; ++i) {
            const std::uintptr_t row = machine.shared_begin + lanes[matrix * 8 + i]->row;
            std::memcpy(elements[i], reinterpret_cast<const void*>(row), 16);
        }
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
    access_aligned<16>(machine.shared_begin + row, Kind::kRead, __builtin_return_address(0));
    LdmatrixOperand mine{row, transposed, {}};
    warp_operation(transposed ? "ldmatrix.trans" : "ldmatrix", kAllLanes, site, mine, load_matrices);
    return mine.result;
}

Accumulator mma(MmaType type, Accumulator acc, Fragment a, std::uint32_t b0, std::uint32_t b1, Site site) {
    const RuntimeScope scope;
    MmaOperand mine{acc, a, {b0, b1}};
    warp_operation("mma", kAllLanes, site, mine,
                   type == MmaType::kFp16 ? multiply<MmaType::kFp16> : multiply<MmaType::kBf16>);
    return mine.acc;
}

}  // namespace flash::simt
