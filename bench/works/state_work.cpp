// The decode state's calls, as bindings/ makes them.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "base/scratch.h"
#include "inputs.h"
#include "kernels/quantize.h"
#include "state/decode_state.h"
#include "work.h"

namespace needle3::bench {
namespace {

constexpr std::array<uint32_t, 2> kOrders{2, 3};
constexpr std::array<uint32_t, kEngramSites> kSites{3, 7, 11, 15, 19};
constexpr std::array<uint32_t, 4> kGlobalLayers{4, 9, 14, 19};
constexpr std::array<uint32_t, 1> kFirstLayer{0};

void require(const Status& status) {
  if (!status.ok()) std::abort();
}

ModelConfig shippedConfig() {
  ModelConfig config;
  config.vocabSize = 8192;
  config.outVocab = 8192;
  config.dModel = kDModel;
  config.numHeads = kHeads;
  config.numKvHeads = kKvHeads;
  config.numLayers = kLayers;
  config.qkHeadDim = kQkHeadDim;
  config.vHeadDim = kVHeadDim;
  config.maxSeqLen = 8192;
  config.hadaN = 1024;
  config.mhcLanes = 4;
  config.slidingWindow = kWindow;
  config.qkvConvTaps = kQkvTaps;
  config.ropeTheta = 100000;
  config.globalLayers = kGlobalLayers;
  config.engram = {.orders = kOrders,
                   .heads = 3,
                   .slots = 18432,
                   .subDim = 128,
                   .sites = kSites,
                   .convTaps = kEngramTaps,
                   .convDilation = kEngramDilation,
                   .seedHeads = 0};
  return config;
}

ModelConfig oneLayer(Reach reach) {
  ModelConfig config = shippedConfig();
  config.numLayers = 1;
  config.globalLayers = {};
  if (reach == Reach::kGlobal) config.globalLayers = kFirstLayer;
  config.engram.sites = kFirstLayer;
  return config;
}

// A decode state whose layers have all the slots they can come to have.
class State {
 public:
  State(const ModelConfig& config, Format format) {
    const DecodeStateOptions options{.capacityHint = config.maxSeqLen,
                                     .precision = format == Format::kF32 ? Precision::kF32 : Precision::kInt8,
                                     .quantizeQuery = format == Format::kInt8};
    require(DecodeState::create(config, options, memory_, workspace_, &state_));
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { DecodeState::destroy(state_); }
  DecodeState* get() { return state_; }
  DecodeState* operator->() { return state_; }
  const DecodeState* operator->() const { return state_; }

  // Puts rows in front of `position` into every layer, as many as the layer can hold.
  void fill(uint32_t position) {
    Random random(kCacheSeed);
    const std::vector<float> keys = random.floats(static_cast<size_t>(position) * kKDim);
    const std::vector<float> values = random.floats(static_cast<size_t>(position) * kVDim);
    for (uint32_t layer = 0; layer < state_->config().numLayers; ++layer) {
      require(state_->writeKvAt(layer, keys, values, 0));
    }
    require(state_->setPosition(position));
  }

 private:
  Memory memory_;
  Scratch workspace_;
  DecodeState* state_ = nullptr;
};

class Rows : public Work {
 public:
  Rows(bool batch, Format format, Reach reach, uint32_t rows)
      : batch_(batch), reach_(reach), rows_(rows), state_(oneLayer(reach), format), out_(rows * kAttnOutDim) {
    Random random(kRowsSeed);
    queries_ = random.floats(rows * kQDim);
    keys_ = random.floats(rows * kKDim);
    values_ = random.floats(rows * kVDim);
    if (reach == Reach::kLocal) state_.fill(kWrappedPositions);
  }

  void run(uint32_t iterations) override {
    for (uint32_t i = 0; i < iterations; ++i) {
      if (reach_ == Reach::kGlobal) require(state_->setPosition(0));
      if (batch_) {
        append(0, rows_);
      } else {
        for (uint32_t row = 0; row < rows_; ++row) append(row, 1);
      }
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return out_; }

 private:
  void append(uint32_t first, uint32_t count) {
    const auto part = [first, count](std::vector<float>& rows, uint32_t dim) {
      return std::span<float>(rows).subspan(static_cast<size_t>(first) * dim, static_cast<size_t>(count) * dim);
    };
    require(state_->appendAndAttend(0, part(queries_, kQDim), part(keys_, kKDim), part(values_, kVDim),
                                    part(out_, kAttnOutDim)));
    require(state_->advance(count));
  }

  bool batch_;
  Reach reach_;
  uint32_t rows_;
  State state_;
  std::vector<float> queries_, keys_, values_, out_;
};

// One convolution after the other, as the layers of a step have them, then the commit that they share.
class Convolve : public Work {
 public:
  // `call` convolves number i of `count`, rows (1, dim).
  using Call = Status (*)(DecodeState& state, uint32_t i, std::span<const float> taps, std::span<float> row);

  Convolve(uint32_t count, uint32_t taps, uint32_t dim, Call call)
      : call_(call), state_(shippedConfig(), Format::kF32) {
    Random random(kTapsSeed);
    for (uint32_t i = 0; i < count; ++i) taps_.push_back(averagingTaps(taps, dim, random));
    Random rows(kRowsSeed);
    for (uint32_t i = 0; i < count; ++i) rows_.push_back(rows.floats(dim));
  }

  void run(uint32_t iterations) override {
    for (uint32_t n = 0; n < iterations; ++n) {
      for (uint32_t i = 0; i < rows_.size(); ++i) require(call_(*state_.get(), i, taps_[i], rows_[i]));
      require(state_->advance(1));
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return rows_.back(); }

 private:
  Call call_;
  State state_;
  std::vector<std::vector<float>> taps_, rows_;
};

template <Projection kProjection>
Status convolveProjection(DecodeState& state, uint32_t layer, std::span<const float> taps, std::span<float> row) {
  return state.conv(layer, kProjection, taps, row);
}

std::unique_ptr<Work> createConv(std::string_view projection) {
  if (projection == "q")
    return std::make_unique<Convolve>(kLayers, kQkvTaps, kQDim, convolveProjection<Projection::kQ>);
  if (projection == "k")
    return std::make_unique<Convolve>(kLayers, kQkvTaps, kKDim, convolveProjection<Projection::kK>);
  return std::make_unique<Convolve>(kLayers, kQkvTaps, kVDim, convolveProjection<Projection::kV>);
}

std::unique_ptr<Work> createEngramConv() {
  const auto call = [](DecodeState& state, uint32_t site, std::span<const float> taps, std::span<float> row) {
    return state.engramConv(site, taps, row);
  };
  return std::make_unique<Convolve>(kEngramSites, kEngramTaps, kDModel, call);
}

class WriteKv : public Work {
 public:
  explicit WriteKv(Format format) : state_(shippedConfig(), format) {
    Random random(kRowsSeed);
    keys_ = random.floats(kKDim);
    values_ = random.floats(kVDim);
  }

  void run(uint32_t iterations) override {
    for (uint32_t n = 0; n < iterations; ++n) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) require(state_->writeKv(layer, keys_, values_));
      require(state_->advance(1));
    }
  }
  [[nodiscard]] std::span<const float> output() const override {
    const KvRing& ring = state_->ring(kLayers - 1);
    if (state_->precision() == Precision::kF32) return {static_cast<const float*>(ring.field(KvField::kValues)), kVDim};
    return {static_cast<const float*>(ring.field(KvField::kValueScales)), kKvHeads};
  }

 private:
  State state_;
  std::vector<float> keys_, values_;
};

// What bench/lib/step.mjs does through the package. The context is cut to the positions held, so that every layer is a
// full ring and each step costs what the last one did.
class Step : public Work {
 public:
  Step(Format format, uint32_t positions)
      : state_(fullRings(positions), format), out_(kAttnOutDim), indices_(6), valid_(6) {
    Random random(kRowsSeed);
    for (uint32_t layer = 0; layer < state_->config().numLayers; ++layer) {
      Layer& l = layers_.emplace_back();
      l.qTaps = averagingTaps(kQkvTaps, kQDim, random);
      l.kTaps = averagingTaps(kQkvTaps, kKDim, random);
      l.vTaps = averagingTaps(kQkvTaps, kVDim, random);
      l.query = random.floats(kQDim);
      l.keys = random.floats(kKDim);
      l.values = random.floats(kVDim);
      if (std::find(kSites.begin(), kSites.end(), layer) != kSites.end()) {
        l.engramTaps = averagingTaps(kEngramTaps, kDModel, random);
        l.engramRow = random.floats(kDModel);
      }
    }
    state_.fill(positions);
  }

  void run(uint32_t iterations) override {
    for (uint32_t i = 0; i < iterations; ++i) {
      require(state_->pushToken(state_->position() % 8192));
      require(state_->engramIndices(indices_.data(), valid_.data()));
      uint32_t site = 0;
      for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
        Layer& l = layers_[layer];
        if (!l.engramTaps.empty()) require(state_->engramConv(site++, l.engramTaps, l.engramRow));
        require(state_->conv(layer, Projection::kQ, l.qTaps, l.query));
        require(state_->conv(layer, Projection::kK, l.kTaps, l.keys));
        require(state_->conv(layer, Projection::kV, l.vTaps, l.values));
        require(state_->appendAndAttend(layer, l.query, l.keys, l.values, out_));
      }
      require(state_->advance(1));
    }
  }
  [[nodiscard]] std::span<const float> output() const override { return out_; }

 private:
  struct Layer {
    std::vector<float> qTaps, kTaps, vTaps, query, keys, values, engramTaps, engramRow;
  };

  static ModelConfig fullRings(uint32_t positions) {
    ModelConfig config = shippedConfig();
    config.maxSeqLen = positions;
    return config;
  }

  State state_;
  std::vector<Layer> layers_;
  std::vector<float> out_;
  std::vector<uint32_t> indices_;
  std::vector<uint8_t> valid_;
};

}  // namespace

std::unique_ptr<Work> createStateWork(std::span<const std::string_view> words) {
  const std::string_view kind = words[0];
  if (kind == "rows" && words.size() == 5) {
    return std::make_unique<Rows>(words[1] == "batch", parseFormat(words[2]), parseReach(words[3]),
                                  parseCount(words[4]));
  }
  if (kind == "conv" && words.size() == 3) return createConv(words[2]);
  if (kind == "engramConv") return createEngramConv();
  if (kind == "writeKv" && words.size() == 3) return std::make_unique<WriteKv>(parseFormat(words[2]));
  if (kind == "step" && words.size() == 3) return std::make_unique<Step>(parseFormat(words[1]), parseCount(words[2]));
  return nullptr;
}

}  // namespace needle3::bench
