// --flex-attention-*: read, and checked against what was chosen. Errors are `invalid_argument` with
// the flag in `field`: a text that does not parse, modifiers without flex_attention in both phases,
// or a mask that may show later tokens where prompts are cut or prefixes shared.
#pragma once

#include "attention/mods/expression.h"
#include "attention/select.h"
#include "flags/server_args.h"

namespace warpweave {

Result<mods::Modifiers> attention_modifiers(const ServerArgs& args, const Resolved& attention);

}  // namespace warpweave
