// More widths of wgmma (wgmma.h), both operands from shared memory.
#pragma once

#include "device/cuda/wgmma.h"
#include "device/cuda/wgmma_wide_bf16.h"
#include "device/cuda/wgmma_wide_f16.h"
