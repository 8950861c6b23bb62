#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/exp.h"
#include "kernels/simd.h"

namespace needle3 {
namespace {

// Steele, Lea and Flood's SplitMix64 (2014): the draw-th output of the generator that starts at `seed`.
uint64_t splitMix64(uint64_t seed, uint64_t draw) {
  uint64_t z = seed + (draw + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

struct Candidate {
  float logit;
  uint32_t token;
  float weight;
};

// The more likely first, the lower id among equals: a total order, so that any sort gives one result.
bool moreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// e^((logit − best) / temperature). Infinite logits share the certainty between them.
float weight(float logit, float best, float temperature) {
  if (logit == best) return 1.0F;
  return firstLane(expOfNonPositive(splat((logit - best) / temperature)));
}

}  // namespace

Status sampleToken(std::span<const float> logits, const SamplerOptions& options, uint64_t draw, Memory& memory,
                   uint32_t* token) {
  uint32_t best = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return Status(ErrorCode::kNonFinite) << "logit " << i << " is NaN";
    if (logits[i] > logits[best]) best = i;
  }
  if (logits[best] == -std::numeric_limits<float>::infinity()) {
    return Status(ErrorCode::kNonFinite) << "every logit is -Infinity: no token is left to sample";
  }
  if (!(options.temperature > 0) || options.topK == 1) {
    *token = best;
    return {};
  }

  Buffer<Candidate> candidates(memory);
  if (!candidates.allocate(logits.size())) return outOfMemory(logits.size() * sizeof(Candidate));
  size_t count = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) candidates[count++] = {logits[i], i, 0};
  }
  const bool isNucleus = options.topP < 1;
  const size_t kept = options.topK != 0 ? std::min<size_t>(options.topK, count) : count;
  if (kept < count || isNucleus) {
    std::partial_sort(candidates.begin(), candidates.begin() + kept, candidates.begin() + count, moreLikely);
    count = kept;
  }
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    candidates[i].weight = weight(candidates[i].logit, logits[best], options.temperature);
    total += double{candidates[i].weight};
  }

  if (isNucleus) {
    // The fewest of the most likely that reach topP, at least one.
    const double wanted = double{options.topP} * total;
    double reached = 0;
    size_t nucleus = 0;
    do {
      reached += double{candidates[nucleus++].weight};
    } while (nucleus < count && reached < wanted);
    count = nucleus;
    total = reached;
  }

  // 53 random bits as a fraction of the total.
  double left = static_cast<double>(splitMix64(options.seed, draw) >> 11) * 0x1p-53 * total;
  size_t chosen = 0;
  while (chosen + 1 < count && left >= double{candidates[chosen].weight}) left -= double{candidates[chosen++].weight};
  *token = candidates[chosen].token;
  return {};
}

}  // namespace needle3
