// Attention results over disjoint sets of tokens, merged by their LSE: ww_merge_states.
#pragma once

#include "capi/context.h"
#include "warpweave/c.h"

namespace warpweave::capi {

Status merge_states(Context& context, const ww_merge_args& args);

}  // namespace warpweave::capi
