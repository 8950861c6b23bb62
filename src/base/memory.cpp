#include "base/memory.h"

#include <cstdlib>

namespace needle3 {

void* Memory::allocate(uint64_t bytes) {
  if (bytes == 0) bytes = 1;
  if (remaining_ == 0 || bytes > SIZE_MAX) return nullptr;
  if (remaining_ != UINT64_MAX) --remaining_;
  void* pointer = std::malloc(static_cast<size_t>(bytes));
  if (pointer != nullptr) liveBytes_ += bytes;
  return pointer;
}

void* Memory::shrink(void* pointer, uint64_t bytes, uint64_t newBytes) {
  liveBytes_ -= bytes - newBytes;
  void* shrunk = std::realloc(pointer, static_cast<size_t>(newBytes));
  return shrunk != nullptr ? shrunk : pointer;  // an allocator that cannot shrink leaves the block as it is
}

void Memory::release(void* pointer, uint64_t bytes) {
  if (pointer == nullptr) return;
  liveBytes_ -= bytes == 0 ? 1 : bytes;
  std::free(pointer);
}

}  // namespace needle3
