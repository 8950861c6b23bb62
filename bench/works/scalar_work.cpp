// The baseline's side: bench/scalar over plain arrays.
#include <vector>

#include "inputs.h"
#include "scalar_loops.h"
#include "work.h"

namespace needle3::bench {
namespace {

constexpr ScalarShape kShape{kHeads, kKvHeads, kQkHeadDim, kVHeadDim};

// A ring of keys and values in one of the two forms.
struct Cache {
  Cache(Format storage, uint32_t slotCount)
      : format(storage),
        slots(slotCount),
        keys(format == Format::kF32 ? slots * kKDim : 0),
        values(format == Format::kF32 ? slots * kVDim : 0),
        int8Keys(format == Format::kF32 ? 0 : slots * kKDim),
        int8Values(format == Format::kF32 ? 0 : slots * kVDim),
        keyScales(format == Format::kF32 ? 0 : slots * kKvHeads),
        valueScales(format == Format::kF32 ? 0 : slots * kKvHeads) {}

  void write(uint32_t position, const float* k, const float* v) {
    if (format == Format::kF32) {
      scalarWriteKv(kShape, position, slots, k, v, keys.data(), values.data());
    } else {
      scalarWriteKvInt8(kShape, position, slots, k, v, int8Keys.data(), keyScales.data(), int8Values.data(),
                        valueScales.data());
    }
  }

  Format format;
  uint32_t slots;
  std::vector<float> keys, values;
  std::vector<int8_t> int8Keys, int8Values;
  std::vector<float> keyScales, valueScales;
};

class Attend : public Work {
 public:
  Attend(Format format, Reach reach, uint32_t positions)
      : cache_(format, positions),
        last_((reach == Reach::kGlobal ? positions : kWrappedPositions) - 1),
        first_(last_ + 1 - positions),
        query_(Random(kRowsSeed).floats(kQDim)),
        scores_(positions),
        quantized_(kQkHeadDim),
        out_(kAttnOutDim) {
    Random random(kCacheSeed);
    for (uint32_t p = 0; p <= last_; ++p) {
      const std::vector<float> row = random.floats(kKDim + kVDim);
      cache_.write(p, row.data(), row.data() + kKDim);
    }
  }

  void run(uint32_t iterations) override {
    const ScalarInt8Cache int8{cache_.int8Keys.data(), cache_.keyScales.data(), cache_.int8Values.data(),
                               cache_.valueScales.data(), cache_.slots};
    for (uint32_t i = 0; i < iterations; ++i) {
      switch (cache_.format) {
        case Format::kF32:
          scalarAttend(kShape, {cache_.keys.data(), cache_.values.data(), cache_.slots}, first_, last_, query_.data(),
                       scores_.data(), out_.data());
          break;
        case Format::kInt8:
          scalarAttendInt8QuantizedQuery(kShape, int8, first_, last_, query_.data(), quantized_.data(), scores_.data(),
                                         out_.data());
          break;
        case Format::kInt8FloatQuery:
          scalarAttendInt8(kShape, int8, first_, last_, query_.data(), scores_.data(), out_.data());
          break;
      }
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return out_; }

 private:
  Cache cache_;
  uint32_t last_, first_;
  std::vector<float> query_, scores_;
  std::vector<int8_t> quantized_;
  std::vector<float> out_;
};

class Convolve : public Work {
 public:
  Convolve(uint32_t count, uint32_t taps, uint32_t dilation, uint32_t wake, uint32_t dim)
      : taps_(taps), dilation_(dilation), wake_(wake), dim_(dim) {
    Random random(kTapsSeed);
    Random rows(kRowsSeed);
    for (uint32_t i = 0; i < count; ++i) {
      layers_.push_back({averagingTaps(taps, dim, random),
                         std::vector<float>(static_cast<size_t>(taps - 1) * dilation * dim), rows.floats(dim)});
    }
  }

  void run(uint32_t iterations) override {
    for (uint32_t n = 0; n < iterations; ++n) {
      for (Layer& layer : layers_) {
        scalarConvolve({layer.taps.data(), taps_, dilation_, wake_, dim_}, position_, layer.tail.data(),
                       layer.row.data());
      }
      ++position_;
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return layers_.back().row; }

 private:
  struct Layer {
    std::vector<float> taps, tail, row;
  };
  uint32_t taps_, dilation_, wake_, dim_;
  uint32_t position_ = 0;
  std::vector<Layer> layers_;
};

class WriteKv : public Work {
 public:
  explicit WriteKv(Format format) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) caches_.emplace_back(format, kWindow);
    Random random(kRowsSeed);
    keys_ = random.floats(kKDim);
    values_ = random.floats(kVDim);
  }

  void run(uint32_t iterations) override {
    for (uint32_t n = 0; n < iterations; ++n) {
      for (Cache& cache : caches_) cache.write(position_, keys_.data(), values_.data());
      ++position_;
    }
  }
  // In int8 the scales stand for the row.
  [[nodiscard]] std::span<const float> output() const override {
    const Cache& cache = caches_.back();
    if (cache.format == Format::kF32) return {cache.values.data(), kVDim};
    return {cache.valueScales.data(), kKvHeads};
  }

 private:
  std::vector<Cache> caches_;
  uint32_t position_ = 0;
  std::vector<float> keys_, values_;
};

}  // namespace

std::unique_ptr<Work> createScalarWork(std::span<const std::string_view> words) {
  const std::string_view kind = words[0];
  if (kind == "attend" && words.size() == 5) {
    return std::make_unique<Attend>(parseFormat(words[2]), parseReach(words[3]), parseCount(words[4]));
  }
  if (kind == "conv" && words.size() == 3) {
    return std::make_unique<Convolve>(kLayers, kQkvTaps, 1, 1,
                                      words[2] == "q"   ? kQDim
                                      : words[2] == "k" ? kKDim
                                                        : kVDim);
  }
  if (kind == "engramConv")
    return std::make_unique<Convolve>(kEngramSites, kEngramTaps, kEngramDilation, kMaxOrder, kDModel);
  if (kind == "writeKv" && words.size() == 3) return std::make_unique<WriteKv>(parseFormat(words[2]));
  return nullptr;
}

}  // namespace needle3::bench
