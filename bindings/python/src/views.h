// What the files of warpweave._core share: errors, arrays as the C interface wants them, the context.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "warpweave/c.h"

namespace warpweave::python {

namespace nb = nanobind;

using Tensor = nb::ndarray<>;
using ConstTensor = nb::ndarray<nb::ro>;

// The exceptions of the package: ValueError, NotImplementedError, MemoryError, FileNotFoundError.
inline void check(ww_status status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status) {
    case WW_OK: return;
    case WW_INVALID_ARGUMENT: type = PyExc_ValueError; break;
    case WW_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    case WW_RESOURCE_EXHAUSTED: type = PyExc_MemoryError; break;
    case WW_NOT_FOUND: type = PyExc_FileNotFoundError; break;
    default: break;
  }
  PyErr_SetString(type, ww_last_error());
  throw nb::python_error();
}

// An ndarray as the C interface wants it; the array must live as long.
class View {
 public:
  template <typename Array>
  explicit View(const Array& array) {
    for (size_t i = 0; i < array.ndim(); ++i) {
      shape_.push_back(static_cast<int64_t>(array.shape(i)));
      strides_.push_back(array.stride(i));
    }
    const nb::dlpack::dtype dtype = array.dtype();
    tensor_.data = const_cast<void*>(static_cast<const void*>(array.data()));
    tensor_.device = {array.device_type(), array.device_id()};
    tensor_.ndim = static_cast<int32_t>(array.ndim());
    tensor_.dtype = {dtype.code, dtype.bits, dtype.lanes};
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  const ww_tensor* get() const { return &tensor_; }

 private:
  std::vector<int64_t> shape_, strides_;
  ww_tensor tensor_{};
};

class OptionalView {
 public:
  template <typename Array>
  explicit OptionalView(const std::optional<Array>& array) {
    if (array) view_ = std::make_unique<View>(*array);
  }
  const ww_tensor* get() const { return view_ ? view_->get() : nullptr; }

 private:
  std::unique_ptr<View> view_;
};

// A CUstream as Python's libraries pass it around; 0: the default one.
inline void* stream_of(uint64_t handle) { return reinterpret_cast<void*>(static_cast<uintptr_t>(handle)); }

// The threads and the scratch memory that plans of one Python thread share.
struct Context {
  explicit Context(int threads) {
    ww_context_options options = WW_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    check(ww_context_create(&options, &context));
  }
  ~Context() { ww_context_destroy(context); }
  ww_context* context = nullptr;
};

// linear.cc
void bind_linear_attention(nb::module_& m);

}  // namespace warpweave::python
