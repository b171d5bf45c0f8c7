// OpenCL's functions, found at run time in libOpenCL.so.1 (the ICD loader): the program neither
// needs the library to start nor links it. Headers: Khronos OpenCL 3.0, calls of 1.2 and 2.0.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include <string>

#include "warpweave/status.h"

namespace warpweave::opencl {

#define WW_OPENCL_FUNCTIONS(X)                                                                   \
  X(clGetPlatformIDs) X(clGetPlatformInfo) X(clGetDeviceIDs) X(clGetDeviceInfo)                  \
  X(clCreateSubDevices) X(clReleaseDevice) X(clCreateContext) X(clReleaseContext)                \
  X(clCreateCommandQueue) X(clReleaseCommandQueue) X(clCreateProgramWithSource)                  \
  X(clCreateProgramWithBinary) X(clBuildProgram) X(clGetProgramBuildInfo) X(clGetProgramInfo)    \
  X(clReleaseProgram) X(clCreateKernel) X(clReleaseKernel) X(clSetKernelArg)                     \
  X(clEnqueueNDRangeKernel) X(clFinish)

struct Api {
#define WW_OPENCL_MEMBER(name) decltype(&::name) name = nullptr;
  WW_OPENCL_FUNCTIONS(WW_OPENCL_MEMBER)
#undef WW_OPENCL_MEMBER
};

// Loaded once; thread-safe. `unsupported`, with what to install, where there is no OpenCL library.
Result<const Api*> api();
// The same table, into which tests put functions of their own.
Result<Api*> changeable_api();

// Whether a library and a driver seem to be installed, by their files: loads neither, which takes a
// tenth of a second and tens of MB. devices() is certain.
Status look_for_drivers();

// "CL_OUT_OF_RESOURCES (-5)".
std::string error_text(cl_int error);

}  // namespace warpweave::opencl
