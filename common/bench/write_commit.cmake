# Writes ${OUTPUT} with the commit of the source tree ${SOURCE}; touches it only when the commit has changed.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git rev-parse --short=10 HEAD WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE commit
                ERROR_QUIET RESULT_VARIABLE result OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
    set(commit "unknown")
else()
    execute_process(COMMAND git diff --quiet HEAD WORKING_DIRECTORY "${SOURCE}" ERROR_QUIET RESULT_VARIABLE changed)
    if(NOT changed EQUAL 0)
        string(APPEND commit "+changes")
    endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT
     "#pragma once\ninline constexpr const char* kCommit = \"@commit@\";\n" @ONLY)
