# The ablation: each patch of this folder undoes one idea of attention.cu. All of them are built into one program,
# step08_ablation, which times them beside the step itself. It is not part of a default build:
#   cmake --build BUILD --target step08_ablation
file(GLOB STEP08_PATCHES CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.patch")
set(STEP08_ABLATION_DIR "${CMAKE_CURRENT_BINARY_DIR}/ablation")
set(declarations "")
set(table "")
set(objects "")
foreach(patch_file IN LISTS STEP08_PATCHES)
    get_filename_component(name "${patch_file}" NAME_WE)
    set(source "${STEP08_ABLATION_DIR}/${name}/attention.cu")
    add_custom_command(
        OUTPUT "${source}"
        COMMAND ${CMAKE_COMMAND} -E make_directory "${STEP08_ABLATION_DIR}/${name}"
        COMMAND patch --silent -o "${source}" "${CMAKE_CURRENT_SOURCE_DIR}/attention.cu" "${patch_file}"
        DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/attention.cu" "${patch_file}"
        VERBATIM)
    flash_device_sources("${source}")
    add_library(step08_${name} OBJECT EXCLUDE_FROM_ALL "${source}")
    # The same names in a namespace of its own, so that all variants fit into one program.
    target_compile_definitions(step08_${name} PRIVATE step08=step08_${name}
                               FLASH_STEPS_HEAD_DIM_BITS=${STEP08_BITS})
    target_include_directories(step08_${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
    target_link_libraries(step08_${name} PRIVATE flash_gpu)
    list(APPEND objects $<TARGET_OBJECTS:step08_${name}>)
    string(APPEND declarations "namespace step08_${name} {\ntemplate <class T> void attention_forward(const ForwardArgs<T>&);\n}\n")
    string(APPEND table "    {\"${name}\", step08_${name}::attention_forward<bf16>},\n")
    add_test(NAME step08_ablation_${name}_applies
             COMMAND patch --silent --dry-run -o "${STEP08_ABLATION_DIR}/${name}.check"
                     "${CMAKE_CURRENT_SOURCE_DIR}/attention.cu" "${patch_file}")
endforeach()
file(CONFIGURE OUTPUT "${STEP08_ABLATION_DIR}/variants.hpp" CONTENT
"// Generated from the patches in steps/08_fa2_forward/ablation.
#pragma once
#include \"common/attention.hpp\"
#include \"common/types.hpp\"
namespace flash {
${declarations}
struct Ablation {
    const char* name;
    void (*forward)(const ForwardArgs<bf16>&);
};
inline constexpr Ablation kAblations[] = {
${table}};
}  // namespace flash
" @ONLY)
add_executable(step08_ablation EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/ablation.cpp" ${objects})
target_include_directories(step08_ablation PRIVATE "${STEP08_ABLATION_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(step08_ablation PRIVATE step08 flash_gpu flash_bench)
