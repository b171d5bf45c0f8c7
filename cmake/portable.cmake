# The portable program (preset `portable`, scripts/package): it needs no shared library but glibc's, of version 2.28 or
# later, so that one file runs on every distribution since 2018. The objects are those of the ordinary build; only the
# link differs: static libraries, and stand-ins for glibc's that offer what 2.28 did.
option(WARPWEAVE_PORTABLE "Link for other machines: static libraries, symbols of glibc 2.28 at most" OFF)
set(WARPWEAVE_GLIBC 2.28 CACHE STRING "The oldest glibc that the portable program runs with")
if(NOT WARPWEAVE_PORTABLE)
  return()
endif()
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/.portable/sources/stamp)
  message(FATAL_ERROR "WARPWEAVE_PORTABLE=ON needs the sources of four libraries; fetch them with scripts/lib/fetch-sources")
endif()

# The same bytes from every folder: a source's name, which assertions hold, becomes its path in the project. ccache may
# give the compiler names relative to the build folder, so those are mapped too.
file(RELATIVE_PATH WW_ROOT_FROM_BUILD ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
string(REGEX REPLACE "/$" "" WW_ROOT_FROM_BUILD "${WW_ROOT_FROM_BUILD}")
foreach(root ${PROJECT_SOURCE_DIR} ${WW_ROOT_FROM_BUILD})
  add_compile_options("$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-ffile-prefix-map=${root}=.>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${root}=.>")
endforeach()
# Kernels as small as they can be; nvcc's default leaves them uncompressed.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")

# Debian ships these as shared objects only.
set(WW_SOURCES ${PROJECT_SOURCE_DIR}/.portable/sources)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(simdjson REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)

# ww_static(TARGET NAME INCLUDES ... DEFINITIONS ... SRCS ...): TARGET, found as a shared object, becomes a static
# library built here from the sources of the same version.
function(ww_static TARGET NAME)
  cmake_parse_arguments(ARG "" "" "INCLUDES;DEFINITIONS;SRCS" ${ARGN})
  add_library(static_${NAME} STATIC ${ARG_SRCS})
  target_include_directories(static_${NAME} PRIVATE ${ARG_INCLUDES})
  target_compile_definitions(static_${NAME} PRIVATE ${ARG_DEFINITIONS})
  target_compile_options(static_${NAME} PRIVATE -w)
  set_target_properties(static_${NAME} PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/static OUTPUT_NAME ${NAME})
  set_target_properties(${TARGET} PROPERTIES IMPORTED_CONFIGURATIONS RELEASE IMPORTED_GLOBAL TRUE
    IMPORTED_LOCATION_RELEASE ${PROJECT_BINARY_DIR}/static/lib${NAME}.a)
  add_dependencies(${TARGET} static_${NAME})
endfunction()
ww_static(fmt::fmt fmt SRCS ${WW_SOURCES}/fmtlib/src/format.cc ${WW_SOURCES}/fmtlib/src/os.cc)
file(GLOB SPDLOG_SOURCES ${WW_SOURCES}/spdlog/src/*.cpp)
list(FILTER SPDLOG_SOURCES EXCLUDE REGEX "/fmt.cpp$")
ww_static(spdlog::spdlog spdlog DEFINITIONS SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL SRCS ${SPDLOG_SOURCES})
ww_static(simdjson::simdjson simdjson INCLUDES ${WW_SOURCES}/simdjson/include ${WW_SOURCES}/simdjson/src
  DEFINITIONS SIMDJSON_THREADS_ENABLED=1 SRCS ${WW_SOURCES}/simdjson/src/simdjson.cpp)
file(GLOB_RECURSE PROMETHEUS_SOURCES ${WW_SOURCES}/prometheus-cpp/core/src/*.cc)
ww_static(prometheus-cpp::core prometheus-cpp-core SRCS ${PROMETHEUS_SOURCES})

# Stand-ins for glibc, which the linker finds before the machine's own, and what the objects and the static libraries
# take from a newer one. Made while configuring, since every link needs them.
set(WW_STUBS ${PROJECT_BINARY_DIR}/glibc-${WARPWEAVE_GLIBC})
set(WW_PORTABLE ${CMAKE_CURRENT_LIST_DIR}/portable)
file(GLOB WW_STUB_SOURCES CONFIGURE_DEPENDS ${WW_PORTABLE}/*)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${WW_STUB_SOURCES})
execute_process(COMMAND sh ${WW_PORTABLE}/make_glibc_stubs.sh ${WW_STUBS} ${WARPWEAVE_GLIBC} ${CMAKE_C_COMPILER}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_C_COMPILER} -O2 -fPIC -ffunction-sections -fdata-sections -c ${WW_PORTABLE}/glibc_compat.c ${WW_PORTABLE}/glibc_start.c
  WORKING_DIRECTORY ${WW_STUBS} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${WW_STUBS}/libglibc_start.a)
execute_process(COMMAND ${CMAKE_AR} rcsD libglibc_start.a glibc_start.o WORKING_DIRECTORY ${WW_STUBS}
  COMMAND_ERROR_IS_FATAL ANY)

add_link_options(-static-libstdc++ -static-libgcc -L${WW_STUBS} "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-Wl,--wrap=__libc_start_main>")
# CUDA's runtime asks for shared memory by name, which an older glibc has in librt.
set(WW_OLD_LIBRARIES "${WW_STUBS}/libpthread.so.0 ${WW_STUBS}/libdl.so.2")
if(WW_CUDA)
  string(APPEND WW_OLD_LIBRARIES " ${WW_STUBS}/librt.so.1")
endif()
foreach(language C CXX CUDA)
  string(APPEND CMAKE_${language}_STANDARD_LIBRARIES
    " ${WW_STUBS}/glibc_compat.o ${WW_STUBS}/libglibc_start.a"
    " -Wl,--push-state,--no-as-needed ${WW_OLD_LIBRARIES} -Wl,--pop-state")
endforeach()
