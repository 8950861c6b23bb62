#ifndef NEEDLE3_STATE_TOKEN_WINDOW_H_
#define NEEDLE3_STATE_TOKEN_WINDOW_H_

#include <cstdint>
#include <span>

#include "base/memory.h"

namespace needle3 {

// The last `capacity` token ids: committed ones, and those pushed since, which `commit` keeps and `discard` drops.
class TokenWindow {
 public:
  explicit TokenWindow(Memory& memory) : ids_(memory) {}

  // False when memory runs out. Call once.
  [[nodiscard]] bool init(uint32_t capacity);

  void push(uint32_t id);
  void commit();
  void discard();
  // Replaces all by the last `capacity` of `ids`, committed.
  void assign(std::span<const uint32_t> ids);

  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  // Tokens pushed since the last commit, retained or not.
  [[nodiscard]] uint32_t pending() const { return pending_; }
  // Retained ones, pushed ones included, at most capacity.
  [[nodiscard]] uint32_t count() const { return count(committed_ + retainedPending()); }
  // Retained ones, oldest first, pushed ones included. Valid until the next call that is not const.
  [[nodiscard]] std::span<const uint32_t> ids() const {
    return {ids_.data() + committed_ + retainedPending() - count(), count()};
  }
  void copyTo(uint32_t* destination) const;

 private:
  [[nodiscard]] uint32_t count(uint32_t total) const { return total < capacity_ ? total : capacity_; }
  [[nodiscard]] uint32_t retainedPending() const { return pending_ < capacity_ ? pending_ : capacity_; }

  // Committed ids, then the last `capacity` pushed ones, each oldest first.
  Buffer<uint32_t> ids_;
  uint32_t capacity_ = 0;
  uint32_t committed_ = 0;
  uint32_t pending_ = 0;
};

}  // namespace needle3

#endif  // NEEDLE3_STATE_TOKEN_WINDOW_H_
