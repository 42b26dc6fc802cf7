// common/gpu/device.hpp and launches on the CUDA runtime. Every call is checked.
#include <cuda_runtime.h>
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "common/gpu/device.hpp"
#include "common/gpu/launch_checks.hpp"
#include "common/gpu/launch_cuda.hpp"
#include "common/simt/control.hpp"

namespace flash::gpu {

namespace {

std::atomic<std::size_t> shared_limit = std::numeric_limits<std::size_t>::max();

constexpr std::size_t kSharedWithoutOptIn = std::size_t{48} * 1024;

std::string text(cudaError_t error) {
    return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

void check(cudaError_t error, const std::string& what) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // so that the next check does not report this one again
    throw DeviceError(what + ": " + text(error));
}

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
    return value;
}

int current_device() {
    int device = 0;
    check(cudaGetDevice(&device), "finding the current device");
    return device;
}

int compute_capability(int device) {
    return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
           attribute(cudaDevAttrComputeCapabilityMinor, device);
}

std::string built_for(int device) {
    return std::string("built for ") + FLASH_STEPS_BUILT_FOR + "; this device is sm_" +
           std::to_string(compute_capability(device));
}

std::string kernel_name([[maybe_unused]] const void* kernel) {
    const char* name = nullptr;
#if CUDART_VERSION >= 12030
    if (cudaFuncGetName(&name, kernel) != cudaSuccess) cudaGetLastError();
#endif
    if (name == nullptr) return "(unnamed)";
    int status = 0;
    char* demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    const std::string result = status == 0 ? demangled : name;
    std::free(demangled);
    return result;
}

// What is known about a kernel on a device, asked for once.
struct KernelFacts {
    std::size_t static_shared = 0;
    std::size_t shared_available = 0;  // dynamic, with the opt-in
    std::size_t shared_allowed = 0;    // dynamic, so far
    int max_threads = 0;               // what its registers leave room for
};

KernelFacts ask_about(const void* kernel, int device) {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        cudaGetLastError();
        throw DeviceError("no code for this device: " + built_for(device));
    }
    check(error, "asking about a kernel");
    const auto optin = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const std::size_t fixed = attributes.sharedSizeBytes;
    return {fixed, optin - std::min(optin, fixed), kSharedWithoutOptIn - std::min(kSharedWithoutOptIn, fixed),
            attributes.maxThreadsPerBlock};
}

std::mutex facts_mutex;
std::map<std::pair<int, const void*>, KernelFacts> all_facts;

}  // namespace

namespace detail {

void launch_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
                   void** arguments) {
    const int device = current_device();
    const std::lock_guard lock(facts_mutex);
    auto found = all_facts.find({device, kernel});
    if (found == all_facts.end())
        found = all_facts.emplace(std::pair{device, kernel}, ask_about(kernel, device)).first;
    KernelFacts& facts = found->second;

    const std::string illegal = why_launch_is_illegal(grid, block, shared_bytes,
                                                      std::min(facts.shared_available, shared_limit.load()));
    if (!illegal.empty()) throw DeviceError("kernel " + kernel_name(kernel) + ": " + illegal);
    const unsigned threads = block.x * block.y * block.z;
    if (threads > static_cast<unsigned>(facts.max_threads)) {
        throw DeviceError("kernel " + kernel_name(kernel) + ": a block of " + std::to_string(threads) +
                          " threads; its registers leave room for " + std::to_string(facts.max_threads));
    }
    if (shared_bytes > facts.shared_allowed) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)),
              "raising the shared memory of kernel " + kernel_name(kernel));
        facts.shared_allowed = shared_bytes;
    }
    check(cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, static_cast<cudaStream_t>(stream)),
          "launching a kernel");
    check(cudaGetLastError(), "launching a kernel");
}

void* device_allocate(std::size_t bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "allocating " + std::to_string(bytes) + " bytes of device memory");
    return data;
}

void device_free(void* data) {
    check(cudaFree(data), "freeing device memory");
}

void copy_to_device(void* device, const void* host, std::size_t bytes) {
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "copying to the device");
}

void copy_to_host(void* host, const void* device, std::size_t bytes) {
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "copying from the device");
}

}  // namespace detail

namespace {

DeviceInfo ask_about_device(int device) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "asking about the device");
    return {.name = properties.name,
            .sm_count = properties.multiProcessorCount,
            .cc_major = properties.major,
            .cc_minor = properties.minor,
            .shared_per_block_optin = properties.sharedMemPerBlockOptin,
            .shared_per_sm = properties.sharedMemPerMultiprocessor,
            .register_bytes_per_sm = static_cast<std::size_t>(properties.regsPerMultiprocessor) * 4,
            .l2_bytes = static_cast<std::size_t>(properties.l2CacheSize),
            .memory_bytes = properties.totalGlobalMem,
            .clock_mhz = attribute(cudaDevAttrClockRate, device) / 1000,
            .is_emulator = false};
}

}  // namespace

// Asked for once per device: the query takes longer than many a kernel, and launchers look at it.
DeviceInfo device_info() {
    static std::mutex mutex;
    static std::map<int, DeviceInfo> known;
    const int device = current_device();
    const std::lock_guard lock(mutex);
    auto found = known.find(device);
    if (found == known.end()) found = known.emplace(device, ask_about_device(device)).first;
    DeviceInfo info = found->second;
    info.shared_per_block_optin = std::min(info.shared_per_block_optin, shared_limit.load());
    return info;
}

void synchronize() {
    check(cudaDeviceSynchronize(), "waiting for the device");
}

std::string why_no_device() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        cudaGetLastError();
        int driver = 0;
        cudaDriverGetVersion(&driver);
        const auto version = [](int v) {
            return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
        };
        return driver == 0 ? "no NVIDIA driver is installed"
                           : "the NVIDIA driver supports CUDA " + version(driver) +
                                 " and this program needs CUDA " + version(CUDART_VERSION);
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        return "no CUDA device: " + text(error);
    }
    if (count == 0) return "no CUDA device is visible";
    try {
        const int device = current_device();
        return compute_capability(device) < FLASH_STEPS_OLDEST_ARCHITECTURE ? built_for(device) : "";
    } catch (const DeviceError& e) {
        return e.what();
    }
}

}  // namespace flash::gpu

namespace flash::simt {

void set_seed(std::uint64_t) {}
std::uint64_t seed() {
    return 0;
}
void set_shared_memory_limit(std::size_t bytes) {
    gpu::shared_limit = bytes;
}

}  // namespace flash::simt
