#include "state/kv_ring.h"

#include <algorithm>
#include <cstring>

#include "state/state_size.h"

namespace needle3 {
bool KvRing::init(const KvShape& shape, uint32_t cap, uint32_t slots) {
  shape_ = shape;
  cap_ = cap;
  return resize(slots);
}

const void* KvRing::field(KvField field) const {
  switch (field) {
    case KvField::kKeys:
      return keys_.data();
    case KvField::kValues:
      return values_.data();
    case KvField::kKeyScales:
      return keyScales_.data();
    default:
      return valueScales_.data();
  }
}

bool KvRing::resize(uint32_t slots) {
  const uint64_t scales = shape_.precision == Precision::kF32 ? 0 : uint64_t{slots} * shape_.numKvHeads;
  Buffer<std::byte> keys(keys_.memory());
  Buffer<std::byte> values(keys_.memory());
  Buffer<float> keyScales(keys_.memory());
  Buffer<float> valueScales(keys_.memory());
  if (!keys.allocate(slots * uint64_t{shape_.keyBytes()}) || !values.allocate(slots * uint64_t{shape_.valueBytes()}) ||
      !keyScales.allocate(scales) || !valueScales.allocate(scales)) {
    return false;
  }
  const auto move = [](auto& from, auto& to) {
    std::copy(from.begin(), from.end(), to.begin());
    from.swap(to);
  };
  move(keys_, keys);
  move(values_, values);
  move(keyScales_, keyScales);
  move(valueScales_, valueScales);
  slots_ = slots;
  return true;
}

KvRun KvRing::rowAt(uint32_t position) const {
  const uint32_t slot = position % slots_;
  const size_t scale = size_t{slot} * shape_.numKvHeads;
  return {position,
          1,
          keys_.data() + slot * shape_.keyBytes(),
          values_.data() + slot * shape_.valueBytes(),
          keyScales_.data() + (keyScales_.size() == 0 ? 0 : scale),
          valueScales_.data() + (valueScales_.size() == 0 ? 0 : scale)};
}

size_t KvRing::runs(uint32_t first, uint32_t end, KvRun (&runs)[2]) const {
  first = std::max(first, first_);
  end = std::min(end, end_);
  if (first >= end) return 0;
  const uint32_t beforeWrap = std::min(end - first, slots_ - first % slots_);
  runs[0] = rowAt(first);
  runs[0].rows = beforeWrap;
  if (first + beforeWrap == end) return 1;
  runs[1] = rowAt(first + beforeWrap);
  runs[1].rows = end - first - beforeWrap;
  return 2;
}

template <typename Visit>
void KvRing::forEachDisplaced(uint32_t position, uint32_t rows, uint32_t first, uint32_t end, uint32_t slots,
                              Visit visit) const {
  // Wanted back when the step is undone, if a query at its first position could see the row, or by a mark.
  const auto visitWanted = [&](uint32_t held) {
    const bool byStep = uint64_t{held} + cap_ > stepPosition_;
    const bool byMark = held >= wanted_.first && held < wanted_.end;
    if (held < stepPosition_ && (byStep || byMark)) visit(held);
  };
  if (position > end) {  // a new range: all that was held is displaced, if not by these rows then by later ones
    for (uint32_t held = first; held < end; ++held) visitWanted(held);
    return;
  }
  const uint32_t stored = std::min(rows, slots);
  for (uint32_t p = position + rows - stored; p < position + rows; ++p) {
    // The last position before `end` that shares the slot.
    const uint64_t back = (uint64_t{(p - end) / slots} + 1) * slots;
    if (p >= back && p - back >= first) visitWanted(static_cast<uint32_t>(p - back));
  }
}

bool KvRing::prepare(uint32_t position, uint32_t rows, const Wanted& wanted) {
  if (inStep_) {  // the same rows again: there is room for them and for what they displace
    unwindLog(before_.moment.logRows);
    first_ = before_.moment.first;
    end_ = before_.moment.end;
    return true;
  }
  const uint32_t end = std::min(end_, position);
  const uint32_t first = std::min(first_, end);
  const uint32_t target = grownSlots(slots_, cap_, position, rows);
  stepPosition_ = position;
  wanted_ = wanted;

  // Rows to be forgotten that a mark has, and rows to be displaced.
  const uint32_t forgottenFirst = std::max(end, first_);
  const uint32_t forgottenEnd = std::max(forgottenFirst, std::min(end_, wanted.end));
  uint64_t saved = forgottenEnd - forgottenFirst;
  forEachDisplaced(position, rows, first, end, target, [&saved](uint32_t) { ++saved; });
  Buffer<std::byte> log(log_.memory());
  const uint64_t needed = (logRows_ + saved) * recordBytes();
  if (needed > log_.size()) {
    // A mark's log grows by a row a step: twice the room each time makes that cheap.
    const uint64_t room = logRows_ == 0 ? needed : std::max(needed, 2 * uint64_t{logRows_} * recordBytes());
    if (!log.allocate(room)) return false;
  }
  const uint32_t slots = slots_;
  if (target != slots_ && !resize(target)) return false;
  if (log.size() != 0) {
    std::copy_n(log_.begin(), logRows_ * recordBytes(), log.begin());
    log_.swap(log);
  }

  for (uint32_t held = forgottenFirst; held < forgottenEnd; ++held) saveRow(held);
  before_ = {slots, {first, end, logRows_}};
  first_ = first;
  end_ = end;
  inStep_ = true;
  return true;
}

bool KvRing::prepareImport(uint32_t position, uint32_t rows) {
  const uint32_t target = grownSlots(slots_, cap_, position, rows);
  return target == slots_ || resize(target);
}

void KvRing::append(const KvRun& rows) {
  const uint32_t end = rows.first + rows.rows;
  if (inStep_) {
    forEachDisplaced(rows.first, rows.rows, first_, end_, slots_, [this](uint32_t held) { saveRow(held); });
  }
  if (rows.first > end_ || first_ == end_) {
    first_ = rows.first;
    end_ = rows.first;
  }
  // Of more rows than slots, only the last stay.
  for (uint32_t row = rows.rows - std::min(rows.rows, slots_); row < rows.rows;) {
    const uint32_t slot = (rows.first + row) % slots_;
    const uint32_t count = std::min(rows.rows - row, slots_ - slot);
    const auto copyField = [&](void* to, const void* from, size_t bytes) {
      if (bytes == 0) return;
      copyBytes(static_cast<std::byte*>(to) + slot * bytes, static_cast<const std::byte*>(from) + row * bytes,
                count * bytes);
    };
    copyField(keys_.data(), rows.keys, shape_.keyBytes());
    copyField(values_.data(), rows.values, shape_.valueBytes());
    copyField(keyScales_.data(), rows.keyScales, shape_.scaleBytes());
    copyField(valueScales_.data(), rows.valueScales, shape_.scaleBytes());
    row += count;
  }
  end_ = std::max(end_, end);
  if (end_ - first_ > slots_) first_ = end_ - slots_;
}

void KvRing::commit() {
  if (!inStep_) return;
  compactLog(before_.moment.logRows, wanted_.end);
  inStep_ = false;
}

void KvRing::undo() {
  if (!inStep_) return;
  rollback(before_.moment);
  if (slots_ != before_.slots) {
    slots_ = before_.slots;
    keys_.shrink(slots_ * shape_.keyBytes());
    values_.shrink(slots_ * shape_.valueBytes());
    keyScales_.shrink(slots_ * shape_.scaleBytes() / sizeof(float));
    valueScales_.shrink(slots_ * shape_.scaleBytes() / sizeof(float));
  }
  inStep_ = false;
}

void KvRing::keepOnly(uint32_t first, uint32_t end) {
  end_ = std::min(end_, end);
  first_ = std::min(std::max(first_, first), end_);
}

void KvRing::rollback(const Moment& moment) {
  unwindLog(moment.logRows);
  first_ = moment.first;
  end_ = moment.end;
}

void KvRing::compactLog(uint32_t from, uint32_t markEnd) {
  uint32_t kept = from;
  for (uint32_t row = from; row < logRows_; ++row) {
    const std::byte* record = log_.data() + row * recordBytes();
    uint32_t position = 0;
    std::memcpy(&position, record, sizeof(position));
    if (position >= markEnd) continue;
    if (kept != row) std::memcpy(log_.data() + kept * recordBytes(), record, recordBytes());
    ++kept;
  }
  logRows_ = kept;
}

void KvRing::dropLog() {
  log_.reset();
  logRows_ = 0;
}

size_t KvRing::refill(uint32_t first, uint32_t end, KvRun (&runs)[2]) {
  first_ = first;
  end_ = end;
  return this->runs(first, end, runs);
}

void KvRing::copyRows(const KvRing& other, uint32_t first) {
  first_ = end_ = 0;
  KvRun held[2];
  const size_t count = other.runs(first, other.end_, held);
  for (size_t i = 0; i < count; ++i) append(held[i]);
}

template <typename Copy>
void KvRing::forEachField(std::byte* record, uint32_t position, Copy copy) {
  const uint32_t slot = position % slots_;
  record += sizeof(uint32_t);
  const auto field = [&](void* array, size_t bytes) {
    if (bytes == 0) return;
    copy(record, static_cast<std::byte*>(array) + slot * bytes, bytes);
    record += bytes;
  };
  field(keys_.data(), shape_.keyBytes());
  field(values_.data(), shape_.valueBytes());
  field(keyScales_.data(), shape_.scaleBytes());
  field(valueScales_.data(), shape_.scaleBytes());
}

void KvRing::saveRow(uint32_t position) {
  std::byte* record = log_.data() + logRows_++ * recordBytes();
  std::memcpy(record, &position, sizeof(position));
  forEachField(record, position,
               [](std::byte* saved, const std::byte* row, size_t bytes) { copyBytes(saved, row, bytes); });
}

void KvRing::unwindLog(uint32_t rows) {
  while (logRows_ > rows) {
    std::byte* record = log_.data() + --logRows_ * recordBytes();
    uint32_t position = 0;
    std::memcpy(&position, record, sizeof(position));
    forEachField(record, position,
                 [](const std::byte* saved, std::byte* row, size_t bytes) { copyBytes(row, saved, bytes); });
  }
}

}  // namespace needle3
