# One library per folder, tests beside the code: the two functions every folder uses.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()
add_compile_options("$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wall;-Wextra;-Wno-unused-parameter;-fno-strict-aliasing>")
if(NOT (WARPWEAVE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))  # clang 14 cannot write its checks of function types across sections
  add_compile_options("$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-ffunction-sections>")
endif()
add_link_options(-Wl,--gc-sections)
option(WARPWEAVE_WARNINGS_AS_ERRORS "Let a warning of the C++ compiler fail the build (scripts/test does)" OFF)
if(WARPWEAVE_WARNINGS_AS_ERRORS)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(WARPWEAVE_SANITIZE)
  add_compile_options(-fsanitize=${WARPWEAVE_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${WARPWEAVE_SANITIZE})
  # Leave the libraries' own headers out of null-argument checks, keep everything else fatal.
  add_compile_options(-fno-sanitize-recover=all)
endif()
if(WARPWEAVE_FUZZ)
  # Coverage by source line: scripts/fuzz reports what the inputs reach. Less optimised code builds in half the time.
  add_compile_options(-fsanitize=fuzzer-no-link -fprofile-instr-generate -fcoverage-mapping -O1)
  add_link_options(-fprofile-instr-generate)
endif()
if(WARPWEAVE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()

# ww_library(NAME SRCS a.cc ... DEPS other ...): target `ww_NAME`, includes from src/ and include/.
function(ww_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;LIBS" ${ARGN})
  add_library(ww_${NAME} STATIC ${ARG_SRCS})
  target_include_directories(ww_${NAME} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM ARG_DEPS PREPEND ww_)
  target_link_libraries(ww_${NAME} PUBLIC ${ARG_DEPS} ${ARG_LIBS} Threads::Threads)
endfunction()

# ww_kernel_text(NAMESPACE HEADER constant:file ...): kernel files as string constants, declared in HEADER and defined in
# kernel_text.cc of the current binary folder.
function(ww_kernel_text NAMESPACE HEADER)
  set(text "// Generated from the kernel files.\n#include \"${HEADER}\"\nnamespace ${NAMESPACE} {\n")
  foreach(part ${ARGN})
    string(REPLACE ":" ";" part "${part}")
    list(GET part 0 name)
    list(GET part 1 file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} kernel)
    string(APPEND text "const std::string_view ${name} = R\"ww_kernel(${kernel})ww_kernel\";\n")
  endforeach()
  string(APPEND text "}  // namespace ${NAMESPACE}\n")
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/kernel_text.cc CONTENT "${text}")
endfunction()

# ww_tier(a.cc -mavx2 -mfma ...): compile one kernel file for one CPU tier. Such a file includes
# only intrinsics and plain headers: an inline function of the standard library compiled with these
# flags could be the copy the linker keeps for everybody.
function(ww_tier FILE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(optimise -O3)
    if(WARPWEAVE_SANITIZE MATCHES "undefined")
      # One AVX-512 file takes compilers more than a quarter of an hour with checks of undefined behaviour in unrolled kernels, and
      # minutes so. The scalar kernels, of the same templates, have these checks; addresses are checked in all.
      set(optimise -O1 -fno-sanitize=undefined)
    endif()
    if(WARPWEAVE_FUZZ)
      # Fuzzing is about what reads bytes; clang works for minutes on unrolled kernels with checks in them.
      set(optimise -O1 -fno-sanitize=all,fuzzer-no-link)
    endif()
    list(JOIN ARGN " " FLAGS)
    list(JOIN optimise " " OPTIMISE)
    set_property(SOURCE ${FILE} APPEND_STRING PROPERTY COMPILE_FLAGS " ${FLAGS} ${OPTIMISE}")
  endif()
endfunction()

# ww_test(NAME SRCS foo_test.cc ... DEPS other ...): a gtest program registered with ctest.
# Tests run in the source root, so that they find models/ and tests/golden/.
function(ww_test NAME)
  if(NOT WARPWEAVE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LIBS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS})
  list(TRANSFORM ARG_DEPS PREPEND ww_)
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} ${ARG_LIBS} GTest::gtest_main)
  add_test(NAME ${NAME} COMMAND ${NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()

# ww_allocation_test(NAME SRCS foo_test.cc DEPS other ...): a program of its own, whose operator new fails when it is told to. The
# thread sanitizer cannot start one: its runtime asks for memory before such an operator can answer.
function(ww_allocation_test NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(NOT WARPWEAVE_SANITIZE STREQUAL "thread")
    ww_test(${NAME} SRCS ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/src/base/testing/failing_allocator.cc DEPS ${ARG_DEPS})
  endif()
endfunction()

# ww_host_kernel_test(NAME SRCS foo_test.cc DEPS other ...): a test that runs CUDA kernels on the host, where
# device/cuda/testing/host has the PTX words. All on one thread, where the thread sanitizer finds nothing and takes minutes.
function(ww_host_kernel_test NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(WARPWEAVE_SANITIZE STREQUAL "thread")
    return()
  endif()
  ww_test(${NAME} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} host_cta)
  if(TARGET ${NAME})
    target_include_directories(${NAME} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/src/device/cuda/testing/host)
    target_compile_options(${NAME} PRIVATE -Wno-unknown-pragmas -Wno-sign-compare -Wno-shift-count-negative -fno-strict-aliasing)
  endif()
endfunction()

# ww_fuzz(NAME SRCS foo_fuzz.cc DEPS other ...): a libFuzzer program, built by the fuzz preset only.
function(ww_fuzz NAME)
  if(NOT WARPWEAVE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS})
  list(TRANSFORM ARG_DEPS PREPEND ww_)
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS})
  target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
endfunction()
