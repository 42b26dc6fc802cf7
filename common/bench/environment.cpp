#include <array>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "commit.hpp"  // written by the build: kCommit
#include "common/bench/results.hpp"

namespace flash::bench {

namespace {

std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const auto colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown-processor";
}

std::string vector_instructions() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return "avx512";
    if (__builtin_cpu_supports("avx2")) return "avx2";
    return "sse2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "scalar";
#endif
}

// Lower-case words joined by '-': fit for a file name.
std::string slug(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte)) {
            out += static_cast<char>(std::tolower(byte));
        } else if (!out.empty() && out.back() != '-') {
            out += '-';
        }
    }
    while (!out.empty() && out.back() == '-') out.pop_back();
    return out;
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::array<char, 16> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%d", std::gmtime(&now));
    return text.data();
}

}  // namespace

Environment current_environment(const std::string& device) {
    const char* named = std::getenv("FLASH_STEPS_MACHINE");
    const std::string machine = slug(processor_name() + " " + vector_instructions() + " " +
                                     std::to_string(std::thread::hardware_concurrency()) + "cores");
    return {named != nullptr && *named != '\0' ? slug(named) : machine,
            device.empty() ? processor_name() : device,
            FLASH_BENCH_COMPILER,
            FLASH_BENCH_FLAGS,
            kCommit,
            today()};
}

}  // namespace flash::bench
