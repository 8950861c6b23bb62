#ifndef NEEDLE3_STATE_STATE_SIZE_H_
#define NEEDLE3_STATE_STATE_SIZE_H_

#include <cstdint>

#include "base/status.h"
#include "config/model_config.h"
#include "kernels/quantize.h"

namespace needle3 {

// Slots a new layer starts with: min(clamp(capacityHint, 1, maxSeqLen), cap).
uint32_t initialSlots(const ModelConfig& config, uint32_t layer, uint32_t capacityHint);
// Slots after rows at positions first … first + rows − 1 are written one by one: a write at p ≥ slots, while
// slots < cap, grows to min(max(2·slots, p + 1), cap).
uint32_t grownSlots(uint32_t slots, uint32_t cap, uint64_t first, uint64_t rows);
// Bytes of one slot: keys and values of all kv heads, and their scales in int8.
uint64_t slotBytes(const ModelConfig& config, Precision precision);

// What byteLength is once `positions` rows and tokens have been written one by one to a new state.
// kConfig as `validate`.
Status decodeStateBytes(const ModelConfig& config, uint32_t capacityHint, Precision precision, uint64_t positions,
                        uint64_t* bytes);

}  // namespace needle3

#endif  // NEEDLE3_STATE_STATE_SIZE_H_
