#include "primitives.hpp"

#include <stdexcept>

#include "common/gpu/gpu.hpp"
#include "common/gpu/tile.hpp"
#include "common/types.hpp"

namespace flash::primitives {

namespace {

constexpr int kLanes = 32;

template <class T> gpu::DeviceBuffer<T> to_device(const std::vector<T>& host) {
    gpu::DeviceBuffer<T> device(host.size());
    device.copy_from_host(host.data());
    return device;
}
template <class T> std::vector<T> to_host(const gpu::DeviceBuffer<T>& device) {
    std::vector<T> host(device.size());
    device.copy_to_host(host.data());
    return host;
}

template <bool kTransposed>
__global__ void ldmatrix_kernel(const std::uint16_t* rows, const std::uint32_t* order, std::uint32_t* out) {
    auto* smem = gpu::dynamic_smem<std::uint16_t>();
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 8; ++i) smem[lane * 8 + i] = rows[lane * 8 + i];
    __syncthreads();
    std::uint32_t r[4];
    const std::uint32_t address = gpu::smem_address(smem) + 16 * order[lane];
    if constexpr (kTransposed) {
        gpu::ldmatrix_x4_trans(r, address);
    } else {
        gpu::ldmatrix_x4(r, address);
    }
    for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

template <int HEAD_DIM> __global__ void swizzle_kernel(int* swizzled, int* along) {
    constexpr int CHUNKS = HEAD_DIM / 8;
    const int row = static_cast<int>(threadIdx.x);
    for (int c = 0; c < CHUNKS; ++c) {
        swizzled[row * CHUNKS + c] = gpu::swizzled<HEAD_DIM>(row, c);
        const auto first = static_cast<std::uint32_t>(gpu::swizzled<HEAD_DIM>(row, c % 2));
        along[row * CHUNKS + c] = static_cast<int>(gpu::along_row<HEAD_DIM>(first, c - c % 2));
    }
}

template <class T>
__global__ void mma_kernel(const std::uint32_t* a, const std::uint32_t* b, const float* c, float* d) {
    const int lane = static_cast<int>(threadIdx.x);
    std::uint32_t a_frag[4];
    float acc[4];
    for (int i = 0; i < 4; ++i) {
        a_frag[i] = a[lane * 4 + i];
        acc[i] = c[lane * 4 + i];
    }
    gpu::mma_m16n8k16<T>(acc, a_frag, b[lane * 2], b[lane * 2 + 1]);
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = acc[i];
}

// Lane i of ldmatrix names row i % 16, columns 8 (i / 16) ..: the four 8 x 8 quarters of a 16 x 16 tile in
// the order of the A fragment. Transposed, the same addresses give the two B fragments (columns 0 .. 7 and 8
// .. 15) of a 16 x 16 tile.
__device__ std::uint32_t quarter_address(const void* tile_smem, int row_elements, int lane) {
    const int element = lane % 16 * row_elements + lane / 16 * 8;
    return gpu::smem_address(tile_smem) + 2 * static_cast<std::uint32_t>(element);
}

template <class T> __device__ void load_tile(T* tile_smem, const T* tile_gmem, int elements) {
    for (int i = static_cast<int>(threadIdx.x); i < elements; i += kLanes) tile_smem[i] = tile_gmem[i];
}

__device__ void store_accumulator(float* d, const float (&acc)[4], int columns, int first_column) {
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8;
        d[row * columns + first_column + lane % 4 * 2 + i % 2] = acc[i];
    }
}

// B has 16 columns here, so that one ldmatrix_x4_trans fills both fragments; only the first 8 matter to
// multiply().
template <class T> __global__ void multiply_kernel(const T* a, const T* b, float* d) {
    T* a_smem = gpu::dynamic_smem<T>();
    T* b_smem = a_smem + 16 * 16;
    load_tile(a_smem, a, 16 * 16);
    load_tile(b_smem, b, 16 * 16);
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x);
    std::uint32_t a_frag[4], b_frag[4];
    gpu::ldmatrix_x4(a_frag, quarter_address(a_smem, 16, lane));
    gpu::ldmatrix_x4_trans(b_frag, quarter_address(b_smem, 16, lane));
    for (int half = 0; half < 2; ++half) {
        float acc[4] = {0, 0, 0, 0};
        gpu::mma_m16n8k16<T>(acc, a_frag, b_frag[2 * half], b_frag[2 * half + 1]);
        store_accumulator(d, acc, 16, 8 * half);
    }
}

template <class T> __global__ void multiply_twice_kernel(const T* a, const T* b, const T* b2, float* d) {
    T* a_smem = gpu::dynamic_smem<T>();
    T* b_smem = a_smem + 16 * 16;
    T* b2_smem = b_smem + 16 * 16;
    load_tile(a_smem, a, 16 * 16);
    load_tile(b_smem, b, 16 * 16);
    load_tile(b2_smem, b2, 16 * 16);
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x);
    std::uint32_t a_frag[4], b_frag[4];
    gpu::ldmatrix_x4(a_frag, quarter_address(a_smem, 16, lane));
    gpu::ldmatrix_x4_trans(b_frag, quarter_address(b_smem, 16, lane));
    float p[2][4] = {};
    gpu::mma_m16n8k16<T>(p[0], a_frag, b_frag[0], b_frag[1]);
    gpu::mma_m16n8k16<T>(p[1], a_frag, b_frag[2], b_frag[3]);
    const std::uint32_t p_frag[4] = {gpu::pack2<T>(p[0][0], p[0][1]), gpu::pack2<T>(p[0][2], p[0][3]),
                                     gpu::pack2<T>(p[1][0], p[1][1]), gpu::pack2<T>(p[1][2], p[1][3])};
    gpu::ldmatrix_x4_trans(b_frag, quarter_address(b2_smem, 16, lane));
    for (int half = 0; half < 2; ++half) {
        float acc[4] = {0, 0, 0, 0};
        gpu::mma_m16n8k16<T>(acc, p_frag, b_frag[2 * half], b_frag[2 * half + 1]);
        store_accumulator(d, acc, 16, 8 * half);
    }
}

__global__ void cp_async_kernel(const std::uint8_t* source, const int* bytes, std::uint8_t* out) {
    auto* smem = gpu::dynamic_smem<std::uint8_t>();
    const int lane = static_cast<int>(threadIdx.x);
    // A lane that copies nothing names an address that must not be read.
    const std::uint8_t* from = bytes[lane] == 0 ? nullptr : source + 16 * lane;
    gpu::cp_async_16(gpu::smem_address(smem + 16 * lane), from, bytes[lane]);
    gpu::cp_async_commit();
    gpu::cp_async_wait<0>();
    __syncthreads();
    for (int i = lane; i < 16 * kLanes; i += kLanes) out[i] = smem[i];
}

__global__ void cp_async_two_groups_kernel(const std::uint8_t* source, std::uint8_t* out) {
    auto* smem = gpu::dynamic_smem<std::uint8_t>();
    const int lane = static_cast<int>(threadIdx.x);
    for (int group = 0; group < 2; ++group) {
        const int at = 16 * (group * kLanes + lane);
        gpu::cp_async_16(gpu::smem_address(smem + at), source + at, 16);
        gpu::cp_async_commit();
    }
    gpu::cp_async_wait<1>();
    __syncthreads();
    for (int i = lane; i < 16 * kLanes; i += kLanes) out[i] = smem[i];
    gpu::cp_async_wait<0>();
    __syncthreads();
    for (int i = lane; i < 16 * kLanes; i += kLanes) out[16 * kLanes + i] = smem[16 * kLanes + i];
}

__global__ void shuffle_kernel(Shuffle kind, const float* value, float* out, int argument, int width) {
    const float mine = value[threadIdx.x];
    float result = 0;
    if (kind == Shuffle::kIndexed) result = __shfl_sync(0xffffffffu, mine, argument, width);
    if (kind == Shuffle::kXor) result = __shfl_xor_sync(0xffffffffu, mine, argument, width);
    if (kind == Shuffle::kUp)
        result = __shfl_up_sync(0xffffffffu, mine, static_cast<unsigned>(argument), width);
    if (kind == Shuffle::kDown)
        result = __shfl_down_sync(0xffffffffu, mine, static_cast<unsigned>(argument), width);
    out[threadIdx.x] = result;
}

__global__ void vote_kernel(const int* predicate, std::uint32_t* out) {
    const int mine = predicate[threadIdx.x];
    const auto any = static_cast<std::uint32_t>(__any_sync(0xffffffffu, mine) != 0);
    const auto all = static_cast<std::uint32_t>(__all_sync(0xffffffffu, mine) != 0);
    const std::uint32_t ballot = __ballot_sync(0xffffffffu, mine);
    if (threadIdx.x == 7) {
        out[0] = any;
        out[1] = all;
        out[2] = ballot;
    }
}

template <class T>
__global__ void pack2_kernel(const float* low, const float* high, std::uint32_t* out, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = gpu::pack2<T>(low[i], high[i]);
}

template <class T> __global__ void unpack2_kernel(const std::uint32_t* packed, float* out, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    const float2 pair = gpu::unpack2<T>(packed[i]);
    out[i] = pair.x;
    out[n + i] = pair.y;
}

__global__ void hand_over_kernel(int* out, int pairs, int rounds) {
    int* smem = gpu::dynamic_smem<int>();  // 32 numbers a pair, then an mbarrier a pair
    const int count = pairs * kLanes;
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int slot = static_cast<int>(threadIdx.x) % count;
    const std::uint32_t mbarrier = gpu::smem_address(smem + count) + warp % pairs * 8;
    if (warp < pairs && threadIdx.x % kLanes == 0) gpu::mbarrier_init(mbarrier, kLanes);
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
        if (warp < pairs) {
            smem[slot] = 1000 * round + slot;
            gpu::mbarrier_arrive(mbarrier);
        } else {
            gpu::mbarrier_wait(mbarrier, round % 2);
            out[round * count + slot] = smem[slot ^ 1];
        }
        __syncthreads();
    }
}

__global__ void atomic_add_x4_kernel(const float* x, float* sums) {
    const int first = 4 * static_cast<int>(threadIdx.x);
    const float values[4] = {x[first], x[first + 1], x[first + 2], x[first + 3]};
    gpu::atomic_add_x4(sums + first, values);
}

__global__ void exp2_kernel(const float* x, float* y, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = gpu::exp2_approx(x[i]);
}

__global__ void atomics_kernel(int* ints, unsigned* unsigneds, unsigned long long* longs, float* floats) {
    int* sum_smem = gpu::dynamic_smem<int>();
    const int id = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (threadIdx.x == 0) *sum_smem = 0;
    __syncthreads();
    atomicAdd(sum_smem, id);
    atomicAdd(&ints[0], id);
    atomicMax(&ints[1], id % 7 == 0 ? -id : id);
    atomicAdd(&unsigneds[0], static_cast<unsigned>(id));
    atomicMax(&unsigneds[1], static_cast<unsigned>(id));
    atomicAdd(&longs[0], static_cast<unsigned long long>(id) << 32);
    atomicAdd(&floats[0], static_cast<float>(id));
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&ints[2], *sum_smem);
}

__global__ void block_sum_kernel(const float* x, float* out) {
    float* smem = gpu::dynamic_smem<float>();
    smem[threadIdx.x] = x[threadIdx.x];
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) smem[threadIdx.x] += smem[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *out = smem[0];
}

template <class Vector> __global__ void copy_kernel(const Vector* x, Vector* y, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = x[i];
}
template <class Vector> std::vector<float> copy_as(const std::vector<float>& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    const int n = static_cast<int>(x.size() * sizeof(float) / sizeof(Vector));
    gpu::launch(copy_kernel<Vector>, static_cast<unsigned>(n + 63) / 64, 64, 0, nullptr,
                reinterpret_cast<const Vector*>(in.data()), reinterpret_cast<Vector*>(out.data()), n);
    return to_host(out);
}

}  // namespace

Words ldmatrix(const std::vector<std::uint16_t>& rows, const Words& order, bool transposed) {
    const auto in = to_device(rows);
    const auto order_gmem = to_device(order);
    gpu::DeviceBuffer<std::uint32_t> out(kLanes * 4);
    gpu::launch(transposed ? ldmatrix_kernel<true> : ldmatrix_kernel<false>, 1, kLanes, rows.size() * 2,
                nullptr, in.data(), order_gmem.data(), out.data());
    return to_host(out);
}

template <class T>
std::vector<float> mma_fragments(const Words& a, const Words& b, const std::vector<float>& c) {
    const auto a_gmem = to_device(a), b_gmem = to_device(b);
    const auto c_gmem = to_device(c);
    gpu::DeviceBuffer<float> d(kLanes * 4);
    gpu::launch(mma_kernel<T>, 1, kLanes, 0, nullptr, a_gmem.data(), b_gmem.data(), c_gmem.data(), d.data());
    return to_host(d);
}

template <class T> std::vector<float> multiply(const std::vector<T>& a, const std::vector<T>& b) {
    const auto a_gmem = to_device(a), b_gmem = to_device(b);
    gpu::DeviceBuffer<float> d(16 * 16);
    gpu::launch(multiply_kernel<T>, 1, kLanes, 2 * 16 * 16 * sizeof(T), nullptr, a_gmem.data(), b_gmem.data(),
                d.data());
    return to_host(d);
}

template <class T>
std::vector<float> multiply_twice(const std::vector<T>& a, const std::vector<T>& b,
                                  const std::vector<T>& b2) {
    const auto a_gmem = to_device(a), b_gmem = to_device(b), b2_gmem = to_device(b2);
    gpu::DeviceBuffer<float> d(16 * 16);
    gpu::launch(multiply_twice_kernel<T>, 1, kLanes, 3 * 16 * 16 * sizeof(T), nullptr, a_gmem.data(),
                b_gmem.data(), b2_gmem.data(), d.data());
    return to_host(d);
}

std::vector<std::uint8_t> cp_async(const std::vector<std::uint8_t>& source, const std::vector<int>& bytes) {
    const auto in = to_device(source);
    const auto bytes_gmem = to_device(bytes);
    gpu::DeviceBuffer<std::uint8_t> out(16 * kLanes);
    gpu::launch(cp_async_kernel, 1, kLanes, 16 * kLanes, nullptr, in.data(), bytes_gmem.data(), out.data());
    return to_host(out);
}

std::vector<std::uint8_t> cp_async_two_groups(const std::vector<std::uint8_t>& source) {
    const auto in = to_device(source);
    gpu::DeviceBuffer<std::uint8_t> out(source.size());
    gpu::launch(cp_async_two_groups_kernel, 1, kLanes, 2 * 16 * kLanes, nullptr, in.data(), out.data());
    return to_host(out);
}

std::vector<float> shuffle(Shuffle kind, const std::vector<float>& value, int argument, int width) {
    const auto in = to_device(value);
    gpu::DeviceBuffer<float> out(kLanes);
    gpu::launch(shuffle_kernel, 1, kLanes, 0, nullptr, kind, in.data(), out.data(), argument, width);
    return to_host(out);
}

Votes vote(const std::vector<int>& predicate) {
    const auto in = to_device(predicate);
    gpu::DeviceBuffer<std::uint32_t> out(3);
    gpu::launch(vote_kernel, 1, kLanes, 0, nullptr, in.data(), out.data());
    const auto host = to_host(out);
    return {host[0], host[1], host[2]};
}

template <class T> Words pack2(const std::vector<float>& low, const std::vector<float>& high) {
    const auto low_gmem = to_device(low), high_gmem = to_device(high);
    gpu::DeviceBuffer<std::uint32_t> out(low.size());
    const auto blocks = static_cast<unsigned>((low.size() + 127) / 128);
    gpu::launch(pack2_kernel<T>, blocks, 128, 0, nullptr, low_gmem.data(), high_gmem.data(), out.data(),
                static_cast<int>(low.size()));
    return to_host(out);
}

template <class T> std::vector<float> unpack2(const Words& packed) {
    const auto in = to_device(packed);
    gpu::DeviceBuffer<float> out(2 * packed.size());
    const auto blocks = static_cast<unsigned>((packed.size() + 127) / 128);
    gpu::launch(unpack2_kernel<T>, blocks, 128, 0, nullptr, in.data(), out.data(),
                static_cast<int>(packed.size()));
    return to_host(out);
}

std::vector<int> hand_over(int pairs, int rounds) {
    gpu::DeviceBuffer<int> out(static_cast<std::size_t>(rounds * pairs * kLanes));
    gpu::launch(hand_over_kernel, 1, static_cast<unsigned>(2 * pairs * kLanes),
                static_cast<std::size_t>(pairs * (kLanes * 4 + 8)), nullptr, out.data(), pairs, rounds);
    return to_host(out);
}

std::vector<float> atomic_add_x4(const std::vector<float>& x, int blocks) {
    const auto in = to_device(x);
    auto sums = to_device(std::vector<float>(x.size()));
    gpu::launch(atomic_add_x4_kernel, static_cast<unsigned>(blocks), kLanes, 0, nullptr, in.data(),
                sums.data());
    return to_host(sums);
}

std::vector<float> exp2_approx(const std::vector<float>& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(x.size());
    const auto blocks = static_cast<unsigned>((x.size() + 127) / 128);
    gpu::launch(exp2_kernel, blocks, 128, 0, nullptr, in.data(), out.data(), static_cast<int>(x.size()));
    return to_host(out);
}

Swizzle swizzle(int head_dim, int rows) {
    const auto size = static_cast<std::size_t>(rows * head_dim / 8);
    gpu::DeviceBuffer<int> swizzled(size), along(size);
    const auto run = [&](auto kernel) {
        gpu::launch(kernel, 1, static_cast<unsigned>(rows), 0, nullptr, swizzled.data(), along.data());
    };
    switch (head_dim) {
        case 32:
            run(swizzle_kernel<32>);
            break;
        case 64:
            run(swizzle_kernel<64>);
            break;
        case 96:
            run(swizzle_kernel<96>);
            break;
        case 128:
            run(swizzle_kernel<128>);
            break;
        case 256:
            run(swizzle_kernel<256>);
            break;
        default:
            throw std::invalid_argument("no kernel was built for this head dimension");
    }
    return {to_host(swizzled), to_host(along)};
}

AtomicResults atomics(int blocks, int threads) {
    auto ints = to_device(std::vector<int>{0, -1000000, 0});
    auto unsigneds = to_device(std::vector<unsigned>{0, 0});
    auto longs = to_device(std::vector<unsigned long long>{0});
    auto floats = to_device(std::vector<float>{0});
    gpu::launch(atomics_kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), sizeof(int),
                nullptr, ints.data(), unsigneds.data(), longs.data(), floats.data());
    const auto i = to_host(ints);
    const auto u = to_host(unsigneds);
    return {i[0], i[1], u[0], u[1], to_host(longs)[0], to_host(floats)[0], i[2]};
}

float block_sum(const std::vector<float>& x) {
    const auto in = to_device(x);
    gpu::DeviceBuffer<float> out(1);
    gpu::launch(block_sum_kernel, 1, static_cast<unsigned>(x.size()), x.size() * sizeof(float), nullptr,
                in.data(), out.data());
    return to_host(out)[0];
}

std::vector<float> copy_float4(const std::vector<float>& x) {
    return copy_as<float4>(x);
}
std::vector<float> copy_float2(const std::vector<float>& x) {
    return copy_as<float2>(x);
}

template std::vector<float> mma_fragments<fp16>(const Words&, const Words&, const std::vector<float>&);
template std::vector<float> mma_fragments<bf16>(const Words&, const Words&, const std::vector<float>&);
template std::vector<float> multiply<fp16>(const std::vector<fp16>&, const std::vector<fp16>&);
template std::vector<float> multiply<bf16>(const std::vector<bf16>&, const std::vector<bf16>&);
template std::vector<float> multiply_twice<fp16>(const std::vector<fp16>&, const std::vector<fp16>&,
                                                 const std::vector<fp16>&);
template std::vector<float> multiply_twice<bf16>(const std::vector<bf16>&, const std::vector<bf16>&,
                                                 const std::vector<bf16>&);
template Words pack2<fp16>(const std::vector<float>&, const std::vector<float>&);
template Words pack2<bf16>(const std::vector<float>&, const std::vector<float>&);
template std::vector<float> unpack2<fp16>(const Words&);
template std::vector<float> unpack2<bf16>(const Words&);

}  // namespace flash::primitives
