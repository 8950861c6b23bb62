#ifndef NEEDLE3_STATE_DECODE_STATE_H_
#define NEEDLE3_STATE_DECODE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/scratch.h"
#include "base/status.h"
#include "config/model_config.h"
#include "kernels/attend.h"
#include "kernels/kv_run.h"
#include "kernels/quantize.h"
#include "state/conv_tail.h"
#include "state/kv_ring.h"
#include "state/token_window.h"

namespace needle3 {

enum class Projection : uint8_t { kQ, kK, kV };
inline constexpr size_t kProjections = 3;

struct DecodeStateOptions {
  uint32_t capacityHint = 512;  // clamped to 1 … maxSeqLen; sizes each layer's first allocation only
  Precision precision = Precision::kF32;
  bool quantizeQuery = false;  // each query head is quantised like a key row; kInt8 only
};

// The decode state of one sequence: what generating token by token must remember of the tokens before.
//
// A step is everything between two commits, at positions position() … position() + n − 1. Its n is set by its first
// call with rows; rows are (n, dim), row-major. `advance` commits it, `discard` undoes it, both always succeed on a
// well-formed call. Until then convolutions read committed tails only, and a call repeated replaces what it did.
// Every call checks first and changes nothing when it fails. Arrays are the caller's; none is kept.
//
// Errors common to the calls below: kRange for a layer, site or position out of range; kShape for lengths that do not
// fit the geometry or a number of rows other than the step's; kOutOfMemory.
class DecodeState {
 public:
  // Bytes are counted in `memory`, scratch is taken from `workspace`; both must outlive the state, and states of one
  // thread may share them. The geometry is copied.
  // kConfig (validate), kUnsupported (quantizeQuery with kF32, or with heads too wide to sum exactly in 32 bits).
  static Status create(const ModelConfig& config, const DecodeStateOptions& options, Memory& memory, Scratch& workspace,
                       DecodeState** state);
  // Frees it and all that it owns. Null is allowed.
  static void destroy(DecodeState* state);

  DecodeState(const DecodeState&) = delete;
  DecodeState& operator=(const DecodeState&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  // The geometry as encodeConfig writes it.
  [[nodiscard]] std::span<const uint32_t> configWords() const { return {words_.data(), words_.size()}; }
  [[nodiscard]] Precision precision() const { return options_.precision; }
  [[nodiscard]] bool quantizeQuery() const { return options_.quantizeQuery; }
  // Positions committed, at most 2^31 − 1.
  [[nodiscard]] uint32_t position() const { return position_; }
  // Some layer is global and has dropped positions: position() > maxSeqLen.
  [[nodiscard]] bool isSaturated() const { return config_.hasGlobalLayer() && position_ > config_.maxSeqLen; }
  // Keys, values, scales, tails and tokens: DESIGN section 3. No scratch, uncommitted rows or marks.
  [[nodiscard]] uint64_t byteLength() const;
  // What marks hold: their tails and tokens, and the overwritten rows kept for them.
  [[nodiscard]] uint64_t markBytes() const;
  [[nodiscard]] bool inStep() const { return stepRows_ != 0 || tokens_.pending() != 0; }

  // The retained tokens, oldest first, pushed ones included: at most max(orders), or 1.
  [[nodiscard]] uint32_t tokenCount() const { return tokens_.count(); }
  void copyTokens(uint32_t* destination) const { tokens_.copyTo(destination); }

  // `layer` must be in range in these four.
  [[nodiscard]] uint32_t slots(uint32_t layer) const { return layers_[layer].slots(); }
  // First position that a query at `position` reads; the last is `position` itself.
  [[nodiscard]] uint64_t spanFirst(uint32_t layer, uint64_t position) const;
  // The layer's storage, valid until a call that can grow it: slot s of keys is a (numKvHeads, qkHeadDim) row, etc.
  [[nodiscard]] const KvRing& ring(uint32_t layer) const { return layers_[layer]; }
  // The positions [first, end) that the layer holds.
  [[nodiscard]] uint64_t heldFirst(uint32_t layer) const;
  [[nodiscard]] uint64_t heldEnd(uint32_t layer) const { return layers_[layer].end(); }

  // kRange: id ≥ vocabSize.
  Status pushToken(uint32_t id);
  // The slot of the newest token's n-gram in each table, orders × heads of them, and whether the table's order has as
  // many tokens. `indices` and `valid` have engram.tables() elements. kRange: before any token.
  Status engramIndices(uint32_t* indices, uint8_t* valid) const;
  // Causal convolution in place over `rows` (n, dim of the projection); taps (qkvConvTaps, dim).
  Status conv(uint32_t layer, Projection projection, std::span<const float> taps, std::span<float> rows);
  // The same over an Engram's value rows (n, dModel); taps (engram.convTaps, dModel). `site` indexes engram.sites.
  Status engramConv(uint32_t site, std::span<const float> taps, std::span<float> rows);
  // Keys (n, kDim) and values (n, vDim). kNonFinite.
  Status writeKv(uint32_t layer, std::span<const float> keys, std::span<const float> values);
  // One query (qDim) at position(), after its write, in a step of one row; out (attnOutDim).
  // kRange where a position of the span is not held; kNonFinite: a query to be quantised.
  Status attend(uint32_t layer, std::span<const float> query, std::span<float> out);
  // writeKv and attend for n rows: query (n, qDim), out (n, attnOutDim).
  Status appendAndAttend(uint32_t layer, std::span<const float> query, std::span<const float> keys,
                         std::span<const float> values, std::span<float> out);
  // Commits the step. kRange where count is not the step's rows, or not its pushed tokens, or 0.
  Status advance(uint32_t count);
  // Back to the last commit.
  void discard();

  // To continue from a prefill done elsewhere; kRange in the middle of a step. All end every mark.
  Status writeKvAt(uint32_t layer, std::span<const float> keys, std::span<const float> values, uint32_t position);
  // Exactly the tail's rows, oldest first, pre-convolution.
  Status seedConvTail(uint32_t layer, Projection projection, std::span<const float> rows);
  Status seedEngramTail(uint32_t site, std::span<const float> rows);
  // Replaces the token history by the last max(orders) of `ids`.
  Status seedTokens(std::span<const uint32_t> ids);
  // Keeps tails and tokens; layers forget positions from there on.
  Status setPosition(uint32_t position);
  // As created, but for the slots that layers have grown to. Drops an open step.
  void reset();

  // An independent state, equal in all it does next. kRange in the middle of a step.
  Status fork(DecodeState** state) const;
  // A moment to come back to; `id` is never 0 and never reused. kRange in the middle of a step.
  Status mark(uint32_t* id);
  // Back to that moment, dropping an open step and every later mark. kRange: a mark that has ended.
  Status rollback(uint32_t id);
  // Ends a mark, and every later one. kRange in the middle of a step, or a mark that has ended.
  Status release(uint32_t id);

 private:
  friend class SnapshotReader;
  friend class SnapshotWriter;

  // What a mark remembers beside the rows that the rings save for it. Marks are listed from the newest.
  struct Mark {
    explicit Mark(Memory& memory) : tokens(memory), tails(memory), rings(memory) {}
    Mark* older = nullptr;
    uint32_t id = 0;
    uint32_t position = 0;
    Buffer<uint32_t> tokens;
    Buffer<float> tails;
    Buffer<KvRing::Moment> rings;
  };

  DecodeState(const DecodeStateOptions& options, Memory& memory, Scratch& workspace);
  ~DecodeState();
  // `slots` of each layer; empty: as the hint has it.
  static Status build(const ModelConfig& config, const DecodeStateOptions& options, std::span<const uint32_t> slots,
                      Memory& memory, Scratch& workspace, DecodeState** state);
  Status init(const ModelConfig& config, std::span<const uint32_t> slots);

  [[nodiscard]] AttendShape attendShape() const;
  [[nodiscard]] ConvTail& tail(uint32_t layer, Projection projection);
  // Rows of the step, from an array's length; checks them against the step's.
  Status checkRows(const char* name, size_t length, uint64_t dim, uint32_t* rows) const;
  Status checkStepRows(uint32_t rows) const;
  Status checkLayer(uint32_t layer) const;
  Status checkSite(uint32_t site) const;
  Status refuseInStep() const;
  Status checkFinite(const char* name, uint32_t layer, const float* rows, uint32_t count, uint32_t heads, uint32_t dim,
                     uint32_t position) const;
  Status checkKvRows(std::span<const float> keys, std::span<const float> values, uint32_t* rows) const;
  Status checkKvFinite(uint32_t layer, const float* keys, const float* values, uint32_t rows, uint32_t position) const;
  Status convolve(ConvTail& tail, std::span<const float> taps, std::span<float> rows);
  // kRange unless the layer holds all that a query at `position` reads before it.
  Status checkHeld(uint32_t layer, uint32_t position) const;
  // `count` ≤ kQueryRows rows of keys and values at `position`, as they are stored: the caller's own, or quantised into
  // scratch.
  KvRun encodeRows(const float* keys, const float* values, uint32_t position, uint32_t count);
  // Calls visit(rows as stored, index of the first, count) for pieces of at most kQueryRows rows.
  template <typename Visit>
  void forEachPiece(const float* keys, const float* values, uint32_t position, uint32_t rows, Visit visit);
  [[nodiscard]] KvRing::Wanted wantedByMarks(uint32_t layer) const;
  [[nodiscard]] Mark* findMark(uint32_t id) const;
  void destroyNewestMark();
  void endMarks();

  Memory& memory_;
  Scratch& workspace_;
  DecodeStateOptions options_;
  Buffer<uint32_t> words_;  // what the spans of config_ point into
  ModelConfig config_;
  ObjectArray<KvRing> layers_;
  ObjectArray<ConvTail> tails_;  // of each layer's q, k and v, then of each site
  TokenWindow tokens_;
  uint32_t position_ = 0;
  uint32_t stepRows_ = 0;  // 0: no call with rows yet
  uint64_t attendScratch_ = 0;
  Mark* newestMark_ = nullptr;
  uint32_t oldestMarkPosition_ = 0;
  uint32_t lastMarkId_ = 0;
};

}  // namespace needle3

#endif  // NEEDLE3_STATE_DECODE_STATE_H_
