#ifndef NEEDLE3_STATE_ENGRAM_HASH_H_
#define NEEDLE3_STATE_ENGRAM_HASH_H_

#include <cstdint>
#include <span>

#include "config/model_config.h"

namespace needle3 {

// The slot, in each of the orders × heads hash tables, of the n-gram that ends at the last of `tokens` (oldest first,
// at least one; tokens before the first count as 0). Table t = orderIndex · heads + h. u32 arithmetic, wrapping.
// `indices` has engram.tables() elements. The formula is DESIGN section 3's.
void engramIndices(const EngramConfig& engram, std::span<const uint32_t> tokens, uint32_t* indices);

}  // namespace needle3

#endif  // NEEDLE3_STATE_ENGRAM_HASH_H_
