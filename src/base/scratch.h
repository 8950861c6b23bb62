#ifndef NEEDLE3_BASE_SCRATCH_H_
#define NEEDLE3_BASE_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace needle3 {

// Scratch begins at a multiple of this, and so does each array that an Arena hands out: a vector's width.
inline constexpr size_t kScratchAlignment = 16;

template <typename T>
constexpr T roundUp(T n, size_t multiple) {
  return static_cast<T>((n + multiple - 1) / multiple * multiple);
}

// Memory for the length of one call: shared by all that runs on one thread, grown to the largest call seen, and never
// counted as a state's or a model's. It holds nothing between calls.
class Scratch {
 public:
  Scratch() : bytes_(memory_) {}
  // Makes room for `bytes` bytes. False, and nothing changed, when memory runs out. Addresses given out before end.
  [[nodiscard]] bool reserve(uint64_t bytes);
  // The first byte, aligned to kScratchAlignment.
  [[nodiscard]] std::byte* data();

 private:
  Memory memory_;
  Buffer<std::byte> bytes_;
};

// Hands out arrays of one piece of memory, one after the other. Without memory (`base` null) it only measures: the same
// calls then give null, and bytes() says how much they would have needed.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  // `count` uninitialised elements, aligned to kScratchAlignment.
  template <typename T>
  T* take(uint64_t count) {
    T* array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += roundUp(count * sizeof(T), kScratchAlignment);
    return array;
  }
  // Bytes handed out so far.
  [[nodiscard]] uint64_t bytes() const { return offset_; }

 private:
  std::byte* base_;
  uint64_t offset_ = 0;
};

}  // namespace needle3

#endif  // NEEDLE3_BASE_SCRATCH_H_
