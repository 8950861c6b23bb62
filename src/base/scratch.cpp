#include "base/scratch.h"

namespace needle3 {

bool Scratch::reserve(uint64_t bytes) {
  const uint64_t needed = bytes + kScratchAlignment;
  return needed <= bytes_.size() || bytes_.allocate(needed);
}

std::byte* Scratch::data() {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  return bytes_.data() + (roundUp(address, kScratchAlignment) - address);
}

}  // namespace needle3
