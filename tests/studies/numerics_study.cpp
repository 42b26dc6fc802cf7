// Writes plots/data/study.csv, or any other file. The numbers are the same on every machine.
//
//   numerics_study --csv FILE
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "studies.hpp"

int main(int argc, char** argv) {
    using namespace flash;
    if (argc == 2 && std::string(argv[1]) == "--help") {
        std::puts("numerics_study --csv FILE\n\nWrites what docs/numerics.md says: plots/data/study.csv.");
        return 0;
    }
    if (argc != 3 || std::string(argv[1]) != "--csv") {
        std::fputs("usage: numerics_study --csv FILE\n", stderr);
        return 2;
    }
    try {
        std::filesystem::remove(argv[2]);
        const bench::ResultsFile file(argv[2]);
        for (const auto& finding : studies::all_findings()) file.append(studies::csv_row(finding));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "numerics_study: %s\n", error.what());
        return 1;
    }
    return 0;
}
