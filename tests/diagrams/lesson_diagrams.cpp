// Writes plots/diagrams.csv, or any other file: what the lessons' drawings show.
//
//   lesson_diagrams --csv FILE
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "diagrams.hpp"

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "--help") {
        std::puts("lesson_diagrams --csv FILE\n\nWrites what the lessons' drawings show, read off the code.");
        return 0;
    }
    if (argc != 3 || std::string(argv[1]) != "--csv") {
        std::fputs("usage: lesson_diagrams --csv FILE\n", stderr);
        return 2;
    }
    try {
        const std::string lines = flash::diagrams::all_lines();
        std::ofstream file(argv[2]);
        if (!(file << lines).flush()) {
            std::fprintf(stderr, "lesson_diagrams: %s cannot be written\n", argv[2]);
            return 1;
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "lesson_diagrams: %s\n", error.what());
        return 1;
    }
    return 0;
}
