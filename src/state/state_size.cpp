#include "state/state_size.h"

#include <algorithm>

namespace needle3 {

uint32_t initialSlots(const ModelConfig& config, uint32_t layer, uint32_t capacityHint) {
  return std::min(std::clamp(capacityHint, 1U, config.maxSeqLen), config.cap(layer));
}

uint32_t grownSlots(uint32_t slots, uint32_t cap, uint64_t first, uint64_t rows) {
  uint64_t grown = slots;
  // The next write that finds no slot is the first at or past `grown`; each turn at least doubles it.
  while (grown < cap && grown < first + rows) {
    grown = std::min<uint64_t>(std::max(2 * grown, std::max(first, grown) + 1), cap);
  }
  return static_cast<uint32_t>(grown);
}

uint64_t slotBytes(const ModelConfig& config, Precision precision) {
  const uint64_t width = config.kDim() + config.vDim();
  return precision == Precision::kF32 ? width * sizeof(float)
                                      : width + static_cast<uint64_t>(config.numKvHeads) * 2 * sizeof(float);
}

Status decodeStateBytes(const ModelConfig& config, uint32_t capacityHint, Precision precision, uint64_t positions,
                        uint64_t* bytes) {
  NEEDLE3_RETURN_IF_ERROR(validate(config));
  // Layers of one cap grow alike, and there are two caps.
  const uint32_t hinted = std::clamp(capacityHint, 1U, config.maxSeqLen);
  const auto slotsOf = [&](uint32_t cap) { return uint64_t{grownSlots(std::min(hinted, cap), cap, 0, positions)}; };
  const uint64_t globals = config.slidingWindow == 0 ? config.numLayers : config.globalLayers.size();
  uint64_t slots = globals * slotsOf(config.maxSeqLen);
  if (globals < config.numLayers) {
    slots += (config.numLayers - globals) * slotsOf(std::min(config.slidingWindow, config.maxSeqLen));
  }
  *bytes = slots * slotBytes(config, precision) + tailBytes(config) +
           std::min<uint64_t>(positions, config.engram.maxOrder()) * sizeof(uint32_t);
  return {};
}

}  // namespace needle3
