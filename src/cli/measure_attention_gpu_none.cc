#include "cli/measure_attention.h"

namespace warpweave {

Result<double> measure_attention_on_gpu(AttentionBackend&, const TuningShape&, const AttentionPoint&,
                                        const MeasureOptions&) {
  return Status::unsupported("this program was built without GPU kernels", "--device");
}

}  // namespace warpweave
