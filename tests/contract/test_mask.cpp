// Which keys a query sees, in both forms of the mask, against the definition: j <= i + diagonal.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "common/attention.hpp"

using namespace flash;

// Nq != Nk causal needs a diagonal: there is none to fall back on.
template <class M>
concept HasDefaultDiagonal = requires {
    M::causal();
};
static_assert(!HasDefaultDiagonal<Mask>);
// B12: V cannot be longer than K, because a call has one key length.
static_assert(sizeof(Shape) == 6 * sizeof(int));

namespace {

constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
constexpr auto kMax = std::numeric_limits<std::int64_t>::max();

bool sees(std::int64_t diagonal, int i, int j) {
    return static_cast<__int128>(j) <= static_cast<__int128>(i) + diagonal;
}

std::vector<std::int64_t> diagonals() {
    std::vector<std::int64_t> all = {kMin,     kMin + 1, -(std::int64_t{1} << 32), std::int64_t{1} << 32,
                                     kMax - 1, kMax};
    for (std::int64_t d = -12; d <= 12; ++d) all.push_back(d);
    return all;
}

}  // namespace

TEST_CASE("visible_keys and kernel_diagonal follow the definition, extreme diagonals included") {
    int compared = 0;
    for (const std::int64_t diagonal : diagonals()) {
        const Mask mask = Mask::causal(diagonal);
        for (int len_q = 0; len_q < 10; ++len_q) {
            for (int len_kv = 0; len_kv < 10; ++len_kv) {
                const Shape shape{1, 1, 1, len_q, len_kv, 8};
                const int kernel_diagonal = mask.kernel_diagonal(shape);
                for (int i = 0; i < len_q; ++i) {
                    int visible = 0;
                    for (int j = 0; j < len_kv; ++j) {
                        visible += sees(diagonal, i, j);
                        CHECK((j <= i + kernel_diagonal) == sees(diagonal, i, j));
                        ++compared;
                    }
                    CHECK(mask.visible_keys(i, len_kv) == visible);
                }
            }
        }
    }
    CHECK(compared == 31 * 45 * 45);
}

TEST_CASE("without a mask every query sees every key") {
    const Shape shape{1, 1, 1, 7, 5, 8};
    for (int i = 0; i < shape.len_q; ++i) CHECK(Mask::none().visible_keys(i, shape.len_kv) == 5);
    CHECK(shape.len_kv - 1 <= 0 + Mask::none().kernel_diagonal(shape));
}

TEST_CASE("top-left shows the first query one key, bottom-right shows the last query all") {
    for (const auto& [len_q, len_kv] : {std::pair{3, 8}, std::pair{8, 3}, std::pair{5, 5}}) {
        const Shape shape{1, 1, 1, len_q, len_kv, 8};
        CHECK(Mask::causal_top_left().visible_keys(0, len_kv) == 1);
        CHECK(Mask::causal_bottom_right(shape).visible_keys(len_q - 1, len_kv) == len_kv);
        CHECK(Mask::causal_bottom_right(shape).diagonal == len_kv - len_q);
    }
}

TEST_CASE("masks work at the largest lengths without overflow") {
    constexpr int kLargest = std::numeric_limits<int>::max();
    const Shape shape{1, 1, 1, kLargest, kLargest, 8};
    for (const std::int64_t diagonal : diagonals()) {
        const Mask mask = Mask::causal(diagonal);
        const std::int64_t visible = mask.visible_keys(kLargest - 1, kLargest);
        CHECK(visible >= 0);
        CHECK(visible <= kLargest);
        CHECK(mask.kernel_diagonal(shape) >= -kLargest);
    }
    CHECK(Mask::causal_bottom_right({1, 1, 1, kLargest, 0, 8}).diagonal == -std::int64_t{kLargest});
}

TEST_CASE("the default scale is that of the true head dimension") {
    CHECK(default_scale(64) == 0.125f);
    CHECK(default_scale(80) == doctest::Approx(0.1118033988749895).epsilon(1e-7));
    CHECK(default_scale(1) == 1.0f);
}

TEST_CASE("B6: row offsets are computed in 64 bits") {
    const TensorView<const float> view{nullptr, std::int64_t{1} << 40, std::int64_t{1} << 33, 524288};
    CHECK(row_offset(view, 3, 5, 8192) ==
          3 * (std::int64_t{1} << 40) + 5 * (std::int64_t{1} << 33) + std::int64_t{524288} * 8192);
    // 8 x 28 heads of 4096 x 4096 scores: 3.76e9 elements.
    const auto scores = dense_bhnd(static_cast<float*>(nullptr), 28, 4096, 4096);
    CHECK(row_offset(scores, 7, 27, 4095) == 8 * 28 * std::int64_t{4096} * 4096 - 4096);
}
