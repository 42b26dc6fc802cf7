# Adds cpu_peak.cpp to flash_bench, with BLAS where there is one: measured_sgemm_gflops() needs it, nothing else does.
target_sources(flash_bench PRIVATE "${CMAKE_CURRENT_LIST_DIR}/cpu_peak.cpp")
# -O3 unrolls the chains into registers; without fp-contract g++ -std=c++20 multiplies and adds apart.
set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/cpu_peak.cpp" PROPERTIES
    COMPILE_OPTIONS "-O3;-ffp-contract=fast")
find_package(BLAS QUIET)
if(BLAS_FOUND)
    target_link_libraries(flash_bench PRIVATE BLAS::BLAS)
    target_compile_definitions(flash_bench PRIVATE FLASH_BENCH_HAS_BLAS)
endif()
