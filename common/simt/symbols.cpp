// Names of kernels, for messages.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "common/simt/machine.hpp"

namespace flash::simt {

namespace {

std::string demangled(const char* name) {
    int status = 0;
    char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    const std::string result = status == 0 ? text : name;
    std::free(text);
    return result;
}

// Looks through the symbol table of an ELF image, which holds local functions too; kernels usually are.
std::string find_symbol(const std::string& image, std::uintptr_t offset) {
    if (image.size() < sizeof(ElfW(Ehdr)) || image.compare(0, SELFMAG, ELFMAG) != 0) return "(unknown)";
    ElfW(Ehdr) header;
    std::memcpy(&header, image.data(), sizeof(header));
    const auto section_at = [&](std::size_t i) {
        ElfW(Shdr) section{};
        const std::size_t at = header.e_shoff + i * sizeof(section);
        if (at + sizeof(section) <= image.size()) std::memcpy(&section, image.data() + at, sizeof(section));
        return section;
    };
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
        const auto table = section_at(i);
        if (table.sh_type != SHT_SYMTAB || table.sh_offset + table.sh_size > image.size()) continue;
        const auto names = section_at(table.sh_link);
        for (std::size_t at = 0; at < table.sh_size; at += sizeof(ElfW(Sym))) {
            ElfW(Sym) symbol;
            std::memcpy(&symbol, image.data() + table.sh_offset + at, sizeof(symbol));
            const std::size_t name = names.sh_offset + symbol.st_name;
            if (symbol.st_value == offset && (symbol.st_info & 0xf) == STT_FUNC && name < image.size())
                return demangled(image.c_str() + name);
        }
    }
    return "(unknown)";
}

}  // namespace

std::string symbol_name(const void* function) {
    Dl_info info{};
    if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "(unknown)";
    if (info.dli_sname != nullptr && info.dli_saddr == function) return demangled(info.dli_sname);
    std::ifstream file(info.dli_fname, std::ios::binary);
    const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto address = reinterpret_cast<std::uintptr_t>(function);
    // A position-independent image is linked at 0, a fixed one at the address it runs at.
    const std::string name = find_symbol(image, address - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
    return name == "(unknown)" ? find_symbol(image, address) : name;
}

// Asks addr2line, which comes with the compiler, for the first place outside of the emulator's own headers. A
// return address is that of the instruction behind the access.
std::string source_line(const void* site) {
    static std::map<const void*, std::string> known;
    Dl_info info{};
    if (site == nullptr || dladdr(site, &info) == 0 || info.dli_fname == nullptr) return {};
    const auto [entry, is_new] = known.try_emplace(site);
    const std::string image = info.dli_fname;
    if (!is_new || image.find('\'') != std::string::npos) return entry->second;
    const auto address = reinterpret_cast<std::uintptr_t>(site) - 1;
    const std::string places =
        hex(address - reinterpret_cast<std::uintptr_t>(info.dli_fbase)) + " " + hex(address);
    FILE* pipe = popen(("addr2line -i -e '" + image + "' " + places + " 2>/dev/null").c_str(), "r");
    char line[4096];
    while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
        const std::string text = line, name = text.substr(text.rfind('/') + 1);
        if (entry->second.empty() && text.find('?') == text.npos && text.find("/common/simt/") == text.npos)
            entry->second = name.substr(0, name.find_first_of(" \n"));
    }
    if (pipe != nullptr) pclose(pipe);
    return entry->second;
}

}  // namespace flash::simt
