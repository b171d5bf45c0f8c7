// New K and V into a cache of any format: ww_append_kv. Nothing is written unless every slot is
// right.
#pragma once

#include "capi/context.h"
#include "warpweave/c.h"

namespace warpweave::capi {

Status append_kv(Context& context, const ww_append_args& args, const ww_kv_cache& kv);

}  // namespace warpweave::capi
