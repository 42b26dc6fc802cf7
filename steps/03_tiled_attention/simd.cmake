# flash_simd_sources(target): adds attention_simd to a target, its kernel compiled once per instruction set so that one
# binary runs on every processor of the architecture and uses the widest vectors it finds.
set(FLASH_SIMD_DIR "${CMAKE_CURRENT_LIST_DIR}")

function(flash_simd_sources target)
    # No -ffast-math: it would remove the rounding trick of exp2 and the infinities of the mask.
    set(options -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast)
    set(kernels "baseline 4 2")
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        list(APPEND kernels "avx2 8 2 -mavx2 -mfma" "avx512 16 4 -mavx512f -mfma")
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        set(kernels "baseline 4 4")  # 32 vector registers
    endif()
    foreach(kernel IN LISTS kernels)
        separate_arguments(kernel)
        list(POP_FRONT kernel name lanes vectors)
        set(object attention_simd_${name})
        add_library(${object} OBJECT "${FLASH_SIMD_DIR}/attention_simd_kernel.cpp")
        target_link_libraries(${object} PRIVATE flash_common)
        target_compile_options(${object} PRIVATE ${options} ${kernel})
        target_compile_definitions(${object} PRIVATE SIMD_KERNEL=simd_kernel_${name} SIMD_LANES=${lanes}
                                                     SIMD_VECTORS=${vectors})
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:${object}>)
    endforeach()
    target_sources(${target} PRIVATE "${FLASH_SIMD_DIR}/attention_simd.cpp")
    set_source_files_properties("${FLASH_SIMD_DIR}/attention_simd.cpp" PROPERTIES
        COMPILE_OPTIONS "-O3;-Wno-unknown-pragmas")
endfunction()
