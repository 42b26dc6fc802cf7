// Names of kernels, for messages.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

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

}  // namespace flash::simt
