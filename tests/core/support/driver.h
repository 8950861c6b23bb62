#ifndef NEEDLE3_TESTS_DRIVER_H_
#define NEEDLE3_TESTS_DRIVER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/quantize.h"
#include "support/inputs.h"
#include "support/random.h"
#include "support/state.h"

namespace needle3::testing {

// What a sequence of steps put out, by position: convolutions, attention and indices, in the order of the calls.
using Outputs = std::vector<std::vector<float>>;

// Feeds a state with inputs that depend on the position alone, so that one sequence can be decoded in any steps, and
// by states that were forked, rolled back or restored in between.
class Driver {
 public:
  explicit Driver(const Geometry& geometry, uint32_t seed = 1) : geometry_(geometry), seed_(seed) {}

  [[nodiscard]] const Geometry& geometry() const { return geometry_; }

  // One whole step of `rows` positions, committed.
  void step(DecodeState& state, uint32_t rows, Outputs* outputs) const {
    calls(state, rows, 0, callCount(), 0, outputs);
    succeed(state.advance(rows));
  }
  // Steps of `batch` rows, the last one of fewer, until `position`.
  void decode(DecodeState& state, uint32_t position, uint32_t batch, Outputs* outputs) const {
    while (state.position() < position && !::testing::Test::HasFatalFailure()) {
      step(state, std::min(batch, position - state.position()), outputs);
    }
  }
  [[nodiscard]] Outputs decoded(DecodeState& state, uint32_t position, uint32_t batch) const {
    Outputs outputs;
    decode(state, position, batch, &outputs);
    return outputs;
  }

  // Calls of one step: tokens with their indices, each site's convolution, then of each layer q, k, v and the
  // attention.
  [[nodiscard]] size_t callCount() const { return 1 + geometry_.sites.size() + geometry_.fields.numLayers * size_t{4}; }
  // Makes the calls [first, last) of a step of `rows` positions. With another salt it has other inputs.
  void calls(DecodeState& state, uint32_t rows, size_t first, size_t last, uint32_t salt, Outputs* outputs) const {
    for (size_t index = first; index < last; ++index) succeed(tryCall(state, rows, index, salt, outputs));
  }

  // The call `index` alone. A call that fails puts nothing out.
  [[nodiscard]] Status tryCall(DecodeState& state, uint32_t rows, size_t index, uint32_t salt, Outputs* outputs) const {
    const ModelConfig config = geometry_.config();
    const uint32_t position = state.position();
    if (index == 0) {
      std::vector<uint32_t> indices(config.engram.tables() + 1);
      std::vector<uint8_t> valid(indices.size());
      for (uint32_t i = 0; i < rows; ++i) {
        Random random(seed_ ^ (position + i + 1) * 0x27D4EB2FU ^ salt);
        NEEDLE3_RETURN_IF_ERROR(state.pushToken(random.below(config.vocabSize)));
        NEEDLE3_RETURN_IF_ERROR(state.engramIndices(indices.data(), valid.data()));
        std::vector<float> numbers;
        for (size_t t = 0; t < config.engram.tables(); ++t) {
          numbers.push_back(static_cast<float>(indices[t] * 2 + valid[t]));
        }
        append(outputs, position + i, numbers, 1);
      }
      return {};
    }
    index -= 1;
    if (index < geometry_.sites.size()) {
      const auto site = static_cast<uint32_t>(index);
      std::vector<float> x = inputs(1000 + site, position, rows, config.dModel, salt);
      NEEDLE3_RETURN_IF_ERROR(state.engramConv(site, taps(1000 + site, config.engram.convTaps, config.dModel), x));
      append(outputs, position, x, rows);
      return {};
    }
    index -= geometry_.sites.size();
    const auto layer = static_cast<uint32_t>(index / 4);
    const uint64_t dims[] = {config.qDim(), config.kDim(), config.vDim()};
    if (index % 4 < 3) {
      const auto which = static_cast<uint32_t>(index % 4);
      std::vector<float> x = inputs(layer * 3 + which, position, rows, dims[which], salt);
      NEEDLE3_RETURN_IF_ERROR(state.conv(layer, static_cast<Projection>(which),
                                         taps(layer * 3 + which, config.qkvConvTaps, dims[which]), x));
      append(outputs, position, x, rows);
      return {};
    }
    // The attention's inputs stand for what a model makes of the convolved rows: they are streams of their own.
    const std::vector<float> query = inputs(2000 + layer * 3, position, rows, dims[0], salt);
    const std::vector<float> keys = inputs(2001 + layer * 3, position, rows, dims[1], salt);
    const std::vector<float> values = inputs(2002 + layer * 3, position, rows, dims[2], salt);
    std::vector<float> out(rows * static_cast<size_t>(config.attnOutDim()));
    if (rows == 1 && (position + layer) % 2 == 0) {
      NEEDLE3_RETURN_IF_ERROR(state.writeKv(layer, keys, values));
      NEEDLE3_RETURN_IF_ERROR(state.attend(layer, query, out));
    } else {
      NEEDLE3_RETURN_IF_ERROR(state.appendAndAttend(layer, query, keys, values, out));
    }
    append(outputs, position, out, rows);
    return {};
  }

  // Inputs of a stream at `rows` positions from `position`: (rows, dim).
  [[nodiscard]] std::vector<float> inputs(uint32_t stream, uint32_t position, uint32_t rows, uint64_t dim,
                                          uint32_t salt) const {
    return positionInputs(stream, position, rows, dim, salt * 7919 + seed_);
  }
  [[nodiscard]] std::vector<float> taps(uint32_t stream, uint32_t count, uint64_t dim) const {
    return Random(seed_ + stream + 77).floats(static_cast<size_t>(count * dim));
  }

 private:
  static void succeed(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

  static void append(Outputs* outputs, uint32_t position, const std::vector<float>& rows, uint32_t count) {
    if (outputs == nullptr) return;
    const auto dim = static_cast<ptrdiff_t>(rows.size() / count);
    if (outputs->size() < position + count) outputs->resize(position + count);
    for (uint32_t i = 0; i < count; ++i) {
      std::vector<float>& out = (*outputs)[position + i];
      out.insert(out.end(), rows.begin() + i * dim, rows.begin() + (i + 1) * dim);
    }
  }

  Geometry geometry_;
  uint32_t seed_;
};

// "" where all positions from `from` on are equal in every bit, else where they first differ.
inline std::string difference(const Outputs& a, const Outputs& b, size_t from = 0) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " positions and " + std::to_string(b.size());
  for (size_t p = from; p < a.size(); ++p) {
    if (!sameBits(a[p], b[p])) {
      return "position " + std::to_string(p) + ", element " + std::to_string(firstDifference(a[p], b[p])) + " of " +
             std::to_string(a[p].size());
    }
  }
  return "";
}

// f32, int8, and int8 with quantised queries.
inline std::vector<DecodeStateOptions> everyPrecision(uint32_t capacityHint) {
  return {{capacityHint, Precision::kF32, false},
          {capacityHint, Precision::kInt8, false},
          {capacityHint, Precision::kInt8, true}};
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_DRIVER_H_
