# The optional GPU part: found nvcc -> kernels for exact architectures; none -> a CPU-only program
# that says so. Nothing links to the driver: the runtime is static and the rest is opened at run
# time (src/device/cuda/), so that one program serves with and without a GPU.
#
# WARPWEAVE_CUDA is AUTO (use nvcc where there is one), ON (it must be there) or OFF.
set(WARPWEAVE_CUDA AUTO CACHE STRING "GPU kernels: AUTO, ON or OFF")
set(WARPWEAVE_CUDA_ARCHS "80-real;89-real;90a-real" CACHE STRING "GPU architectures that get kernels")

set(WW_CUDA OFF)
if(NOT WARPWEAVE_CUDA STREQUAL "OFF" AND NOT WARPWEAVE_SANITIZE AND NOT WARPWEAVE_FUZZ)
  find_program(WW_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(WW_NVCC)
    set(CMAKE_CUDA_COMPILER ${WW_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${WARPWEAVE_CUDA_ARCHS})
    enable_language(CUDA)
    # CMake 3.25's module wants to set a property of this target, whose library CUDA 13 no longer has.
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
    find_package(CUDAToolkit REQUIRED)
    set(WW_CUDA ON)
  elseif(WARPWEAVE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WARPWEAVE_CUDA=ON, but there is no nvcc; install the CUDA toolkit or set CUDA_HOME")
  endif()
endif()
set(WARPWEAVE_HAS_CUDA ${WW_CUDA} CACHE INTERNAL "whether this build has GPU kernels; scripts/build reads it")
if(WW_CUDA)
  message(STATUS "GPU kernels: yes, ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # CMake 3.25 knows no C++20 for CUDA and would drop the standard without a word.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr -diag-suppress 177 -Xptxas -warn-spills")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
  # Spills and serialised wgmma fail a build whose warnings do, and are shown in others: each compiler has its own.
  # ccache repeats a compiler's messages, so it may stand within.
  set(CMAKE_CUDA_COMPILER_LAUNCHER sh ${CMAKE_CURRENT_LIST_DIR}/nvcc_strict.sh
      ${CMAKE_CURRENT_LIST_DIR}/ptxas_allowed.txt)
  if(NOT WARPWEAVE_WARNINGS_AS_ERRORS)
    list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env WARPWEAVE_PTXAS_WARNINGS=1)
  endif()
  if(CCACHE_PROGRAM)
    list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
else()
  message(STATUS "GPU kernels: no (no nvcc found, or WARPWEAVE_CUDA=OFF): the program will serve on the CPU only")
endif()

# Names of what an unnamed namespace holds have a hash of the file's whole path in them; here of its path in the project,
# so that a package's bytes do not depend on the folder it was built in. No option of nvcc's own says that.
function(ww_same_names_everywhere)
  foreach(source ${ARGN})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Xcudafe=--orig_src_path_name=${path} -Xcudafe=--orig_src_file_name=${path})
  endforeach()
endfunction()

# ww_cuda_sources(TARGET [ARCHS 90a-real ...] SRCS a.cu ...): adds kernels to an existing library,
# whose C++ files then see WARPWEAVE_CUDA=1. Does nothing in a CPU-only build. With ARCHS the files
# become a library of their own, compiled for those architectures alone.
function(ww_cuda_sources TARGET)
  if(NOT WW_CUDA)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "ARCHS;SRCS" ${ARGN})
  if(WARPWEAVE_PORTABLE)
    ww_same_names_everywhere(${ARG_SRCS})
  endif()
  target_compile_definitions(${TARGET} PUBLIC WARPWEAVE_CUDA=1)
  target_include_directories(${TARGET} SYSTEM PUBLIC ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  if(NOT ARG_ARCHS)
    target_sources(${TARGET} PRIVATE ${ARG_SRCS})
    return()
  endif()
  string(MAKE_C_IDENTIFIER "${TARGET}_${ARG_ARCHS}" OBJECTS)
  add_library(${OBJECTS} STATIC ${ARG_SRCS})
  set_target_properties(${OBJECTS} PROPERTIES CUDA_ARCHITECTURES "${ARG_ARCHS}")
  target_compile_definitions(${OBJECTS} PRIVATE WARPWEAVE_CUDA=1)
  target_include_directories(${OBJECTS} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${OBJECTS} PRIVATE $<LINK_ONLY:ww_device>)
  target_link_libraries(${TARGET} PRIVATE ${OBJECTS})
endfunction()
