# loramux_library, loramux_test, loramux_fuzzer: the helpers that every CMakeLists.txt of the project uses.
# They set the common compile options and enforce the link rule of the house.

# The rooms, lowest first. A room may link only rooms before it in this list.
set(LORAMUX_ROOMS base collective report http etcd hub kubernetes formats auth costs cluster router envoy workload tensor memory step text quant kernels gpu assist
                  model adapter worth prefix residency schedule engine record runtime server simulate profile)

# These rooms run under the simulator too, so they may not know how a forward pass is computed.
set(LORAMUX_PURE_ROOMS report costs cluster workload memory step adapter worth prefix residency schedule engine record simulate)
set(LORAMUX_IMPURE_ROOMS auth router envoy kernels gpu assist model runtime server profile)

add_library(loramux_options INTERFACE)
target_compile_options(loramux_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                       -fno-math-errno -ffp-contract=off -pthread)
# GCC 12 finds overflows in concatenated strings that are none (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(loramux_options INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
endif()
# Messages name files from the root, whatever folder it was built in; so the objects of one clone serve the next (ccache).
target_compile_options(loramux_options INTERFACE "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=")
target_include_directories(loramux_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_link_libraries(loramux_options INTERFACE Threads::Threads)
target_compile_definitions(loramux_options INTERFACE SPDLOG_FMT_EXTERNAL)
if(LORAMUX_SANITIZE)
  target_compile_options(loramux_options INTERFACE -fsanitize=${LORAMUX_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  if(LORAMUX_SANITIZE_EXCEPT)
    target_compile_options(loramux_options INTERFACE -fno-sanitize=${LORAMUX_SANITIZE_EXCEPT})
  endif()
  target_link_options(loramux_options INTERFACE -fsanitize=${LORAMUX_SANITIZE})
endif()
if(LORAMUX_BUILD_FUZZERS)
  target_compile_options(loramux_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(loramux_options INTERFACE -fsanitize=address,undefined)
endif()

# One precompiled header serves every target, and one more with GoogleTest every test: parsing the standard library, fmt
# and spdlog is half of what most units cost. Units include what they use all the same: `make test-all` builds without.
add_library(loramux_headers OBJECT "${CMAKE_SOURCE_DIR}/cmake/precompiled.cc")
target_link_libraries(loramux_headers PRIVATE loramux_options spdlog::spdlog fmt::fmt)
set(LORAMUX_SHARED_HEADERS <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span>
                   <string> <string_view> <unordered_map> <utility> <variant> <vector> <fmt/format.h>
                   <spdlog/spdlog.h>)
target_precompile_headers(loramux_headers PRIVATE ${LORAMUX_SHARED_HEADERS})
function(loramux_share_headers target)
  target_precompile_headers(${target} REUSE_FROM loramux_headers)
endfunction()
# Several units of a target compiled as one: half the time for a whole build, some seconds more for a change of one
# file. Names in unnamed namespaces must then differ within a target; a test has a namespace of its own,
# loramux::<file>. The preset debug and `make test-all` also build without.
option(LORAMUX_UNITY_BUILD "Compile several units of a target as one" OFF)
function(loramux_unity_build target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LORAMUX_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 6)
  if(LORAMUX_UNITY_BUILD)   # GCC takes the units for headers, where such types would be an error
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()
# For code that runs for every token. GCC 12 may crash where units use a precompiled header of a lower level.
function(loramux_optimise_hot target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O3> $<$<CONFIG:RelWithDebInfo>:-O2>)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
# For tests, and for code that runs once a command. (Not -Os: it makes the precompiled header invalid.)
function(loramux_optimise_little target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()
if(LORAMUX_BUILD_TESTS AND NOT LORAMUX_BUILD_FUZZERS)
  add_library(loramux_test_headers OBJECT EXCLUDE_FROM_ALL "${CMAKE_SOURCE_DIR}/cmake/precompiled.cc")
  target_link_libraries(loramux_test_headers PRIVATE loramux_options spdlog::spdlog fmt::fmt GTest::gtest GTest::gmock)
  target_precompile_headers(loramux_test_headers PRIVATE ${LORAMUX_SHARED_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
endif()

# loramux_library(room SOURCES a.cc ... [DEPS room ...] [LINK target ...] [ASIO])
# Makes the static library loramux_<room>. ASIO: it shares the
# precompiled header with Boost.Asio. DEPS are rooms (checked against the link rule), LINK are third-party targets.
function(loramux_library room)
  cmake_parse_arguments(ARG "ASIO" "" "SOURCES;DEPS;LINK" ${ARGN})
  list(FIND LORAMUX_ROOMS ${room} own_rank)
  if(own_rank EQUAL -1)
    message(FATAL_ERROR "loramux_library(${room}): not in LORAMUX_ROOMS (cmake/LoramuxTargets.cmake)")
  endif()
  foreach(dep IN LISTS ARG_DEPS)
    list(FIND LORAMUX_ROOMS ${dep} dep_rank)
    if(dep_rank EQUAL -1 OR NOT dep_rank LESS own_rank)
      message(FATAL_ERROR "link rule: ${room} may not link ${dep}: dependencies point up the list ${LORAMUX_ROOMS}")
    endif()
    if(room IN_LIST LORAMUX_PURE_ROOMS AND dep IN_LIST LORAMUX_IMPURE_ROOMS)
      message(FATAL_ERROR "link rule: ${room} may not link ${dep}: the simulator runs ${room} without it")
    endif()
  endforeach()
  add_library(loramux_${room} STATIC ${ARG_SOURCES})
  set_target_properties(loramux_${room} PROPERTIES EXCLUDE_FROM_ALL TRUE)   # only what a program or a test links
  list(TRANSFORM ARG_DEPS PREPEND loramux_)
  target_link_libraries(loramux_${room} PUBLIC loramux_options ${ARG_DEPS} PRIVATE ${ARG_LINK})
  loramux_unity_build(loramux_${room})
  if(ARG_ASIO)
    target_precompile_headers(loramux_${room} REUSE_FROM loramux_asio)
  else()
    loramux_share_headers(loramux_${room})
  endif()
endfunction()

# loramux_test(name SOURCES a_test.cc ... [DEPS room ...] [LINK target ...] [LABELS label ...] [TIMEOUT seconds] [ASIO])
# A GoogleTest binary registered with ctest, one ctest entry each. Labels: unit (default), golden, e2e; threads: it
# also runs under ThreadSanitizer in `make test`; asan: under AddressSanitizer and UndefinedBehaviorSanitizer;
# arm64: for ARM under qemu in `make test-arm64`; dotprod: there with dot products too. A preset that sets LORAMUX_TEST_LABELS builds only the tests that have one of these labels.
# TIMEOUT (default 900) ends a test that hangs. It is many times what the test takes: no slow machine may reach it.
option(LORAMUX_LONG_TESTS "The long forms of soaks and fuzz tests (make test-all)" OFF)
set(LORAMUX_TEST_LABELS "" CACHE STRING "Build only the tests with one of these labels (empty: all)")
function(loramux_test name)
  if(NOT LORAMUX_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "ASIO" "TIMEOUT" "SOURCES;DEPS;LINK;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(LORAMUX_TEST_LABELS)
    set(wanted FALSE)
    foreach(label IN LISTS ARG_LABELS)
      if(label IN_LIST LORAMUX_TEST_LABELS)
        set(wanted TRUE)
      endif()
    endforeach()
    if(NOT wanted)
      return()
    endif()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  list(TRANSFORM ARG_DEPS PREPEND loramux_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE loramux_options ${ARG_DEPS} ${ARG_LINK} GTest::gtest GTest::gmock
                        GTest::gtest_main)
  if(ARG_ASIO)
    target_precompile_headers(${name} REUSE_FROM loramux_asio_test_headers)
  elseif(TARGET loramux_test_headers)
    target_precompile_headers(${name} REUSE_FROM loramux_test_headers)
  endif()
  loramux_optimise_little(${name})
  loramux_unity_build(${name})
  # GoogleTest's assertions after an `if`; in a precompiled header they no longer count as a system's.
  target_compile_options(${name} PRIVATE -Wno-dangling-else)
  # Tests run at the root, so that no object holds the name of the folder that it was built in.
  target_compile_definitions(${name} PRIVATE LORAMUX_SOURCE_DIR=".")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  loramux_sanitizer_environment(${name})
endfunction()

# What a test's process needs to know of the sanitizer that it was built with.
function(loramux_sanitizer_environment name)
  if(LORAMUX_SANITIZE STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/tests/tsan_suppressions.txt")
  endif()
endfunction()

# loramux_fuzzer(name SOURCES x_fuzz.cc [DEPS room ...] [CORPUS folder])
# A libFuzzer target, built only with LORAMUX_BUILD_FUZZERS; ctest runs it briefly over its seed corpus and beyond.
set(LORAMUX_FUZZ_SECONDS 15 CACHE STRING "How long ctest runs each fuzzer")
function(loramux_fuzzer name)
  if(NOT LORAMUX_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPS;LINK" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND loramux_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE loramux_options ${ARG_DEPS} ${ARG_LINK})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/${name}_corpus")
  add_test(NAME ${name}
           COMMAND ${name} -max_total_time=${LORAMUX_FUZZ_SECONDS} -timeout=60 -rss_limit_mb=4096 -verbosity=0
                   -print_final_stats=1 "${CMAKE_CURRENT_BINARY_DIR}/${name}_corpus" "${ARG_CORPUS}"
           WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 900)
endfunction()
