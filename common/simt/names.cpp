// How errors name things: kernels, source lines, threads, addresses.
#include <dlfcn.h>

#include <cstdio>

#include "common/simt/machine.hpp"

namespace flash::simt {

namespace {

// What addr2line, which comes with the compiler, answers about a place in the program's code: the lines that
// say something. A position-independent image is linked at 0, a fixed one at the address where it runs: both
// are asked for.
const std::vector<std::string>& ask_addr2line(const std::string& options, std::uintptr_t code) {
    static std::map<std::pair<std::string, std::uintptr_t>, std::vector<std::string>> known;
    const auto [entry, is_new] = known.try_emplace({options, code});
    std::vector<std::string>& answer = entry->second;
    Dl_info info{};
    if (!is_new || dladdr(reinterpret_cast<const void*>(code), &info) == 0) return answer;
    const std::string image = info.dli_fname;
    if (image.find('\'') != image.npos) return answer;
    const std::string places = hex(code - reinterpret_cast<std::uintptr_t>(info.dli_fbase)) + " " + hex(code);
    FILE* pipe =
        popen(("addr2line " + options + " -e '" + image + "' " + places + " 2>/dev/null").c_str(), "r");
    char text[4096];
    while (pipe != nullptr && std::fgets(text, sizeof(text), pipe) != nullptr) {
        const std::string line = text;
        if (line.find('?') == line.npos) answer.push_back(line.substr(0, line.find('\n')));
    }
    if (pipe != nullptr) pclose(pipe);
    return answer;
}

}  // namespace

std::string kernel_name(const void* kernel) {
    const auto& answer = ask_addr2line("-f -C", reinterpret_cast<std::uintptr_t>(kernel));
    return answer.empty() ? "(unknown)" : answer.front();
}

// The first place outside of the emulator's own headers. A return address is that of the instruction behind
// the access.
std::string source_line(const void* site) {
    if (site == nullptr) return {};
    for (const std::string& place : ask_addr2line("-i", reinterpret_cast<std::uintptr_t>(site) - 1)) {
        if (place.find("/common/simt/") != place.npos) continue;
        const std::string name = place.substr(place.rfind('/') + 1);
        return name.substr(0, name.find(' '));
    }
    return {};
}

std::string index_name(const uint3& i) {
    return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
std::string thread_name(const Thread& thread) {
    return "thread " + index_name(thread.index);
}
std::string hex(std::uintptr_t value) {
    char text[32];
    std::snprintf(text, sizeof(text), "0x%zx", value);
    return text;
}

}  // namespace flash::simt
