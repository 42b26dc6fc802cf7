#include "common/gpu/gpu.hpp"
#include "kernels.hpp"

namespace flash::emulator {

namespace {

gpu::DeviceBuffer<float> to_device(const Floats& host) {
    gpu::DeviceBuffer<float> device(host.size());
    device.copy_from_host(host.data());
    return device;
}
template <class T> std::vector<T> to_host(const gpu::DeviceBuffer<T>& device) {
    std::vector<T> host(device.size());
    device.copy_to_host(host.data());
    return host;
}

__global__ void add_kernel(const float* a, const float* b, float* c, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void sum_all_kernel(const float* x, float* out, int n) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <bool kExtraLoad> __global__ void scale_kernel(const float* x, float* y, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    float value = 2 * x[i];
    if (kExtraLoad) value += 0.5f * x[(i + 1) % n];
    y[i] = value;
}

__global__ void reverse_kernel(const float* x, float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = smem[blockDim.x - 1 - threadIdx.x];
}

__global__ void exchange_kernel(const float* x, float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    const float neighbour = smem[threadIdx.x ^ 1u];
    __syncwarp();
    smem[threadIdx.x] = neighbour;
    y[threadIdx.x] = smem[threadIdx.x];
}

__global__ void order_kernel(int* next, int* order) {
    if (threadIdx.x % 32 != 0) return;
    const int place = atomicAdd(next, 1);
    order[place] = static_cast<int>(blockIdx.x * blockDim.x / 32 + threadIdx.x / 32);
}

constexpr float kTable[] = {3, 1, 4, 1, 5, 9, 2, 6};
__global__ void table_kernel(float* y, const int* index) {
    y[threadIdx.x] = kTable[index[threadIdx.x] % 8];
}

__global__ void every_instruction_kernel(const float* x, float* y, int* counter, int repetitions) {
    float* smem = gpu::dynamic_smem<float>();
    float acc[4] = {0, 0, 0, 0};
    for (int n = 0; n < repetitions; ++n) {
        gpu::cp_async_16(gpu::smem_address(smem + 4 * threadIdx.x), x + 4 * threadIdx.x, 16);
        gpu::cp_async_commit();
        gpu::cp_async_wait<0>();
        __syncthreads();
        std::uint32_t a[4];
        gpu::ldmatrix_x4(a, gpu::smem_address(smem + 4 * threadIdx.x));
        gpu::mma_m16n8k16<bf16>(acc, a, a[0], a[1]);
        acc[0] += gpu::exp2_approx(acc[1]);
        if (threadIdx.x == 0) atomicAdd(counter, 1);
        __syncthreads();
    }
    y[threadIdx.x] = acc[0];
}

__global__ void ldmatrix_stride_kernel(int stride_bytes) {
    auto* smem = gpu::dynamic_smem<unsigned>();
    for (unsigned i = threadIdx.x; i < 32 * static_cast<unsigned>(stride_bytes) / 4; i += 32) smem[i] = i;
    __syncthreads();
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, gpu::smem_address(smem) + threadIdx.x * static_cast<unsigned>(stride_bytes));
}

__global__ void cp_async_stride_kernel(const float* x, int stride_bytes) {
    const std::uint32_t row = threadIdx.x * static_cast<unsigned>(stride_bytes);
    gpu::cp_async_16(gpu::smem_address(gpu::dynamic_smem<float>()) + row, x + 4 * threadIdx.x, 16);
    gpu::cp_async_commit();
    gpu::cp_async_wait<0>();
    __syncthreads();
}

// Every block leaves a copy on its way, to where the next block's threads write.
__global__ void unfinished_copy_kernel(const float* x, float* y) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = 3;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = smem[threadIdx.x ^ 1u];
    __syncthreads();
    if (threadIdx.x < 8) gpu::cp_async_16(gpu::smem_address(smem + 4 * threadIdx.x), x + 4 * threadIdx.x, 16);
}

// A long row of __syncwarp, after a barrier and a cp.async whose bytes are still on their way.
__global__ void many_syncwarps_kernel(const float* x, float* y, int syncs) {
    float* smem = gpu::dynamic_smem<float>();
    gpu::cp_async_16(gpu::smem_address(smem + 4 * threadIdx.x), x + 4 * threadIdx.x, 16);
    gpu::cp_async_commit();
    smem[128 + threadIdx.x] = 1;
    __syncthreads();
    for (int i = 0; i < syncs; ++i) __syncwarp();
    float sum = smem[128 + (threadIdx.x ^ 1u)];
    gpu::cp_async_wait<0>();
    sum += smem[4 * threadIdx.x];
    y[threadIdx.x] = sum;
}

template <class T> __global__ void global_stride_kernel(const char* x, char* y, int stride_bytes) {
    const unsigned place = threadIdx.x * static_cast<unsigned>(stride_bytes);
    *reinterpret_cast<T*>(y + place) = *reinterpret_cast<const T*>(x + place);
}
template <class T> __global__ void shared_stride_kernel(T* y, int stride_bytes) {
    char* smem = gpu::dynamic_smem<char>() + threadIdx.x * static_cast<unsigned>(stride_bytes);
    *reinterpret_cast<T*>(smem) = T{};
    __syncwarp();
    y[threadIdx.x] = *reinterpret_cast<const T*>(smem);
}
template <class T> void run_shared_stride(int stride_bytes) {
    gpu::DeviceBuffer<T> y(32);
    gpu::launch(shared_stride_kernel<T>, 1, 32, static_cast<std::size_t>(32 * stride_bytes + 16), nullptr,
                y.data(), stride_bytes);
}

template <bool kExtraLoad> __global__ void triangle_kernel(const float* x, float* y, int n) {
    float sum = 0;
    for (int i = 0; i <= static_cast<int>(threadIdx.x); ++i) sum += x[i];
    if (kExtraLoad) sum += x[n - 1];
    y[threadIdx.x] = sum;
}

__global__ void exponentials_kernel(const float* x, float* y) {
    const float value = x[threadIdx.x];
    y[threadIdx.x] = expf(value) + __expf(value) + gpu::exp2_approx(value);
}

__global__ void reverse_global_kernel(const float* x, float* between, float* y) {
    const unsigned first = blockIdx.x * blockDim.x;
    between[first + threadIdx.x] = x[first + threadIdx.x];
    __syncthreads();
    y[first + threadIdx.x] = between[first + blockDim.x - 1 - threadIdx.x];
}

// All lanes of warp 0 read one number; warp 1 overwrites it when they have arrived.
__global__ void hand_over_kernel(float* y) {
    float* smem = gpu::dynamic_smem<float>();
    const std::uint32_t mbarrier = gpu::smem_address(smem + 2);
    if (threadIdx.x == 0) {
        *smem = 1;
        gpu::mbarrier_init(mbarrier, 32);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        y[threadIdx.x] = *smem;
        gpu::mbarrier_arrive(mbarrier);
    } else {
        gpu::mbarrier_wait(mbarrier, 0);
        if (threadIdx.x == 32) *smem = 2;
    }
}

__global__ void neighbour_kernel(const float* x, float* y) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[(i + blockDim.x) % (gridDim.x * blockDim.x)];
}

__global__ void count_blocks_kernel(int* counter) {
    atomicAdd(counter, 1);
}

__global__ void empty_kernel() {}

__global__ void visit_kernel(int* visits) {
    const unsigned id = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    visits[id * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

__global__ void many_barriers_kernel(int barriers) {
    int* smem = gpu::dynamic_smem<int>();
    if (threadIdx.x == 0) *smem = 0;
    for (int i = 0; i < barriers; ++i) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) == i % 2) *smem = *smem + 1;
    }
    __syncthreads();
}

}  // namespace

Floats add(const Floats& a, const Floats& b) {
    const auto a_gmem = to_device(a), b_gmem = to_device(b);
    gpu::DeviceBuffer<float> c(a.size());
    const auto blocks = static_cast<unsigned>((a.size() + 127) / 128);
    gpu::launch(add_kernel, blocks, 128, 0, nullptr, a_gmem.data(), b_gmem.data(), c.data(),
                static_cast<int>(a.size()));
    return to_host(c);
}

Floats sum_all_in_every_thread(const Floats& x, int blocks, int threads) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(static_cast<std::size_t>(blocks * threads));
    gpu::launch(sum_all_kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, nullptr,
                in.data(), out.data(), static_cast<int>(x.size()));
    return to_host(out);
}

Floats scale(const Floats& x, bool extra_load) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    const auto blocks = static_cast<unsigned>((x.size() + 63) / 64);
    gpu::launch(extra_load ? scale_kernel<true> : scale_kernel<false>, blocks, 64, 0, nullptr, in.data(),
                out.data(), static_cast<int>(x.size()));
    return to_host(out);
}

Floats reverse_through_shared(const Floats& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    gpu::launch(reverse_kernel, 1, static_cast<unsigned>(x.size()), x.size() * sizeof(float), nullptr,
                in.data(), out.data());
    return to_host(out);
}

Floats exchange_in_warps(const Floats& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    gpu::launch(exchange_kernel, 1, static_cast<unsigned>(x.size()), x.size() * sizeof(float), nullptr,
                in.data(), out.data());
    return to_host(out);
}

std::vector<int> order_of_warps(int warps, int blocks) {
    const int zero = 0;
    gpu::DeviceBuffer<int> next(1), order(static_cast<std::size_t>(warps * blocks));
    next.copy_from_host(&zero);
    gpu::launch(order_kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(warps) * 32, 0, nullptr,
                next.data(), order.data());
    return to_host(order);
}

Floats from_constant_table(int n) {
    std::vector<int> index(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) index[static_cast<std::size_t>(i)] = i;
    gpu::DeviceBuffer<int> index_gmem(index.size());
    index_gmem.copy_from_host(index.data());
    gpu::DeviceBuffer<float> out(index.size());
    gpu::launch(table_kernel, 1, static_cast<unsigned>(n), 0, nullptr, out.data(), index_gmem.data());
    return to_host(out);
}

void use_every_instruction(int repetitions) {
    const auto in = to_device(Floats(4 * 64, 1.0f));
    gpu::DeviceBuffer<float> out(64);
    gpu::DeviceBuffer<int> counter(1);
    const int zero = 0;
    counter.copy_from_host(&zero);
    gpu::launch(every_instruction_kernel, 1, 64, 64 * 16, nullptr, in.data(), out.data(), counter.data(),
                repetitions);
}

void ldmatrix_with_row_stride(int stride_bytes) {
    gpu::launch(ldmatrix_stride_kernel, 1, 32, static_cast<std::size_t>(32 * stride_bytes), nullptr,
                stride_bytes);
}

void cp_async_with_row_stride(int stride_bytes) {
    const auto in = to_device(Floats(4 * 32, 1.0f));
    gpu::launch(cp_async_stride_kernel, 1, 32, static_cast<std::size_t>(32 * stride_bytes), nullptr,
                in.data(), stride_bytes);
}

Floats leave_copies_unfinished(int blocks) {
    const auto in = to_device(Floats(32, 1.0f));
    gpu::DeviceBuffer<float> out(static_cast<std::size_t>(32 * blocks));
    gpu::launch(unfinished_copy_kernel, static_cast<unsigned>(blocks), 32, 128, nullptr, in.data(),
                out.data());
    return to_host(out);
}

Floats many_syncwarps(int syncs) {
    const auto in = to_device(Floats(128, 5.0f));
    gpu::DeviceBuffer<float> out(32);
    gpu::launch(many_syncwarps_kernel, 1, 32, 512 + 128, nullptr, in.data(), out.data(), syncs);
    return to_host(out);
}

void global_with_stride(int bytes, int stride_bytes, int offset_bytes) {
    const auto size = static_cast<std::size_t>(32 * stride_bytes + offset_bytes + 16);
    gpu::DeviceBuffer<char> x(size), y(size);
    x.copy_from_host(std::vector<char>(size, 1).data());
    const auto kernel = bytes == 2   ? global_stride_kernel<short>
                        : bytes == 4 ? global_stride_kernel<float>
                        : bytes == 8 ? global_stride_kernel<float2>
                                     : global_stride_kernel<float4>;
    gpu::launch(kernel, 1, 32, 0, nullptr, x.data() + offset_bytes, y.data() + offset_bytes, stride_bytes);
}

void shared_with_stride(int bytes, int stride_bytes) {
    if (bytes == 2) run_shared_stride<short>(stride_bytes);
    if (bytes == 4) run_shared_stride<float>(stride_bytes);
    if (bytes == 8) run_shared_stride<float2>(stride_bytes);
    if (bytes == 16) run_shared_stride<float4>(stride_bytes);
}

void load_once_more_in_each_lane(bool extra_load) {
    const auto in = to_device(Floats(32, 1.0f));
    gpu::DeviceBuffer<float> out(32);
    gpu::launch(extra_load ? triangle_kernel<true> : triangle_kernel<false>, 1, 32, 0, nullptr, in.data(),
                out.data(), 32);
}

Floats exponentials(const Floats& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    gpu::launch(exponentials_kernel, 1, static_cast<unsigned>(x.size()), 0, nullptr, in.data(), out.data());
    return to_host(out);
}

Floats reverse_through_global(const Floats& x, int blocks) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> between(x.size()), out(x.size());
    gpu::launch(reverse_global_kernel, static_cast<unsigned>(blocks),
                static_cast<unsigned>(x.size()) / static_cast<unsigned>(blocks), 0, nullptr, in.data(),
                between.data(), out.data());
    return to_host(out);
}

Floats hand_over_at_mbarrier() {
    gpu::DeviceBuffer<float> y(32);
    gpu::launch(hand_over_kernel, 1, 64, 16, nullptr, y.data());
    return to_host(y);
}

Floats one_launch_after_the_other(const Floats& x) {
    auto a = to_device(x), b = to_device(x);
    const auto blocks = static_cast<unsigned>(x.size() / 32);
    gpu::launch(neighbour_kernel, blocks, 32, 0, nullptr, a.data(), b.data());
    gpu::launch(neighbour_kernel, blocks, 32, 0, nullptr, b.data(), a.data());
    return to_host(a);
}

int add_in_every_block(int blocks) {
    gpu::DeviceBuffer<int> counter(1);
    const int zero = 0;
    counter.copy_from_host(&zero);
    gpu::launch(count_blocks_kernel, static_cast<unsigned>(blocks), 64, 0, nullptr, counter.data());
    return to_host(counter)[0];
}

void launch_empty(unsigned grid_y, unsigned block_x, std::size_t shared_bytes) {
    gpu::launch(empty_kernel, dim3(1, grid_y), block_x, shared_bytes, nullptr);
}

bool every_thread_runs_once(int blocks, int threads) {
    const auto n = static_cast<std::size_t>(2 * 3 * blocks * threads * 2);
    gpu::DeviceBuffer<int> visits(n);
    visits.copy_from_host(std::vector<int>(n, 0).data());
    gpu::launch(visit_kernel, dim3(static_cast<unsigned>(blocks), 2, 3),
                dim3(static_cast<unsigned>(threads), 1, 2), 0, nullptr, visits.data());
    return to_host(visits) == std::vector<int>(n, 1);
}

void many_barriers(int barriers) {
    gpu::launch(many_barriers_kernel, 1, 2, sizeof(int), nullptr, barriers);
}

}  // namespace flash::emulator
