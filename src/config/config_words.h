#ifndef NEEDLE3_CONFIG_CONFIG_WORDS_H_
#define NEEDLE3_CONFIG_CONFIG_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "config/model_config.h"

namespace needle3 {

// A geometry as a sequence of 32-bit words, which crosses the WebAssembly boundary and stands in snapshots:
// vocabSize, outVocab, dModel, numHeads, numKvHeads, numLayers, qkHeadDim, vHeadDim, maxSeqLen, hadaN, mhcLanes,
// slidingWindow, qkvConvTaps, engram.heads, engram.slots, engram.subDim, engram.convTaps, engram.convDilation,
// engram.seedHeads, ropeTheta (the low and the high half of its IEEE 754 double), the lengths of globalLayers, orders
// and sites, then their elements.
inline constexpr size_t kConfigHeaderWords = 24;
uint64_t configWords(const ModelConfig& config);
void encodeConfig(const ModelConfig& config, uint32_t* words);
// The spans of `config` then point into `words`. kConfig where the lengths do not add up to `words.size()`.
Status decodeConfig(std::span<const uint32_t> words, ModelConfig* config);

}  // namespace needle3

#endif  // NEEDLE3_CONFIG_CONFIG_WORDS_H_
