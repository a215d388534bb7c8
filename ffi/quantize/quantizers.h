// The tables of functions, one for each instruction set that this build has.
#pragma once

#include "quantize/quantize.h"

namespace jaxring {

// Indexed by format.
using QuantizerTable = Quantizers[kQuantFormatCount];

const QuantizerTable& BaselineQuantizers();
#if defined(__x86_64__)
const QuantizerTable& Avx2Quantizers();
const QuantizerTable& Avx512Quantizers();
#endif

}  // namespace jaxring
