# The head dimensions that steps 08 and 09 are built for.
include_guard(GLOBAL)

set(FLASH_STEPS_HEAD_DIMS "64;128;256" CACHE STRING
    "Head dimensions that steps 08 and 09 are built for, out of 32, 64, 96, 128 and 256; smaller ones are padded up")
list(SORT FLASH_STEPS_HEAD_DIMS COMPARE NATURAL)
list(REMOVE_DUPLICATES FLASH_STEPS_HEAD_DIMS)

# flash_head_dim_bits(RESULT dim...): the list as head_dims.hpp takes it.
function(flash_head_dim_bits result)
    set(bits 0)
    foreach(head_dim IN LISTS ARGN)
        if(NOT head_dim MATCHES "^(32|64|96|128|256)$")
            message(FATAL_ERROR "FLASH_STEPS_HEAD_DIMS contains '${head_dim}'; it may hold 32, 64, 96, 128 and 256")
        endif()
        math(EXPR bits "${bits} | (1 << (${head_dim} / 32))")
    endforeach()
    if(bits EQUAL 0)
        message(FATAL_ERROR "FLASH_STEPS_HEAD_DIMS is empty; it may hold 32, 64, 96, 128 and 256")
    endif()
    set(${result} ${bits} PARENT_SCOPE)
endfunction()
