// In which form prompts of latent attention will be computed, and why, in explain's words.
#pragma once

#include "attention/latent_forms.h"
#include "engine/serve_plan.h"

namespace warpweave {

// What tables name times of both forms by: written by `tune`, looked for by plan_latent_forms. For models with
// config.latent.
LatentFormShape latent_form_shape(const ModelConfig& config, KvFormat format);

// After attention is chosen: fills plan.latent_forms from the tuning table that there is for the device
// (--attention-tuning-file, else the program's own), and says in plan.attention.reasons where the forms cross. For
// models with config.latent.
void plan_latent_forms(const ServerArgs& args, const ModelConfig& config, const ServeTarget& target, ServePlan& plan);

}  // namespace warpweave
