# What every CMakeLists.txt of the project shares, so that each step also builds alone:
#   flash_add_step(NUMBER 05 DEVICE_SOURCES attention.cu)
# Options:
#   FLASH_STEPS_BACKEND   auto (default), emulator or cuda: what runs the GPU steps
#   FLASH_STEPS_SANITIZE  ON: AddressSanitizer and UndefinedBehaviorSanitizer (the emulator's memory hooks are then off)
include_guard(GLOBAL)

get_filename_component(FLASH_STEPS_ROOT "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

# Blanks and letters of any alphabet are fine; these mean something to CMake, Ninja or the shell between them, and
# headers would not be tracked, or steps not found.
foreach(path IN ITEMS "${FLASH_STEPS_ROOT}" "${CMAKE_BINARY_DIR}")
    if(path MATCHES "[]['\"&#;\\]")
        message(FATAL_ERROR "flash-steps cannot be built in '${path}': a path must not contain any of ' \" & # ; \\ [ ]")
    endif()
endforeach()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Flags that change values: no -inf and NaN any more, or sums in another order and rounding tricks folded away.
set(FLASH_STEPS_ALL_FLAGS "$ENV{CXXFLAGS} $ENV{CUDAFLAGS}")
foreach(config IN ITEMS "" _DEBUG _RELEASE _RELWITHDEBINFO _MINSIZEREL)
    string(APPEND FLASH_STEPS_ALL_FLAGS " ${CMAKE_CXX_FLAGS${config}} ${CMAKE_CUDA_FLAGS${config}}")
endforeach()
if(FLASH_STEPS_ALL_FLAGS MATCHES "-(ffast-math|Ofast|ffinite-math-only|funsafe-math-optimizations|fassociative-math|freciprocal-math|-?use_fast_math)")
    message(FATAL_ERROR "flash-steps needs -inf, NaN and sums in the order written: remove -${CMAKE_MATCH_1} from the "
                        "compiler flags")
endif()

# -O2 everywhere: the emulator's exact counts are asserted at this level.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")


set(FLASH_STEPS_BACKEND "auto" CACHE STRING "What runs the GPU steps: auto, emulator or cuda")
set_property(CACHE FLASH_STEPS_BACKEND PROPERTY STRINGS auto emulator cuda)
option(FLASH_STEPS_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)

include(CheckLanguage)
set(FLASH_STEPS_GPU_CC "")
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                OUTPUT_VARIABLE FLASH_STEPS_GPU_CC ERROR_QUIET RESULT_VARIABLE FLASH_STEPS_SMI_RESULT
                OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT FLASH_STEPS_SMI_RESULT EQUAL 0 OR NOT FLASH_STEPS_GPU_CC MATCHES "^[0-9]+\\.[0-9]+")
    set(FLASH_STEPS_GPU_CC "")
endif()

if(FLASH_STEPS_BACKEND STREQUAL "auto")
    set(FLASH_STEPS_RESOLVED_BACKEND emulator)
    if(FLASH_STEPS_GPU_CC AND NOT FLASH_STEPS_SANITIZE)
        check_language(CUDA)
        if(CMAKE_CUDA_COMPILER)
            set(FLASH_STEPS_RESOLVED_BACKEND cuda)
        endif()
    endif()
elseif(FLASH_STEPS_BACKEND MATCHES "^(emulator|cuda)$")
    set(FLASH_STEPS_RESOLVED_BACKEND ${FLASH_STEPS_BACKEND})
else()
    message(FATAL_ERROR "FLASH_STEPS_BACKEND is '${FLASH_STEPS_BACKEND}'; it must be auto, emulator or cuda")
endif()

if(FLASH_STEPS_RESOLVED_BACKEND STREQUAL "cuda")
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        # The architecture of the first GPU found; without one, the two the steps are written for.
        string(REGEX MATCH "^[0-9]+\\.[0-9]+" FLASH_STEPS_ARCH "${FLASH_STEPS_GPU_CC}")
        string(REPLACE "." "" FLASH_STEPS_ARCH "${FLASH_STEPS_ARCH}")
        if(NOT FLASH_STEPS_ARCH)
            set(FLASH_STEPS_ARCH "80;90")
        endif()
        set(CMAKE_CUDA_ARCHITECTURES "${FLASH_STEPS_ARCH}" CACHE STRING "Compute capabilities to build for")
    endif()
    # cp.async and mma.sync m16n8k16 begin with sm_80: an older target is refused here, not by an abort in a kernel.
    foreach(arch IN LISTS CMAKE_CUDA_ARCHITECTURES)
        string(REGEX MATCH "^[0-9]+" number "${arch}")
        if(number AND number LESS 80)
            message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES contains ${arch}; the GPU steps need sm_80 or newer "
                                "(-DFLASH_STEPS_BACKEND=emulator runs them without a GPU)")
        endif()
    endforeach()
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
        message(FATAL_ERROR "the cuda back end needs nvcc on the PATH (or -DCMAKE_CUDA_COMPILER=...), with a host "
                            "compiler it supports (here: ${CMAKE_CXX_COMPILER}); the emulator needs neither: "
                            "-DFLASH_STEPS_BACKEND=emulator")
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know C++20 for nvcc and, told that it is required, stops; the flag is passed by hand below.
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)
    find_package(CUDAToolkit REQUIRED)
    message(STATUS "flash-steps: GPU steps run on CUDA, built for sm_${CMAKE_CUDA_ARCHITECTURES}")
else()
    message(STATUS "flash-steps: GPU steps run on the CPU emulator")
endif()

# Our own code compiles without a warning.
add_library(flash_common INTERFACE)
target_include_directories(flash_common INTERFACE "${FLASH_STEPS_ROOT}")
# -Wconversion of clang includes -Wsign-conversion, which g++ leaves out and which says nothing useful about indices.
set(FLASH_STEPS_WARNINGS -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Werror)
target_compile_options(flash_common INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${FLASH_STEPS_WARNINGS}>")
if(FLASH_STEPS_RESOLVED_BACKEND STREQUAL "cuda")
    target_compile_definitions(flash_common INTERFACE FLASH_STEPS_CUDA)
    target_include_directories(flash_common SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_options(flash_common INTERFACE
        "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror;-lineinfo>")
endif()
if(FLASH_STEPS_SANITIZE)
    target_compile_options(flash_common INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer)
    target_link_options(flash_common INTERFACE -fsanitize=address,undefined)
endif()

# flash_device_sources(FILE...): kernel sources (.cu). nvcc compiles them for a GPU; an ordinary C++ compiler compiles
# the same text for the emulator, with every load and store instrumented so that the emulator sees it.
function(flash_device_sources)
    if(FLASH_STEPS_RESOLVED_BACKEND STREQUAL "cuda")
        set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CUDA)
        return()
    endif()
    get_target_property(missing flash_gpu FLASH_STEPS_MISSING)
    if(missing)
        message(FATAL_ERROR "${missing}")
    endif()
    set(options -x c++)
    if(NOT FLASH_STEPS_SANITIZE)
        list(APPEND options -fsanitize=thread -DFLASH_STEPS_HOOKS)
        # So that the emulator's reports can name the source line.
        list(APPEND options -g1 -fno-optimize-sibling-calls)
        if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
            list(APPEND options -mllvm -tsan-instrument-func-entry-exit=0)
        else()
            list(APPEND options --param=tsan-instrument-func-entry-exit=0 -Wno-tsan)
        endif()
    endif()
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${options}")
endfunction()

# Each library of common/ is added once, by whoever needs it first: a step built alone or the whole tree.
foreach(part gpu testing bench)
    if(EXISTS "${FLASH_STEPS_ROOT}/common/${part}/CMakeLists.txt")
        add_subdirectory("${FLASH_STEPS_ROOT}/common/${part}" "${CMAKE_BINARY_DIR}/common/${part}")
    endif()
endforeach()

enable_testing()

# flash_add_test(NAME SOURCES... [LIBS ...]): a doctest program registered with ctest. A program that needs a GPU and
# finds none says so and exits 77, which ctest reports as skipped.
function(flash_add_test name)
    cmake_parse_arguments(TEST "" "" "SOURCES;DEVICE_SOURCES;LIBS" ${ARGN})
    if(TEST_DEVICE_SOURCES)
        flash_device_sources(${TEST_DEVICE_SOURCES})
    endif()
    add_executable(${name} ${TEST_SOURCES} ${TEST_DEVICE_SOURCES})
    target_link_libraries(${name} PRIVATE flash_testing ${TEST_LIBS})
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

# flash_add_step(NUMBER nn [SOURCES a.cpp ...] [DEVICE_SOURCES a.cu ...]): library stepNN, its test and its bench.
function(flash_add_step)
    cmake_parse_arguments(STEP "" "NUMBER" "SOURCES;DEVICE_SOURCES" ${ARGN})
    set(target "step${STEP_NUMBER}")
    add_library(${target} STATIC ${STEP_SOURCES} ${STEP_DEVICE_SOURCES})
    target_link_libraries(${target} PUBLIC flash_common)
    if(STEP_DEVICE_SOURCES)
        flash_device_sources(${STEP_DEVICE_SOURCES})
        target_link_libraries(${target} PUBLIC flash_gpu)
    endif()
    flash_add_test(${target}_test SOURCES test.cpp LIBS ${target})
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/bench.cpp")
        add_executable(${target}_bench bench.cpp)
        target_link_libraries(${target}_bench PRIVATE ${target} flash_bench)
    endif()
endfunction()
