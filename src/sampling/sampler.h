#ifndef NEEDLE3_SAMPLING_SAMPLER_H_
#define NEEDLE3_SAMPLING_SAMPLER_H_

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/status.h"

namespace needle3 {

struct SamplerOptions {
  float temperature = 0;  // 0: the largest logit, the lowest id among equals
  uint32_t topK = 0;      // only the k most likely tokens; 0: all
  float topP = 1;         // of those, the fewest most likely ones whose probabilities add up to at least topP
  uint32_t seed = 0;
};

// Draws one token. `draw` counts the draws made with this seed, so that a draw depends on its arguments alone, and on
// no engine: the exponential is the project's own and every order of summation is fixed.
// −∞ masks a token. kNonFinite: a logit is NaN, or every token is masked. kOutOfMemory. Needs a logit at least.
Status sampleToken(std::span<const float> logits, const SamplerOptions& options, uint64_t draw, Memory& memory,
                   uint32_t* token);

}  // namespace needle3

#endif  // NEEDLE3_SAMPLING_SAMPLER_H_
