#include "config/config_words.h"

#include <algorithm>

namespace needle3 {

uint64_t configWords(const ModelConfig& config) {
  return kConfigHeaderWords + config.globalLayers.size() + config.engram.orders.size() + config.engram.sites.size();
}

void encodeConfig(const ModelConfig& config, uint32_t* words) {
  const EngramConfig& engram = config.engram;
  const uint64_t theta = __builtin_bit_cast(uint64_t, config.ropeTheta);
  const uint32_t header[kConfigHeaderWords] = {
      config.vocabSize,
      config.outVocab,
      config.dModel,
      config.numHeads,
      config.numKvHeads,
      config.numLayers,
      config.qkHeadDim,
      config.vHeadDim,
      config.maxSeqLen,
      config.hadaN,
      config.mhcLanes,
      config.slidingWindow,
      config.qkvConvTaps,
      engram.heads,
      engram.slots,
      engram.subDim,
      engram.convTaps,
      engram.convDilation,
      engram.seedHeads,
      static_cast<uint32_t>(theta),
      static_cast<uint32_t>(theta >> 32),
      static_cast<uint32_t>(config.globalLayers.size()),
      static_cast<uint32_t>(engram.orders.size()),
      static_cast<uint32_t>(engram.sites.size()),
  };
  words = std::copy(std::begin(header), std::end(header), words);
  words = std::copy(config.globalLayers.begin(), config.globalLayers.end(), words);
  words = std::copy(engram.orders.begin(), engram.orders.end(), words);
  std::copy(engram.sites.begin(), engram.sites.end(), words);
}

Status decodeConfig(std::span<const uint32_t> words, ModelConfig* config) {
  const auto wrongLength = [&words] {
    Status status(ErrorCode::kConfig);
    status << "a geometry of " << words.size() << " words does not have the length it declares";
    return status;
  };
  if (words.size() < kConfigHeaderWords) return wrongLength();
  const size_t numGlobal = words[21];
  const size_t numOrders = words[22];
  const size_t numSites = words[23];
  std::span<const uint32_t> lists = words.subspan(kConfigHeaderWords);
  if (uint64_t{words[21]} + words[22] + words[23] != lists.size()) return wrongLength();
  *config = ModelConfig{
      .vocabSize = words[0],
      .outVocab = words[1],
      .dModel = words[2],
      .numHeads = words[3],
      .numKvHeads = words[4],
      .numLayers = words[5],
      .qkHeadDim = words[6],
      .vHeadDim = words[7],
      .maxSeqLen = words[8],
      .hadaN = words[9],
      .mhcLanes = words[10],
      .slidingWindow = words[11],
      .qkvConvTaps = words[12],
      .ropeTheta = __builtin_bit_cast(double, uint64_t{words[20]} << 32 | words[19]),
      .globalLayers = lists.first(numGlobal),
      .engram = {.orders = lists.subspan(numGlobal, numOrders),
                 .heads = words[13],
                 .slots = words[14],
                 .subDim = words[15],
                 .sites = lists.last(numSites),
                 .convTaps = words[16],
                 .convDilation = words[17],
                 .seedHeads = words[18]},
  };
  return {};
}

}  // namespace needle3
