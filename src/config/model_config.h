#ifndef NEEDLE3_CONFIG_MODEL_CONFIG_H_
#define NEEDLE3_CONFIG_MODEL_CONFIG_H_

#include <cstdint>
#include <span>

#include "base/status.h"

namespace needle3 {

// N-gram hash tables (orders × heads of them) and the causal convolution of the value stream that they feed.
struct EngramConfig {
  std::span<const uint32_t> orders;  // n-gram lengths
  uint32_t heads = 1;                // hashes per order
  uint32_t slots = 1;                // rows of a table
  uint32_t subDim = 1;               // width of a table's row; carried for the forward pass
  std::span<const uint32_t> sites;   // layers that carry an Engram, ascending
  uint32_t convTaps = 0;             // 0: the identity
  uint32_t convDilation = 1;         // positions between taps
  uint32_t seedHeads = 0;            // hash seed stride; 0: heads

  [[nodiscard]] uint64_t tables() const { return static_cast<uint64_t>(orders.size()) * heads; }
  // The longest n-gram, at least 1: how many tokens the history keeps, and the distance at which Engram taps wake.
  [[nodiscard]] uint32_t maxOrder() const;
  // Rows that the convolution reaches back to.
  [[nodiscard]] uint64_t tailRows() const;
};

// The geometry that a Needle 3 container declares. The spans are not owned.
struct ModelConfig {
  uint32_t vocabSize = 1;  // embedding rows
  uint32_t outVocab = 0;   // rows used for logits; 0: all
  uint32_t dModel = 1;     // residual width
  uint32_t numHeads = 1;   // query heads; query head h reads kv head h / (numHeads / numKvHeads)
  uint32_t numKvHeads = 1;
  uint32_t numLayers = 1;
  uint32_t qkHeadDim = 1;                  // width of a query or key head
  uint32_t vHeadDim = 1;                   // width of a value head
  uint32_t maxSeqLen = 1;                  // context, positions
  uint32_t hadaN = 1;                      // carried for the forward pass
  uint32_t mhcLanes = 1;                   // carried for the forward pass
  uint32_t slidingWindow = 0;              // positions a local layer sees, itself included; 0: every layer is global
  uint32_t qkvConvTaps = 0;                // causal depthwise convolution over Q, K and V; 0: none
  double ropeTheta = 10000;                // carried for the forward pass
  std::span<const uint32_t> globalLayers;  // layers that see everything, ascending
  EngramConfig engram;

  // Widths in floats. A valid config's widths and their sums fit 32 bits.
  [[nodiscard]] uint64_t qDim() const { return static_cast<uint64_t>(numHeads) * qkHeadDim; }
  [[nodiscard]] uint64_t kDim() const { return static_cast<uint64_t>(numKvHeads) * qkHeadDim; }
  [[nodiscard]] uint64_t vDim() const { return static_cast<uint64_t>(numKvHeads) * vHeadDim; }
  [[nodiscard]] uint64_t attnOutDim() const { return static_cast<uint64_t>(numHeads) * vHeadDim; }

  // True where every position sees all before it: a global layer, or any layer without a window.
  [[nodiscard]] bool isGlobal(uint32_t layer) const;
  [[nodiscard]] bool hasGlobalLayer() const { return slidingWindow == 0 || !globalLayers.empty(); }
  // The most slots that a layer's ring grows to: min(slidingWindow, maxSeqLen), or maxSeqLen for a global layer.
  [[nodiscard]] uint32_t cap(uint32_t layer) const;
};

// Bytes of all convolution tails: the raw Q, K and V rows and the Engram value rows.
uint64_t tailBytes(const ModelConfig& config);

// Checks a whole geometry. kConfig, naming the field, its value and the rule.
Status validate(const ModelConfig& config);
// The part of it that n-gram hashing reads: orders, heads and slots.
Status validateHash(const EngramConfig& engram);

}  // namespace needle3

#endif  // NEEDLE3_CONFIG_MODEL_CONFIG_H_
