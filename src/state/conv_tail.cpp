#include "state/conv_tail.h"

#include <algorithm>

#include "kernels/convolve.h"

namespace needle3 {

bool ConvTail::init(uint32_t dim, uint32_t taps, uint32_t dilation, uint32_t wake) {
  const uint32_t history = taps == 0 ? 0 : (taps - 1) * dilation;
  // One row more than the history: a step of one row needs no other room.
  if (history != 0 && !ring_.allocate((uint64_t{history} + 1) * dim)) return false;
  dim_ = dim;
  taps_ = taps;
  dilation_ = dilation;
  wake_ = wake;
  historyRows_ = history;
  capacity_ = history == 0 ? 0 : history + 1;
  ring_.zero();
  return true;
}

const float* ConvTail::committedRow(uint32_t age) const {
  const uint32_t index = head_ >= age ? head_ - age : head_ + capacity_ - age;
  return ring_.data() + static_cast<size_t>(index) * dim_;
}

float* ConvTail::pendingRow(uint32_t i) { return ring_.data() + static_cast<size_t>(wrapped(head_ + i)) * dim_; }

bool ConvTail::reservePending(uint32_t rows) {
  if (historyRows_ + rows <= capacity_) return true;
  Buffer<float> larger(ring_.memory());
  if (!larger.allocate((uint64_t{historyRows_} + rows) * dim_)) return false;
  copyTo(larger.data());
  ring_.swap(larger);
  capacity_ = historyRows_ + rows;
  head_ = historyRows_;  // below the new capacity: rows ≥ 1
  return true;
}

bool ConvTail::apply(uint64_t position, const float* weights, float* rows, size_t count) {
  if (taps_ == 0) return true;
  // Rows that the next step can reach back to.
  const auto kept = static_cast<uint32_t>(std::min<size_t>(count, historyRows_));
  if (kept != 0 && !reservePending(kept)) return false;
  pending_ = kept;

  // From the last row to the first: a row is overwritten only once no later one reads it any more.
  for (size_t i = count; i-- > 0;) {
    float* row = rows + i * dim_;
    const auto tapAt = [&](uint32_t j) {
      const uint64_t reach = uint64_t{j} * dilation_;
      return ConvTap{weights + static_cast<size_t>(j) * dim_,
                     reach <= i ? row - reach * dim_ : committedRow(static_cast<uint32_t>(reach - i))};
    };
    const auto isActive = [&](uint32_t j) { return j < taps_ && position + i >= uint64_t{j} * wake_; };
    ConvTap pass[kConvPassTaps];
    uint32_t j = 0;
    for (; j < kConvPassTaps && isActive(j); ++j) pass[j] = tapAt(j);
    const size_t first = count - kept;
    convolve(pass, j, dim_, i < first ? nullptr : pendingRow(static_cast<uint32_t>(i - first)), row);
    for (; isActive(j); ++j) convolveMore(tapAt(j), dim_, row);
  }
  return true;
}

void ConvTail::commit() {
  if (pending_ == 0) return;
  head_ = wrapped(head_ + pending_);
  pending_ = 0;
}

void ConvTail::copyTo(float* destination) const {
  for (uint32_t age = historyRows_; age > 0; --age) {
    const float* row = committedRow(age);
    destination = std::copy(row, row + dim_, destination);
  }
}

float* ConvTail::refill() {
  head_ = historyRows_;
  pending_ = 0;
  return ring_.data();
}

void ConvTail::assign(const float* rows) { std::copy(rows, rows + length(), refill()); }

void ConvTail::copyFrom(const ConvTail& other) { other.copyTo(refill()); }

void ConvTail::clear() {
  ring_.zero();
  pending_ = 0;
}

}  // namespace needle3
