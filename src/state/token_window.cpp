#include "state/token_window.h"

#include <algorithm>
#include <cstring>

namespace needle3 {
namespace {

// Appends to `count` ids at `ids`, dropping the oldest past `capacity`. The added ones may lie behind them.
uint32_t append(uint32_t* ids, uint32_t count, uint32_t capacity, std::span<const uint32_t> added) {
  if (added.size() > capacity) added = added.last(capacity);
  const auto kept = std::min(count, static_cast<uint32_t>(capacity - added.size()));
  if (kept != 0) std::memmove(ids, ids + (count - kept), kept * sizeof(uint32_t));
  if (!added.empty()) std::memmove(ids + kept, added.data(), added.size_bytes());
  return kept + static_cast<uint32_t>(added.size());
}

}  // namespace

bool TokenWindow::init(uint32_t capacity) {
  if (!ids_.allocate(uint64_t{capacity} * 2)) return false;
  capacity_ = capacity;
  return true;
}

void TokenWindow::push(uint32_t id) {
  append(ids_.data() + committed_, retainedPending(), capacity_, {&id, 1});
  ++pending_;
}

void TokenWindow::commit() {
  // The pushed ids lie behind the committed ones already.
  committed_ = append(ids_.data(), 0, capacity_, ids());
  pending_ = 0;
}

void TokenWindow::discard() { pending_ = 0; }

void TokenWindow::assign(std::span<const uint32_t> ids) {
  committed_ = append(ids_.data(), 0, capacity_, ids);
  pending_ = 0;
}

void TokenWindow::copyTo(uint32_t* destination) const { std::copy(ids().begin(), ids().end(), destination); }

}  // namespace needle3
