// ww_linear_attention for Python: gated delta rule and Kimi delta attention.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "views.h"

namespace warpweave::python {
namespace {

using namespace nb::literals;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// g and beta, or the raw gates in their place.
struct LinearGates {
  std::optional<ConstTensor> g, beta, a, b, a_log, dt_bias;
};

struct LinearOptions {
  bool kda, from_zeros, l2norm, exact, deterministic;
  float l2norm_eps, scale;
  uint64_t stream;
};

void linear_attention(Context& context, const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                      const LinearGates& gates, const Tensor& state, const Tensor& out,
                      const std::optional<Ints>& q_indptr, const std::optional<Ints>& slots,
                      const LinearOptions& options) {
  const View q_view(q), k_view(k), v_view(v), state_view(state), out_view(out);
  const OptionalView g(gates.g), beta(gates.beta), a(gates.a), b(gates.b), a_log(gates.a_log), dt_bias(gates.dt_bias);
  ww_linear_args args = WW_LINEAR_ARGS_INIT;
  args.kind = options.kda ? WW_LINEAR_KDA : WW_LINEAR_GDN;
  args.q = q_view.get(), args.k = k_view.get(), args.v = v_view.get();
  args.g = g.get(), args.beta = beta.get(), args.a = a.get(), args.b = b.get();
  args.a_log = a_log.get(), args.dt_bias = dt_bias.get();
  args.state = state_view.get(), args.out = out_view.get();
  if (q_indptr) {
    if (q_indptr->size() == 0)
      throw nb::value_error("q_indptr: is empty, needs one entry more than there are requests");
    args.q_indptr = q_indptr->data();
    args.num_requests = static_cast<int32_t>(q_indptr->size() - 1);
  } else {
    args.num_requests = static_cast<int32_t>(q.ndim() > 0 ? q.shape(0) : 0);
  }
  if (slots) {
    if (slots->size() != static_cast<size_t>(args.num_requests))
      throw nb::value_error("slots: needs one entry for each request");
    args.slots = slots->data();
  }
  args.from_zeros = options.from_zeros, args.l2norm = options.l2norm, args.exact = options.exact;
  args.deterministic = options.deterministic;
  args.l2norm_eps = options.l2norm_eps, args.scale = options.scale;
  args.stream = stream_of(options.stream);
  ww_status status;
  {
    nb::gil_scoped_release released;
    status = ww_linear_attention(context.context, &args);
  }
  check(status);
}

}  // namespace

void bind_linear_attention(nb::module_& m) {
  m.def(
      "linear_attention",
      [](Context& context, ConstTensor q, ConstTensor k, ConstTensor v, Tensor state, Tensor out,
         std::optional<ConstTensor> g, std::optional<ConstTensor> beta, std::optional<ConstTensor> a,
         std::optional<ConstTensor> b, std::optional<ConstTensor> a_log, std::optional<ConstTensor> dt_bias,
         std::optional<Ints> q_indptr, std::optional<Ints> slots, bool kda, bool from_zeros, bool l2norm, bool exact,
         bool deterministic, float l2norm_eps, float scale, uint64_t stream) {
        linear_attention(context, q, k, v, {g, beta, a, b, a_log, dt_bias}, state, out, q_indptr, slots,
                         {kda, from_zeros, l2norm, exact, deterministic, l2norm_eps, scale, stream});
      },
      "context"_a, "q"_a, "k"_a, "v"_a, "state"_a, "out"_a, nb::kw_only(), "g"_a = nb::none(), "beta"_a = nb::none(),
      "a"_a = nb::none(), "b"_a = nb::none(), "a_log"_a = nb::none(), "dt_bias"_a = nb::none(),
      "q_indptr"_a = nb::none(), "slots"_a = nb::none(), "kda"_a = false, "from_zeros"_a = false, "l2norm"_a = false,
      "exact"_a = false, "deterministic"_a = false, "l2norm_eps"_a = 0.0f, "scale"_a = 0.0f, "stream"_a = 0);
}

}  // namespace warpweave::python
