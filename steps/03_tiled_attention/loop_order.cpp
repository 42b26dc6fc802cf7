#include "loop_order.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/argument_checks.hpp"

namespace flash::step03 {
namespace {

// A tile: rows of memory copied to a place of its own. All traffic goes through load and store, which count.
struct Tile {
    int rows = 0;
    int cols = 0;
    std::vector<float> data;  // (rows, cols), dense

    float* row(int i) { return data.data() + static_cast<std::ptrdiff_t>(i) * cols; }
};

template <class T> void load(Tile& tile, const T* memory, std::int64_t stride_row, std::int64_t& count) {
    for (int i = 0; i < tile.rows; ++i) {
        for (int d = 0; d < tile.cols; ++d, ++count) tile.row(i)[d] = memory[i * stride_row + d];
    }
}

void store(Tile& tile, float* memory, std::int64_t stride_row, std::int64_t& count) {
    for (int i = 0; i < tile.rows; ++i) {
        for (int d = 0; d < tile.cols; ++d, ++count) memory[i * stride_row + d] = tile.row(i)[d];
    }
}

Tile make_tile(std::int64_t rows, int cols, float value = 0) {
    return {static_cast<int>(rows), cols,
            std::vector<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols), value)};
}

// One head of a call: where its rows are. A tensor without elements is null and never dereferenced.
struct Head {
    const float *q, *k, *v;
    float *o, *lse;
};

template <class T> T* head_of(const TensorView<T>& view, std::int64_t b, std::int64_t h) {
    return view.data == nullptr ? nullptr : view.data + row_offset(view, b, h, 0);
}
template <class T> T* advance(T* head, std::int64_t elements) {
    return head == nullptr ? nullptr : head + elements;
}

// The step of both algorithms: takes the keys and values of a tile into the state of a tile of query rows.
// acc is left unnormalised: sum of exp(score - row_max) * value.
void attend(const ForwardArgs<float>& args, std::int64_t q_start, std::int64_t kv_start, Tile& q, Tile& k,
            Tile& v, Tile& acc, Tile& row_max, Tile& row_sum) {
    std::vector<float> p(static_cast<std::size_t>(k.rows));
    for (int i = 0; i < q.rows; ++i) {
        const std::int64_t visible = args.mask.visible_keys(q_start + i, args.shape.len_kv);
        float new_max = *row_max.row(i);
        for (int j = 0; j < k.rows; ++j) {
            float score = 0;
            for (int d = 0; d < q.cols; ++d) score += q.row(i)[d] * k.row(j)[d];
            p[static_cast<std::size_t>(j)] = kv_start + j < visible ? args.scale * score : -INFINITY;
            new_max = std::max(new_max, p[static_cast<std::size_t>(j)]);
        }
        const float shift = new_max == -INFINITY ? 0.0f : new_max;
        const float rescale = std::exp(*row_max.row(i) - shift);
        *row_max.row(i) = new_max;
        *row_sum.row(i) *= rescale;
        for (int d = 0; d < acc.cols; ++d) acc.row(i)[d] *= rescale;
        for (int j = 0; j < k.rows; ++j) {
            const float weight = std::exp(p[static_cast<std::size_t>(j)] - shift);
            *row_sum.row(i) += weight;
            for (int d = 0; d < acc.cols; ++d) acc.row(i)[d] += weight * v.row(j)[d];
        }
    }
}

void divide(Tile& acc, Tile& row_sum, std::int64_t& count) {
    for (int i = 0; i < acc.rows; ++i) {
        const float divisor = *row_sum.row(i) == 0 ? 1.0f : *row_sum.row(i);
        for (int d = 0; d < acc.cols; ++d, ++count) acc.row(i)[d] /= divisor;
    }
}

void multiply(Tile& acc, Tile& row_sum) {
    for (int i = 0; i < acc.rows; ++i) {
        for (int d = 0; d < acc.cols; ++d) acc.row(i)[d] *= *row_sum.row(i);
    }
}

void store_lse(Tile& row_max, Tile& row_sum, float* lse, std::int64_t& count) {
    Tile tile = row_max;
    for (int i = 0; i < tile.rows; ++i) *tile.row(i) += std::log(*row_sum.row(i));
    store(tile, lse, 1, count);
}

void fa1_head(const ForwardArgs<float>& args, const Head& head, int block_q, int block_kv, Traffic& traffic) {
    const std::int64_t Nq = args.shape.len_q, Nk = args.shape.len_kv;
    const int D = args.shape.head_dim;
    std::vector<float> max_memory(static_cast<std::size_t>(Nq)), sum_memory(static_cast<std::size_t>(Nq));

    for (std::int64_t i = 0; i < Nq; i += block_q) {  // the state of no key, in memory
        const std::int64_t rows = std::min<std::int64_t>(block_q, Nq - i);
        Tile zero = make_tile(rows, D), no_max = make_tile(rows, 1, -INFINITY), no_sum = make_tile(rows, 1);
        store(zero, advance(head.o, i * args.o.stride_row), args.o.stride_row, traffic.o_stores);
        store(no_max, &max_memory[static_cast<std::size_t>(i)], 1, traffic.state_stores);
        store(no_sum, &sum_memory[static_cast<std::size_t>(i)], 1, traffic.state_stores);
    }

    for (std::int64_t j = 0; j < Nk; j += block_kv) {
        const std::int64_t keys = std::min<std::int64_t>(block_kv, Nk - j);
        Tile k = make_tile(keys, D), v = make_tile(keys, D);
        load(k, advance(head.k, j * args.k.stride_row), args.k.stride_row, traffic.kv_loads);
        load(v, advance(head.v, j * args.v.stride_row), args.v.stride_row, traffic.kv_loads);

        for (std::int64_t i = 0; i < Nq; i += block_q) {
            const std::int64_t rows = std::min<std::int64_t>(block_q, Nq - i);
            float* o_memory = advance(head.o, i * args.o.stride_row);
            Tile q = make_tile(rows, D), o = make_tile(rows, D);
            Tile row_max = make_tile(rows, 1), row_sum = make_tile(rows, 1);
            load(q, advance(head.q, i * args.q.stride_row), args.q.stride_row, traffic.q_loads);
            load(o, o_memory, args.o.stride_row, traffic.o_loads);
            load(row_max, &max_memory[static_cast<std::size_t>(i)], 1, traffic.state_loads);
            load(row_sum, &sum_memory[static_cast<std::size_t>(i)], 1, traffic.state_loads);

            multiply(o, row_sum);  // back to the unnormalised sum
            attend(args, i, j, q, k, v, o, row_max, row_sum);
            divide(o, row_sum, traffic.divisions);

            store(o, o_memory, args.o.stride_row, traffic.o_stores);
            store(row_max, &max_memory[static_cast<std::size_t>(i)], 1, traffic.state_stores);
            store(row_sum, &sum_memory[static_cast<std::size_t>(i)], 1, traffic.state_stores);
        }
    }

    for (std::int64_t i = 0; i < Nq; i += block_q) {
        const std::int64_t rows = std::min<std::int64_t>(block_q, Nq - i);
        Tile row_max = make_tile(rows, 1), row_sum = make_tile(rows, 1);
        load(row_max, &max_memory[static_cast<std::size_t>(i)], 1, traffic.state_loads);
        load(row_sum, &sum_memory[static_cast<std::size_t>(i)], 1, traffic.state_loads);
        store_lse(row_max, row_sum, head.lse + i, traffic.state_stores);
    }
}

void fa2_head(const ForwardArgs<float>& args, const Head& head, int block_q, int block_kv, Traffic& traffic) {
    const std::int64_t Nq = args.shape.len_q, Nk = args.shape.len_kv;
    const int D = args.shape.head_dim;

    for (std::int64_t i = 0; i < Nq; i += block_q) {
        const std::int64_t rows = std::min<std::int64_t>(block_q, Nq - i);
        Tile q = make_tile(rows, D), acc = make_tile(rows, D);
        Tile row_max = make_tile(rows, 1, -INFINITY), row_sum = make_tile(rows, 1);
        load(q, advance(head.q, i * args.q.stride_row), args.q.stride_row, traffic.q_loads);

        for (std::int64_t j = 0; j < Nk; j += block_kv) {
            const std::int64_t keys = std::min<std::int64_t>(block_kv, Nk - j);
            Tile k = make_tile(keys, D), v = make_tile(keys, D);
            load(k, advance(head.k, j * args.k.stride_row), args.k.stride_row, traffic.kv_loads);
            load(v, advance(head.v, j * args.v.stride_row), args.v.stride_row, traffic.kv_loads);
            attend(args, i, j, q, k, v, acc, row_max, row_sum);
        }

        divide(acc, row_sum, traffic.divisions);
        store(acc, advance(head.o, i * args.o.stride_row), args.o.stride_row, traffic.o_stores);
        store_lse(row_max, row_sum, head.lse + i, traffic.state_stores);
    }
}

template <class HeadFunction>
Traffic for_each_head(const ForwardArgs<float>& args, int block_q, int block_kv, HeadFunction function) {
    check_arguments(args, Limits{"step 03", 256});
    for (const auto& [name, block] : {std::pair{"block_q", block_q}, std::pair{"block_kv", block_kv}}) {
        if (block < 1 || block > 1024)
            detail::refuse(std::string(name) + " is " + std::to_string(block) +
                           "; a tile has 1 to 1024 rows");
    }
    const Shape& s = args.shape;
    Traffic traffic;
    if (s.len_q == 0) return traffic;
    for (std::int64_t b = 0; b < s.batch; ++b) {
        for (std::int64_t h = 0; h < s.heads_q; ++h) {
            const std::int64_t h_kv = h / (s.heads_q / s.heads_kv);
            const Head head{head_of(args.q, b, h), head_of(args.k, b, h_kv), head_of(args.v, b, h_kv),
                            head_of(args.o, b, h), args.lse + (b * s.heads_q + h) * s.len_q};
            function(args, head, block_q, block_kv, traffic);
        }
    }
    return traffic;
}

}  // namespace

Traffic fa1_forward(const ForwardArgs<float>& args, int block_q, int block_kv) {
    return for_each_head(args, block_q, block_kv, fa1_head);
}

Traffic fa2_forward(const ForwardArgs<float>& args, int block_q, int block_kv) {
    return for_each_head(args, block_q, block_kv, fa2_head);
}

}  // namespace flash::step03
