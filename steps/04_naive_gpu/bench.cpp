// Step 04: the vector add's mask checked; the row softmax, fused and in four kernels, and attention with S
// and P in global memory measured. On the emulator the traffic is counted and set beside the formula; on a
// GPU it is timed.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention.hpp"
#include "common/bench/device_timing.hpp"
#include "common/bench/forward_bench.hpp"
#include "common/bench/softmax_bench.hpp"
#include "common/gpu/device.hpp"
#include "softmax.hpp"
#include "vector_add.hpp"

namespace {

using namespace flash;

// S in fp32 is stored and loaded once, P likewise in the element type; Q, K, V and O move once. For fp32
// these are 4 N^2 + 4 N D elements a head. L adds 4 bytes a row.
double three_kernels(const Shape& s, int element_bytes) {
    const double heads = 1.0 * s.batch * s.heads_q;
    const double scores = heads * s.len_q * s.len_kv;
    const double tensors = heads * (2.0 * s.len_q + 2.0 * s.len_kv) * s.head_dim;
    return 2 * scores * sizeof(float) + (2 * scores + tensors) * element_bytes +
           heads * s.len_q * sizeof(float);
}

template <class T> bench::GpuForward<T> naive_forward() {
    return {[](const ForwardArgs<T>& args) { step04::attention_forward(args); },
            [](const Shape& shape) -> bench::Forward<T> {
                const std::int64_t bytes = step04::workspace_bytes<T>(shape);
                const auto workspace =
                    std::make_shared<gpu::DeviceBuffer<std::byte>>(static_cast<std::size_t>(bytes));
                return [workspace, bytes](const ForwardArgs<T>& args) {
                    step04::attention_forward(args, workspace->data(), bytes);
                };
            }};
}

Shape matrix_shape(std::int64_t rows, std::int64_t cols) {
    return {1, 1, 1, static_cast<int>(rows), static_cast<int>(cols), 1};
}

// One matrix on the device, for the fused and the unfused softmax.
template <class T> class SoftmaxBench {
  public:
    SoftmaxBench(bench::Session& session, std::int64_t rows, std::int64_t cols)
        : session_(session),
          rows_(rows),
          cols_(cols),
          host_x_(bench::random_normal<T>(rows * cols, 1)),
          x_(host_x_.size()),
          y_(host_x_.size()),
          row_max_(static_cast<std::size_t>(rows)),
          row_sum_(static_cast<std::size_t>(rows)) {
        x_.copy_from_host(host_x_.data());
    }

    void run() {
        const bool stays_on_chip = cols_ * static_cast<std::int64_t>(sizeof(T)) <= step04::kOnChipRowBytes;
        const std::vector<Variant> variants = {
            {"softmax, one kernel", stays_on_chip ? 2 : 3, 0,
             [this] { step04::softmax_fused(x_.data(), y_.data(), rows_, cols_); }},
            // max reads; exp reads, writes; sum reads; division reads, writes
            {"softmax, four kernels", 6, 4, [this] {
                 step04::softmax_unfused(x_.data(), y_.data(), row_max_.data(), row_sum_.data(), rows_,
                                         cols_);
             }}};
        for (const Variant& variant : variants) check(variant);
        if (session_.backend() == "emulator") {
            for (const Variant& variant : variants) count(variant);
        } else {
            time(variants);
        }
    }

  private:
    struct Variant {
        std::string name;
        int passes;       // over the matrix, reading or writing
        int row_vectors;  // of fp32, stored or loaded: maximum and sum between the four kernels
        std::function<void()> call;
    };

    bench::Case as_case(const std::string& variant) const {
        return {variant,         session_.backend(),         "softmax",
                dtype_name<T>(), matrix_shape(rows_, cols_), Mask::none()};
    }
    double row_bytes() const { return static_cast<double>(rows_) * sizeof(float); }
    double matrix_bytes() const { return static_cast<double>(host_x_.size() * sizeof(T)); }

    // The first, the last and some rows between, in double precision. Rounding to T costs half a unit in the
    // last place of an output; the unfused exp and the division round once each.
    void check(const Variant& variant) {
        variant.call();
        gpu::synchronize();
        std::vector<T> host_y(host_x_.size());
        y_.copy_to_host(host_y.data());
        const double tolerance = sizeof(T) == sizeof(float) ? bench::softmax_tolerance(cols_) : 0x1p-7;
        std::string failure;
        for (std::int64_t row = 0; row < rows_; row += std::max<std::int64_t>(1, (rows_ - 1) / 8)) {
            const auto row_of = [&](const std::vector<T>& matrix) {
                std::vector<float> values;
                for (std::int64_t i = 0; i < cols_; ++i) {
                    values.push_back(to_float(matrix[static_cast<std::size_t>(row * cols_ + i)]));
                }
                return values;
            };
            const std::string wrong = bench::softmax_failure(row_of(host_x_), row_of(host_y), tolerance);
            if (!wrong.empty()) failure = "row " + std::to_string(row) + ": " + wrong;
        }
        session_.check(variant.name + ", " + dtype_name<T>() + " " + std::to_string(rows_) + " rows of " +
                           std::to_string(cols_),
                       failure);
    }

    void count(const Variant& variant) {
        std::vector<bench::Metric> metrics = bench::count_device_work(variant.call);
        metrics.push_back(
            {"model_per_launch", "bytes",
             bench::exactly(variant.passes * matrix_bytes() + variant.row_vectors * row_bytes())});
        session_.record(as_case(variant.name), metrics);
    }

    // At least the matrix has to be read and written; of the writes, the L2 cache may still hold its size.
    void time(const std::vector<Variant>& variants) {
        const auto l2_bytes = static_cast<double>(gpu::device_info().l2_bytes);
        const bench::Work work{0, std::max(0.0, 2 * matrix_bytes() - l2_bytes)};
        std::vector<bench::Variant> timed;
        for (const Variant& variant : variants) {
            timed.push_back({variant.name,
                             variant.call,
                             work,
                             variant.passes * matrix_bytes(),
                             {{"passes", "", bench::exactly(variant.passes)}}});
        }
        const auto watch = bench::device_stopwatch();
        const double copy = bench::measure_device_peaks("fp32").bytes_per_second;
        session_.measure(as_case(""), *watch, timed, {0, copy}, {3, 10, 100, session_.tour() ? 0.1 : 0.5});
    }

    bench::Session& session_;
    std::int64_t rows_, cols_;
    std::vector<T> host_x_;
    gpu::DeviceBuffer<T> x_, y_;
    gpu::DeviceBuffer<float> row_max_, row_sum_;
};

// 300 elements in blocks of 128: three blocks, and in the third the mask lets 44 threads through.
void show_the_mask(bench::Session& session) {
    const std::vector<int> zeros(3, 0);
    std::vector<int> live(zeros);
    gpu::DeviceBuffer<int> device_live(live.size());
    device_live.copy_from_host(zeros.data());
    step04::count_live_threads(device_live.data(), 300);
    gpu::synchronize();
    device_live.copy_to_host(live.data());
    session.check("vector add of 300 elements in blocks of 128: 44 live threads in the third block",
                  live == std::vector<int>{128, 128, 44} ? "" : std::to_string(live[2]) + " live threads");
}

void softmax_and_vector_add(bench::Session& session) {
    show_the_mask(session);
    if (session.backend() == "emulator") {
        SoftmaxBench<float>(session, 16, 512).run();
        SoftmaxBench<bf16>(session, 16, 512).run();
        return;
    }
    constexpr std::int64_t kElements = std::int64_t{1} << 28;  // far beyond any L2 cache
    for (const std::int64_t cols : {1024, 4096, 16384, 65536}) {
        if (session.tour() && cols != 4096) continue;
        SoftmaxBench<float>(session, kElements / cols, cols).run();
        SoftmaxBench<bf16>(session, kElements / cols, cols).run();
    }
}

}  // namespace

int main(int argc, char** argv) {
    bench::GpuForwardStep step{
        {"04", "the first GPU attention keeps S and P in global memory and reads K uncoalesced"}};
    step.variant = "three kernels";
    step.max_len = 4096;
    step.fp32 = naive_forward<float>();
    step.half = naive_forward<fp16>();
    step.bfloat = naive_forward<bf16>();
    step.per_launch = three_kernels;
    step.more = softmax_and_vector_add;
    return bench::forward_bench(argc, argv, {step});
}
