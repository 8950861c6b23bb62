#ifndef NEEDLE3_STATE_CONV_TAIL_H_
#define NEEDLE3_STATE_CONV_TAIL_H_

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace needle3 {

// A causal depthwise convolution with its history: the last (taps − 1) · dilation rows before convolution.
//
//   out[c] = Σ_j weights[j][c] · x[p − j·dilation][c],  tap j off while p < j·wake
//
// Q, K and V have dilation 1 and wake 1; an Engram's value stream wakes at max(dilation, longest n-gram). Zero taps
// are the identity, without history.
//
// Rows are kept in a ring with room for the rows of an open step beside the committed ones, so that a commit moves an
// index and no memory, and a discard moves nothing.
class ConvTail {
 public:
  explicit ConvTail(Memory& memory) : ring_(memory) {}

  // False when memory runs out. Call once.
  [[nodiscard]] bool init(uint32_t dim, uint32_t taps, uint32_t dilation, uint32_t wake);

  [[nodiscard]] uint32_t dim() const { return dim_; }
  [[nodiscard]] uint32_t taps() const { return taps_; }
  // Rows of history.
  [[nodiscard]] uint32_t rows() const { return historyRows_; }
  // Floats of history.
  [[nodiscard]] size_t length() const { return static_cast<size_t>(historyRows_) * dim_; }

  // Convolves `count` ≥ 1 rows (count, dim) at positions position … in place, against the committed history, and keeps
  // them as the open step's; weights (taps, dim). A second call replaces the first one's rows. False, and nothing
  // changed, when memory for a larger batch runs out.
  [[nodiscard]] bool apply(uint64_t position, const float* weights, float* rows, size_t count);
  void commit();
  void discard() { pending_ = 0; }

  // The committed row of `age` rows ago, 1 … rows().
  [[nodiscard]] const float* committedRow(uint32_t age) const;
  // The committed history, oldest first, as length() floats; zeros in front where it is shorter.
  void copyTo(float* destination) const;
  void assign(const float* rows);
  // The same, where the caller then writes the length() floats himself.
  [[nodiscard]] float* refill();
  // The committed history of another tail of the same shape.
  void copyFrom(const ConvTail& other);
  void clear();

 private:
  [[nodiscard]] bool reservePending(uint32_t rows);
  // An index below twice the capacity, within it.
  [[nodiscard]] uint32_t wrapped(uint32_t index) const { return index < capacity_ ? index : index - capacity_; }
  // Where the open step's row `i` of those that are kept goes.
  [[nodiscard]] float* pendingRow(uint32_t i);

  Buffer<float> ring_;  // (capacity, dim): committed rows end before head_, the step's last rows start there
  uint32_t dim_ = 0;
  uint32_t taps_ = 0;
  uint32_t dilation_ = 1;
  uint32_t wake_ = 1;
  uint32_t historyRows_ = 0;
  uint32_t capacity_ = 0;  // rows
  uint32_t head_ = 0;      // below capacity, or 0
  uint32_t pending_ = 0;
};

}  // namespace needle3

#endif  // NEEDLE3_STATE_CONV_TAIL_H_
