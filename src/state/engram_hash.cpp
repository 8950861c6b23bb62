#include "state/engram_hash.h"

namespace needle3 {

void engramIndices(const EngramConfig& engram, std::span<const uint32_t> tokens, uint32_t* indices) {
  const uint32_t stride = engram.seedHeads != 0 ? engram.seedHeads : engram.heads;
  for (size_t orderIndex = 0; orderIndex < engram.orders.size(); ++orderIndex) {
    for (uint32_t head = 0; head < engram.heads; ++head) {
      uint32_t hash = 0x9E3779B9U * (static_cast<uint32_t>(orderIndex) * stride + head + 1);
      for (uint32_t j = 0; j < engram.orders[orderIndex]; ++j) {
        const uint32_t token = j < tokens.size() ? tokens[tokens.size() - 1 - j] : 0;
        hash = (hash ^ token) * 0x01000193U;
      }
      hash ^= hash >> 15;
      *indices++ = hash % engram.slots;
    }
  }
}

}  // namespace needle3
