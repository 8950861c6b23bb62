// The attention kernel by itself, over plain arrays.
#include <vector>

#include "base/scratch.h"
#include "inputs.h"
#include "kernels/attend.h"
#include "kernels/kv_run.h"
#include "kernels/quantize.h"
#include "work.h"

namespace needle3::bench {
namespace {

class Attend : public Work {
 public:
  Attend(Format format, Reach reach, uint32_t positions)
      : shape_{kHeads,
               kKvHeads,
               kQkHeadDim,
               kVHeadDim,
               format == Format::kF32 ? Precision::kF32 : Precision::kInt8,
               format == Format::kInt8},
        positions_(positions),
        last_((reach == Reach::kGlobal ? positions : kWrappedPositions) - 1),
        query_(Random(kRowsSeed).floats(kQDim)),
        out_(kAttnOutDim),
        keys_(positions * kKDim),
        values_(positions * kVDim),
        int8Keys_(positions * kKDim),
        int8Values_(positions * kVDim),
        keyScales_(positions * kKvHeads),
        valueScales_(positions * kKvHeads) {
    Random random(kCacheSeed);
    for (uint32_t p = 0; p <= last_; ++p) {
      const std::vector<float> row = random.floats(kKDim + kVDim);
      const uint32_t slot = p % positions;
      for (uint32_t i = 0; i < kKDim; ++i) keys_[slot * kKDim + i] = row[i];
      for (uint32_t i = 0; i < kVDim; ++i) values_[slot * kVDim + i] = row[kKDim + i];
      for (uint32_t h = 0; h < kKvHeads; ++h) {
        keyScales_[slot * kKvHeads + h] =
            quantizeRow(row.data() + h * kQkHeadDim, kQkHeadDim, int8Keys_.data() + slot * kKDim + h * kQkHeadDim);
        valueScales_[slot * kKvHeads + h] = quantizeRow(row.data() + kKDim + h * kVHeadDim, kVHeadDim,
                                                        int8Values_.data() + slot * kVDim + h * kVHeadDim);
      }
    }
    const uint32_t first = last_ + 1 - positions;
    const uint32_t wrap = (last_ + 1) / positions * positions;
    if (wrap > first && wrap <= last_) {
      runs_ = {runOf(first, wrap - first), runOf(wrap, last_ + 1 - wrap)};
    } else {
      runs_ = {runOf(first, positions)};
    }
    if (!workspace_.reserve(attendScratchBytes(shape_))) __builtin_trap();
  }

  void run(uint32_t iterations) override {
    for (uint32_t i = 0; i < iterations; ++i) {
      attend(shape_, runs_, query_.data(), 1, last_, positions_, out_.data(), workspace_.data());
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return out_; }

 private:
  [[nodiscard]] KvRun runOf(uint32_t first, uint32_t rows) const {
    const uint32_t slot = first % positions_;
    if (shape_.precision == Precision::kF32) {
      return {first, rows, keys_.data() + slot * kKDim, values_.data() + slot * kVDim, nullptr, nullptr};
    }
    return {first,
            rows,
            int8Keys_.data() + slot * kKDim,
            int8Values_.data() + slot * kVDim,
            keyScales_.data() + slot * kKvHeads,
            valueScales_.data() + slot * kKvHeads};
  }

  AttendShape shape_;
  uint32_t positions_, last_;
  std::vector<float> query_, out_, keys_, values_;
  std::vector<int8_t> int8Keys_, int8Values_;
  std::vector<float> keyScales_, valueScales_;
  std::vector<KvRun> runs_;
  Scratch workspace_;
};

}  // namespace

std::unique_ptr<Work> createKernelWork(std::span<const std::string_view> words) {
  if (words[0] == "attend" && words.size() == 5) {
    return std::make_unique<Attend>(parseFormat(words[2]), parseReach(words[3]), parseCount(words[4]));
  }
  return nullptr;
}

}  // namespace needle3::bench
