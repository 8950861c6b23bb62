#ifndef NEEDLE3_TESTS_REFERENCE_STATE_H_
#define NEEDLE3_TESTS_REFERENCE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "state/decode_state.h"
#include "support/geometry.h"

namespace needle3::testing {

// A set of error codes, as bits; none: the call succeeds. Where several rules are broken at once, DESIGN does not say
// which one is reported, so that any of the set is right.
using Codes = uint32_t;
constexpr Codes codeBit(ErrorCode code) { return code == ErrorCode::kOk ? 0 : Codes{1} << static_cast<unsigned>(code); }
// Whether `status` is what `codes` allows.
inline bool agrees(const Status& status, Codes codes) {
  return status.ok() ? codes == 0 : (codeBit(status.code()) & codes) != 0;
}

// One row as int8 or as given, by the formula of DESIGN section 4.
struct QuantizedRow {
  std::vector<int8_t> values;
  float scale = 1;
};
QuantizedRow quantizePlainly(std::span<const float> x);

// Keys and values of one position.
struct ReferenceRow {
  std::vector<float> keys, values;                           // as written
  std::vector<QuantizedRow> quantizedKeys, quantizedValues;  // one per kv head; empty in f32
  // What a query sees, exactly.
  std::vector<double> seenKeys, seenValues;
};

// Attention in double, and how far a float result may be from it.
struct ReferenceAttention {
  std::vector<double> out;
  std::vector<double> bound;
};

// Attention of one query head over rows of one kv head (count, dim), in double.
//
// `queryWidth` products make a score. The bound is DESIGN section 4's, with every rounding counted at its worst: a
// score is off by (queryWidth + 6)·u·Σ|q·k|/√d at most, whatever the order of summation; a weight by that, by the
// rounding of its exponent, and by 2 ulp of the exponential; the two sums by `depth` roundings each.
//
// summationDepth: roundings on the way of one weight into a sum that is taken in blocks of kBlockPositions with a
// running maximum: one addition a position within its block; then, a block, one addition, and where the maximum moves
// one multiplication by an exponential of its own (4 half ulps, and half an ulp of its argument's rounding).
size_t summationDepth(size_t count);
void attendPlainly(std::span<const double> query, std::span<const double> keys, std::span<const double> values,
                   size_t count, size_t depth, double* out, double* bound);

// The decode state said as plainly as possible: no ring, no vectors, nothing ever overwritten. It keeps every row of
// every tail and layer that it was ever given, and a whole copy for every mark.
//
// Each call returns what the core's must return, and does nothing where that is an error.
class ReferenceState {
 public:
  ReferenceState(const Geometry& geometry, const DecodeStateOptions& options);

  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  [[nodiscard]] const DecodeStateOptions& options() const { return options_; }
  [[nodiscard]] uint32_t position() const { return committed_.position; }
  [[nodiscard]] bool inStep() const { return step_.rows != 0 || !step_.tokens.empty(); }
  [[nodiscard]] size_t stepRows() const { return step_.rows; }
  [[nodiscard]] size_t pendingTokens() const { return step_.tokens.size(); }
  [[nodiscard]] uint32_t slots(uint32_t layer) const {
    return step_.slots[layer] != 0 ? step_.slots[layer] : slots_[layer];
  }
  [[nodiscard]] bool isSaturated() const;
  [[nodiscard]] uint64_t byteLength() const;
  [[nodiscard]] std::vector<uint32_t> tokenHistory() const;
  [[nodiscard]] uint64_t spanFirst(uint32_t layer, uint64_t position) const;
  // What a layer has committed, by position: one contiguous range.
  [[nodiscard]] const std::map<uint64_t, std::shared_ptr<const ReferenceRow>>& held(uint32_t layer) const {
    return committed_.layers[layer];
  }

  Codes pushToken(uint32_t id);
  Codes engramIndices(std::vector<uint32_t>* indices, std::vector<uint8_t>* valid) const;
  Codes conv(uint32_t layer, Projection projection, std::span<const float> taps, std::vector<float>* rows);
  Codes engramConv(uint32_t site, std::span<const float> taps, std::vector<float>* rows);
  Codes writeKv(uint32_t layer, std::span<const float> keys, std::span<const float> values);
  Codes attend(uint32_t layer, std::span<const float> query, size_t outLength, ReferenceAttention* attention) const;
  Codes appendAndAttend(uint32_t layer, std::span<const float> query, std::span<const float> keys,
                        std::span<const float> values, size_t outLength, ReferenceAttention* attention);
  Codes advance(uint32_t count);
  void discard() { step_ = Step(geometry_); }

  Codes writeKvAt(uint32_t layer, std::span<const float> keys, std::span<const float> values, uint32_t position);
  Codes seedConvTail(uint32_t layer, Projection projection, std::span<const float> rows);
  Codes seedEngramTail(uint32_t site, std::span<const float> rows);
  Codes seedTokens(std::span<const uint32_t> ids);
  Codes setPosition(uint32_t position);
  void reset();

  // `fork` succeeds wherever this is 0; so do `save` and `mark`.
  [[nodiscard]] Codes betweenSteps() const { return inStep() ? codeBit(ErrorCode::kRange) : 0; }
  // The state that a fork, or a restored snapshot, is: without marks.
  [[nodiscard]] ReferenceState forked() const;
  // A mark's number; call between steps.
  uint32_t mark();
  Codes rollback(uint32_t mark);
  Codes release(uint32_t mark);
  [[nodiscard]] size_t liveMarks() const { return marks_.size(); }

 private:
  using Layer = std::map<uint64_t, std::shared_ptr<const ReferenceRow>>;
  using History = std::vector<std::vector<float>>;  // rows, oldest first

  struct Committed {
    uint32_t position = 0;
    std::vector<uint32_t> tokens;
    std::vector<History> qkv;  // layer · 3 + projection
    std::vector<History> engram;
    std::vector<Layer> layers;
  };
  struct Step {
    explicit Step(const Geometry& geometry);
    size_t rows = 0;
    std::vector<uint32_t> tokens;
    std::vector<History> qkv;
    std::vector<History> engram;
    std::vector<std::optional<Layer>> layers;
    std::vector<uint32_t> slots;  // of layers written in the step; else 0
  };

  [[nodiscard]] Codes checkLayer(uint32_t layer) const;
  // The codes of a call with this many floats in rows of `dim`; `count` is how many rows they are.
  [[nodiscard]] Codes checkRows(size_t length, uint64_t dim, size_t* count) const;
  [[nodiscard]] Codes checkKv(std::span<const float> keys, std::span<const float> values, size_t* count) const;
  [[nodiscard]] Codes checkQuery(std::span<const float> query) const;
  [[nodiscard]] Layer writtenLayer(uint32_t layer, std::span<const float> keys, std::span<const float> values,
                                   uint64_t position, size_t count) const;
  [[nodiscard]] std::shared_ptr<const ReferenceRow> makeRow(std::span<const float> keys,
                                                            std::span<const float> values) const;
  [[nodiscard]] bool spanHeld(const Layer& rows, uint32_t layer, uint64_t position) const;
  void attendAt(const Layer& rows, uint32_t layer, uint64_t position, std::span<const float> query,
                ReferenceAttention* attention) const;
  // Replaces a tail's history, and ends the marks.
  void seed(History* history, std::span<const float> rows, uint64_t dim);
  void convolve(const History& history, uint32_t taps, uint64_t dilation, uint64_t wake, std::span<const float> weights,
                uint64_t dim, std::vector<float>* rows, History* raw) const;
  [[nodiscard]] uint32_t grown(uint32_t layer, uint64_t position, size_t count) const;
  void forgetUnseen();
  [[nodiscard]] uint64_t projectionDim(Projection projection) const;

  Geometry geometry_;
  DecodeStateOptions options_;
  std::vector<uint32_t> slots_;  // committed; a rollback keeps them
  Committed committed_;
  Step step_;
  std::map<uint32_t, Committed> marks_;
  uint32_t nextMark_ = 1;
};

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_REFERENCE_STATE_H_
