#ifndef NEEDLE3_STATE_KV_RING_H_
#define NEEDLE3_STATE_KV_RING_H_

#include <cstddef>
#include <cstdint>

#include "base/memory.h"
#include "config/model_config.h"
#include "kernels/attend.h"
#include "kernels/kv_run.h"
#include "kernels/quantize.h"

namespace needle3 {

// Which of a layer's arrays; mirrored by web/src/core/module.ts.
enum class KvField : uint8_t { kKeys, kValues, kKeyScales, kValueScales };

// Widths of a row, that is of one position's keys and values.
struct KvShape {
  Precision precision;
  uint32_t numKvHeads;
  uint32_t kDim;
  uint32_t vDim;

  [[nodiscard]] size_t keyBytes() const { return precision == Precision::kF32 ? size_t{kDim} * sizeof(float) : kDim; }
  [[nodiscard]] size_t valueBytes() const { return precision == Precision::kF32 ? size_t{vDim} * sizeof(float) : vDim; }
  // Of the scales of keys, and again of values.
  [[nodiscard]] size_t scaleBytes() const {
    return precision == Precision::kF32 ? 0 : size_t{numKvHeads} * sizeof(float);
  }
  [[nodiscard]] size_t rowBytes() const { return keyBytes() + valueBytes() + 2 * scaleBytes(); }
};

// One layer's keys and values: position p lies in slot p mod slots(). While slots() < cap the ring grows before a
// position could wrap, so growth moves no position to another slot; at the cap it wraps.
//
// It holds one contiguous range of positions, [first(), end()). Which of them queries can still see depends on the
// state's position, which the ring does not know. Rows that a write overwrites are saved while an open step or a mark
// may want them back: the log of saved rows is in the order of the overwriting, and undoing it from its end brings
// back what was there at any earlier length of it.
//
// A step's write is `prepare`, which alone can fail, then `append`s of as many rows; `commit` or `undo` closes it.
class KvRing {
 public:
  explicit KvRing(Memory& memory)
      : keys_(memory), values_(memory), keyScales_(memory), valueScales_(memory), log_(memory) {}

  // What a mark remembers of the ring.
  struct Moment {
    uint32_t first;
    uint32_t end;
    uint32_t logRows;
  };

  // Positions that marks want back: [first, end). Empty without marks.
  struct Wanted {
    uint32_t first = 0;
    uint32_t end = 0;
  };

  // False when memory runs out. Call once.
  [[nodiscard]] bool init(const KvShape& shape, uint32_t cap, uint32_t slots);

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] uint32_t cap() const { return cap_; }
  [[nodiscard]] uint32_t slots() const { return slots_; }
  [[nodiscard]] uint32_t first() const { return first_; }
  [[nodiscard]] uint32_t end() const { return end_; }
  // The same without an open step's rows.
  [[nodiscard]] uint32_t committedFirst() const { return inStep_ ? before_.moment.first : first_; }
  [[nodiscard]] uint32_t committedEnd() const { return inStep_ ? before_.moment.end : end_; }
  // Null for the scales of f32.
  [[nodiscard]] const void* field(KvField field) const;
  // Bytes of the rows saved for marks.
  [[nodiscard]] uint64_t savedBytes() const {
    return uint64_t{inStep_ ? before_.moment.logRows : logRows_} * recordBytes();
  }

  // The held rows of [first, end), as at most two runs. Returns how many.
  size_t runs(uint32_t first, uint32_t end, KvRun (&runs)[2]) const;

  // Opens a step of `rows` ≥ 1 rows at `position`; opened already, takes back what it wrote. Grows to the slots that
  // the rows one by one would have given, and makes room for what they will overwrite. Rows at or after `position` are
  // forgotten. False, and nothing changed, when memory runs out.
  [[nodiscard]] bool prepare(uint32_t position, uint32_t rows, const Wanted& wanted);
  // The same for rows from elsewhere, outside any step and without marks: nothing is forgotten or saved.
  [[nodiscard]] bool prepareImport(uint32_t position, uint32_t rows);
  // Stores rows at rows.first …: at end() or within the range they extend or replace it, beyond they start a new one.
  void append(const KvRun& rows);
  [[nodiscard]] bool inStep() const { return inStep_; }
  // Whether appending so many rows at end() would overwrite none of [first(), end()).
  [[nodiscard]] bool fits(uint32_t rows) const { return end_ + rows <= slots_; }
  // Keeps the step's rows, and of what they overwrote that which marks want.
  void commit();
  // Back to before the step, slots included.
  void undo();

  // The next ones are for outside a step.

  // Forgets positions before `first` and from `end` on.
  void keepOnly(uint32_t first, uint32_t end);
  [[nodiscard]] Moment moment() const { return {first_, end_, logRows_}; }
  void rollback(const Moment& moment);
  // Of the saved rows from `from` on keeps those of positions before `markEnd`.
  void compactLog(uint32_t from, uint32_t markEnd);
  // Drops all saved rows and gives their memory back.
  void dropLog();

  // Holds [first, end) from then on, in memory that the caller fills: at most two runs, whose bytes are his to write.
  size_t refill(uint32_t first, uint32_t end, KvRun (&runs)[2]);

  // Holds then what `other` holds of [first, end()). Same shape and slots.
  void copyRows(const KvRing& other, uint32_t first);

 private:
  // What a step may take back.
  struct Before {
    uint32_t slots;
    Moment moment;
  };

  [[nodiscard]] size_t recordBytes() const { return sizeof(uint32_t) + shape_.rowBytes(); }
  // The slot of `position`, as a run of one row.
  [[nodiscard]] KvRun rowAt(uint32_t position) const;
  [[nodiscard]] bool resize(uint32_t slots);
  // Calls visit(position) for each held row that a step's rows at `position` … displace, if it may be wanted back,
  // given the range and the slots at that moment.
  template <typename Visit>
  void forEachDisplaced(uint32_t position, uint32_t rows, uint32_t first, uint32_t end, uint32_t slots,
                        Visit visit) const;
  void saveRow(uint32_t position);
  // Takes saved rows back, from the end of the log, until it has `rows`.
  void unwindLog(uint32_t rows);
  // Calls copy(bytes in the record, bytes in the ring, length) for each field of a position's row.
  template <typename Copy>
  void forEachField(std::byte* record, uint32_t position, Copy copy);

  KvShape shape_{};
  uint32_t cap_ = 0;
  uint32_t slots_ = 0;
  uint32_t first_ = 0;
  uint32_t end_ = 0;

  Buffer<std::byte> keys_;    // (slots, kDim)
  Buffer<std::byte> values_;  // (slots, vDim)
  Buffer<float> keyScales_;   // (slots, numKvHeads), int8
  Buffer<float> valueScales_;

  Buffer<std::byte> log_;  // records: position, keys, values, scales
  uint32_t logRows_ = 0;

  bool inStep_ = false;
  Before before_{};
  uint32_t stepPosition_ = 0;  // the step's first position
  Wanted wanted_{};
};

}  // namespace needle3

#endif  // NEEDLE3_STATE_KV_RING_H_
