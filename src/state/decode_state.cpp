#include "state/decode_state.h"

#include <algorithm>
#include <new>

#include "config/config_words.h"
#include "state/engram_hash.h"
#include "state/state_size.h"

namespace needle3 {
namespace {

constexpr uint32_t kMaxPosition = INT32_MAX;
// Products of two int8 values that a 32-bit sum takes for certain: 2^31 / (127 · 128).
constexpr uint32_t kMaxQuantizedQueryDim = 132104;

Status indexError(const char* name, uint32_t index, const char* countName, size_t count) {
  Status status(ErrorCode::kRange);
  status << name << " " << index << ": must be below " << countName << ", " << count;
  return status;
}

Status lengthError(const char* name, size_t length, const char* rule, uint64_t expected) {
  Status status(ErrorCode::kShape);
  status << name << " of length " << length << ": " << rule << " " << expected;
  return status;
}

Status checkLength(const char* name, size_t length, uint64_t expected) {
  return length == expected ? Status() : lengthError(name, length, "must be", expected);
}

}  // namespace

// ---- creation ----

DecodeState::DecodeState(const DecodeStateOptions& options, Memory& memory, Scratch& workspace)
    : memory_(memory),
      workspace_(workspace),
      options_(options),
      words_(memory),
      layers_(memory),
      tails_(memory),
      tokens_(memory) {}

DecodeState::~DecodeState() { endMarks(); }

Status DecodeState::create(const ModelConfig& config, const DecodeStateOptions& options, Memory& memory,
                           Scratch& workspace, DecodeState** state) {
  NEEDLE3_RETURN_IF_ERROR(validate(config));
  return build(config, options, {}, memory, workspace, state);
}

Status DecodeState::build(const ModelConfig& config, const DecodeStateOptions& options, std::span<const uint32_t> slots,
                          Memory& memory, Scratch& workspace, DecodeState** state) {
  if (options.quantizeQuery && options.precision != Precision::kInt8) {
    return Status(ErrorCode::kUnsupported)
           << "quantizeQuery needs int8 keys: with f32 there is nothing to multiply as integers";
  }
  if (options.quantizeQuery && config.qkHeadDim > kMaxQuantizedQueryDim) {
    return Status(ErrorCode::kUnsupported) << "quantizeQuery with qkHeadDim " << config.qkHeadDim
                                           << ": 32-bit sums take at most " << kMaxQuantizedQueryDim << " products";
  }
  void* place = memory.allocate(sizeof(DecodeState));
  if (place == nullptr) return outOfMemory(sizeof(DecodeState));
  auto* created = new (place) DecodeState(options, memory, workspace);
  if (Status status = created->init(config, slots); !status.ok()) {
    destroy(created);
    return status;
  }
  *state = created;
  return {};
}

void DecodeState::destroy(DecodeState* state) {
  if (state == nullptr) return;
  Memory& memory = state->memory_;
  state->~DecodeState();
  memory.release(state, sizeof(DecodeState));
}

Status DecodeState::init(const ModelConfig& config, std::span<const uint32_t> slots) {
  const auto outOfStateMemory = [&] {
    uint64_t bytes = 0;
    NEEDLE3_RETURN_IF_ERROR(decodeStateBytes(config, options_.capacityHint, options_.precision, 0, &bytes));
    return Status(ErrorCode::kOutOfMemory) << "no room for a decode state of " << bytes << " bytes";
  };
  if (!words_.allocate(needle3::configWords(config))) return outOfStateMemory();
  encodeConfig(config, words_.data());
  NEEDLE3_RETURN_IF_ERROR(decodeConfig(configWords(), &config_));

  const KvShape shape = {.precision = options_.precision,
                         .numKvHeads = config.numKvHeads,
                         .kDim = static_cast<uint32_t>(config.kDim()),
                         .vDim = static_cast<uint32_t>(config.vDim())};
  attendScratch_ = attendScratchBytes(attendShape());
  const uint64_t encodeScratch = options_.precision == Precision::kInt8 ? kQueryRows * uint64_t{shape.rowBytes()} : 0;
  if (!workspace_.reserve(attendScratch_ + encodeScratch)) return outOfStateMemory();

  if (!layers_.reserve(config.numLayers)) return outOfStateMemory();
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    const uint32_t first = slots.empty() ? initialSlots(config, layer, options_.capacityHint) : slots[layer];
    if (!layers_.emplace(memory_).init(shape, config_.cap(layer), first)) return outOfStateMemory();
  }

  const EngramConfig& engram = config_.engram;
  if (!tails_.reserve(uint64_t{config.numLayers} * kProjections + engram.sites.size())) return outOfStateMemory();
  const uint32_t dims[kProjections] = {static_cast<uint32_t>(config.qDim()), shape.kDim, shape.vDim};
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    for (uint32_t dim : dims) {
      if (!tails_.emplace(memory_).init(dim, config.qkvConvTaps, 1, 1)) return outOfStateMemory();
    }
  }
  const uint32_t wake = std::max(engram.convDilation, engram.maxOrder());
  for (size_t site = 0; site < engram.sites.size(); ++site) {
    if (!tails_.emplace(memory_).init(config.dModel, engram.convTaps, engram.convDilation, wake)) {
      return outOfStateMemory();
    }
  }
  return tokens_.init(engram.maxOrder()) ? Status() : outOfStateMemory();
}

AttendShape DecodeState::attendShape() const {
  return {.numHeads = config_.numHeads,
          .numKvHeads = config_.numKvHeads,
          .qkHeadDim = config_.qkHeadDim,
          .vHeadDim = config_.vHeadDim,
          .precision = options_.precision,
          .quantizeQuery = options_.quantizeQuery};
}

ConvTail& DecodeState::tail(uint32_t layer, Projection projection) {
  return tails_[layer * kProjections + static_cast<size_t>(projection)];
}

// ---- what it holds ----

uint64_t DecodeState::byteLength() const {
  uint64_t slots = 0;
  for (const KvRing& ring : layers_) slots += ring.slots();
  return slots * slotBytes(config_, options_.precision) + tailBytes(config_) +
         uint64_t{tokenCount()} * sizeof(uint32_t);
}

uint64_t DecodeState::markBytes() const {
  uint64_t bytes = 0;
  for (const Mark* mark = newestMark_; mark != nullptr; mark = mark->older) {
    bytes += mark->tails.size() * sizeof(float) + mark->tokens.size() * sizeof(uint32_t);
  }
  for (const KvRing& ring : layers_) bytes += ring.savedBytes();
  return bytes;
}

uint64_t DecodeState::spanFirst(uint32_t layer, uint64_t position) const {
  const uint64_t cap = layers_[layer].cap();
  return position + 1 > cap ? position + 1 - cap : 0;
}

uint64_t DecodeState::heldFirst(uint32_t layer) const {
  return std::min<uint64_t>(std::max<uint64_t>(layers_[layer].first(), spanFirst(layer, position_)),
                            layers_[layer].end());
}

// ---- checks ----

Status DecodeState::checkLayer(uint32_t layer) const {
  return layer < config_.numLayers ? Status() : indexError("layer", layer, "numLayers", config_.numLayers);
}

Status DecodeState::checkSite(uint32_t site) const {
  const size_t sites = config_.engram.sites.size();
  return site < sites ? Status() : indexError("site", site, "the number of engram.sites", sites);
}

Status DecodeState::refuseInStep() const {
  if (!inStep()) return {};
  return Status(ErrorCode::kRange) << "the state is in the middle of a step: advance or discard it first";
}

Status DecodeState::checkStepRows(uint32_t rows) const {
  if (stepRows_ != 0 && rows != stepRows_) {
    return Status(ErrorCode::kShape) << "got " << rows << (rows == 1 ? " row" : " rows") << " in a step of "
                                     << stepRows_;
  }
  if (rows > kMaxPosition - position_) {
    return Status(ErrorCode::kRange) << rows << " rows at position " << position_ << " pass the last position, "
                                     << kMaxPosition - 1;
  }
  return {};
}

Status DecodeState::checkRows(const char* name, size_t length, uint64_t dim, uint32_t* rows) const {
  // A row that is wider than memory has no multiple; and engines divide 32 bits faster than 64.
  const size_t count = dim == length ? 1 : dim > length ? 0 : length / static_cast<size_t>(dim);
  if (count == 0 || count * dim != length) return lengthError(name, length, "must be a positive multiple of", dim);
  *rows = static_cast<uint32_t>(std::min<size_t>(count, UINT32_MAX));
  return {};
}

Status DecodeState::checkFinite(const char* name, uint32_t layer, const float* rows, uint32_t count, uint32_t heads,
                                uint32_t dim, uint32_t position) const {
  const size_t width = size_t{heads} * dim;
  const size_t at = findNonFinite(rows, count * width);
  if (at == count * width) return {};
  return Status(ErrorCode::kNonFinite) << name << ": layer " << layer << ", head " << at % width / dim << ", element "
                                       << at % dim << ", position " << position + static_cast<uint64_t>(at / width)
                                       << " is not finite";
}

Status DecodeState::checkKvRows(std::span<const float> keys, std::span<const float> values, uint32_t* rows) const {
  uint32_t valueRows = 0;
  NEEDLE3_RETURN_IF_ERROR(checkRows("keys", keys.size(), config_.kDim(), rows));
  NEEDLE3_RETURN_IF_ERROR(checkRows("values", values.size(), config_.vDim(), &valueRows));
  if (valueRows == *rows) return {};
  return Status(ErrorCode::kShape) << "rows of the keys: " << *rows << ", of the values: " << valueRows;
}

Status DecodeState::checkKvFinite(uint32_t layer, const float* keys, const float* values, uint32_t rows,
                                  uint32_t position) const {
  const uint32_t heads = config_.numKvHeads;
  NEEDLE3_RETURN_IF_ERROR(checkFinite("keys", layer, keys, rows, heads, config_.qkHeadDim, position));
  return checkFinite("values", layer, values, rows, heads, config_.vHeadDim, position);
}

Status DecodeState::checkHeld(uint32_t layer, uint32_t position) const {
  const auto first = static_cast<uint32_t>(spanFirst(layer, position));
  const KvRing& ring = layers_[layer];
  // Rows of the step itself are written by now, or about to be.
  if (first >= position || (ring.committedFirst() <= first && ring.committedEnd() >= position)) return {};
  Status status(ErrorCode::kRange);
  status << "layer " << layer << ": a query at position " << position << " reads positions " << first << " to "
         << position << ", but the layer holds ";
  const uint32_t heldFirst = std::max(ring.committedFirst(), first);
  const uint32_t heldEnd = std::min(ring.committedEnd(), position);
  if (heldFirst >= heldEnd) return status << "none before it";
  return status << heldFirst << " to " << heldEnd - 1;
}

// ---- a step ----

Status DecodeState::pushToken(uint32_t id) {
  if (id >= config_.vocabSize) return indexError("token", id, "vocabSize", config_.vocabSize);
  tokens_.push(id);
  return {};
}

Status DecodeState::engramIndices(uint32_t* indices, uint8_t* valid) const {
  const std::span<const uint32_t> ids = tokens_.ids();
  if (ids.empty()) return Status(ErrorCode::kRange) << "no token has been pushed yet";
  needle3::engramIndices(config_.engram, ids, indices);
  for (uint32_t order : config_.engram.orders) {
    valid = std::fill_n(valid, config_.engram.heads, static_cast<uint8_t>(ids.size() >= order));
  }
  return {};
}

Status DecodeState::convolve(ConvTail& tail, std::span<const float> taps, std::span<float> rows) {
  uint32_t count = 0;
  NEEDLE3_RETURN_IF_ERROR(checkLength("taps", taps.size(), uint64_t{tail.taps()} * tail.dim()));
  NEEDLE3_RETURN_IF_ERROR(checkRows("rows", rows.size(), tail.dim(), &count));
  NEEDLE3_RETURN_IF_ERROR(checkStepRows(count));
  if (!tail.apply(position_, taps.data(), rows.data(), count)) return outOfMemory(rows.size_bytes());
  stepRows_ = count;
  return {};
}

Status DecodeState::conv(uint32_t layer, Projection projection, std::span<const float> taps, std::span<float> rows) {
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  return convolve(tail(layer, projection), taps, rows);
}

Status DecodeState::engramConv(uint32_t site, std::span<const float> taps, std::span<float> rows) {
  NEEDLE3_RETURN_IF_ERROR(checkSite(site));
  return convolve(tails_[config_.numLayers * kProjections + site], taps, rows);
}

KvRun DecodeState::encodeRows(const float* keys, const float* values, uint32_t position, uint32_t count) {
  if (options_.precision == Precision::kF32) return {position, count, keys, values, nullptr, nullptr};
  const size_t heads = config_.numKvHeads;
  auto* keyScales = reinterpret_cast<float*>(workspace_.data() + attendScratch_);
  float* valueScales = keyScales + kQueryRows * heads;
  auto* narrowKeys = reinterpret_cast<int8_t*>(valueScales + kQueryRows * heads);
  int8_t* narrowValues = narrowKeys + kQueryRows * config_.kDim();
  const auto quantize = [count, heads](const float* rows, size_t dim, int8_t* narrow, float* scales) {
    for (size_t row = 0; row < count * heads; ++row)
      scales[row] = quantizeRow(rows + row * dim, dim, narrow + row * dim);
  };
  quantize(keys, config_.qkHeadDim, narrowKeys, keyScales);
  quantize(values, config_.vHeadDim, narrowValues, valueScales);
  return {position, count, narrowKeys, narrowValues, keyScales, valueScales};
}

template <typename Visit>
void DecodeState::forEachPiece(const float* keys, const float* values, uint32_t position, uint32_t rows, Visit visit) {
  for (uint32_t row = 0; row < rows; row += kQueryRows) {
    const uint32_t count = std::min(kQueryRows, rows - row);
    visit(encodeRows(keys + row * config_.kDim(), values + row * config_.vDim(), position + row, count), row);
  }
}

Status DecodeState::writeKv(uint32_t layer, std::span<const float> keys, std::span<const float> values) {
  uint32_t rows = 0;
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  NEEDLE3_RETURN_IF_ERROR(checkKvRows(keys, values, &rows));
  NEEDLE3_RETURN_IF_ERROR(checkStepRows(rows));
  NEEDLE3_RETURN_IF_ERROR(checkKvFinite(layer, keys.data(), values.data(), rows, position_));
  KvRing& ring = layers_[layer];
  if (!ring.prepare(position_, rows, wantedByMarks(layer)))
    return outOfMemory(rows * uint64_t{ring.shape().rowBytes()});
  forEachPiece(keys.data(), values.data(), position_, rows, [&ring](const KvRun& run, uint32_t) { ring.append(run); });
  stepRows_ = rows;
  return {};
}

Status DecodeState::attend(uint32_t layer, std::span<const float> query, std::span<float> out) {
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  NEEDLE3_RETURN_IF_ERROR(checkLength("query", query.size(), config_.qDim()));
  NEEDLE3_RETURN_IF_ERROR(checkLength("out", out.size(), config_.attnOutDim()));
  NEEDLE3_RETURN_IF_ERROR(checkStepRows(1));
  const KvRing& ring = layers_[layer];
  if (!ring.inStep()) {
    return Status(ErrorCode::kRange) << "layer " << layer << " has no row at position " << position_
                                     << " yet: write its keys and values first";
  }
  NEEDLE3_RETURN_IF_ERROR(checkHeld(layer, position_));
  if (options_.quantizeQuery) {
    NEEDLE3_RETURN_IF_ERROR(
        checkFinite("query", layer, query.data(), 1, config_.numHeads, config_.qkHeadDim, position_));
  }
  KvRun runs[2];
  const size_t count = ring.runs(static_cast<uint32_t>(spanFirst(layer, position_)), position_ + 1, runs);
  needle3::attend(attendShape(), {runs, count}, query.data(), 1, position_, ring.cap(), out.data(), workspace_.data());
  return {};
}

Status DecodeState::appendAndAttend(uint32_t layer, std::span<const float> query, std::span<const float> keys,
                                    std::span<const float> values, std::span<float> out) {
  uint32_t rows = 0;
  uint32_t queryRows = 0;
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  NEEDLE3_RETURN_IF_ERROR(checkRows("query", query.size(), config_.qDim(), &queryRows));
  NEEDLE3_RETURN_IF_ERROR(checkKvRows(keys, values, &rows));
  if (queryRows != rows)
    return Status(ErrorCode::kShape) << "rows of the query: " << queryRows << ", of the keys: " << rows;
  NEEDLE3_RETURN_IF_ERROR(checkLength("out", out.size(), rows * config_.attnOutDim()));
  NEEDLE3_RETURN_IF_ERROR(checkStepRows(rows));
  NEEDLE3_RETURN_IF_ERROR(checkHeld(layer, position_));
  NEEDLE3_RETURN_IF_ERROR(checkKvFinite(layer, keys.data(), values.data(), rows, position_));
  if (options_.quantizeQuery) {
    NEEDLE3_RETURN_IF_ERROR(
        checkFinite("query", layer, query.data(), rows, config_.numHeads, config_.qkHeadDim, position_));
  }
  KvRing& ring = layers_[layer];
  if (!ring.prepare(position_, rows, wantedByMarks(layer)))
    return outOfMemory(rows * uint64_t{ring.shape().rowBytes()});

  const AttendShape shape = attendShape();
  forEachPiece(keys.data(), values.data(), position_, rows, [&](const KvRun& run, uint32_t row) {
    // Rows that a piece overwrites may still be seen by its first queries: then they attend before it is appended.
    const bool appendFirst = run.rows == 1 || ring.fits(run.rows);
    if (appendFirst) ring.append(run);
    KvRun held[2];
    size_t count = ring.runs(static_cast<uint32_t>(spanFirst(layer, run.first)), run.first + run.rows, held);
    KvRun runs[3];
    std::copy_n(held, count, runs);
    if (!appendFirst) runs[count++] = run;
    needle3::attend(shape, {runs, count}, query.data() + row * config_.qDim(), run.rows, run.first, ring.cap(),
                    out.data() + row * config_.attnOutDim(), workspace_.data());
    if (!appendFirst) ring.append(run);
  });
  stepRows_ = rows;
  return {};
}

Status DecodeState::advance(uint32_t count) {
  if (count == 0) return Status(ErrorCode::kRange) << "count 0: must be at least 1";
  if (stepRows_ != 0 && count != stepRows_) {
    return Status(ErrorCode::kRange) << "count " << count << ": the step has " << stepRows_
                                     << (stepRows_ == 1 ? " row" : " rows");
  }
  if (tokens_.pending() != 0 && count != tokens_.pending()) {
    return Status(ErrorCode::kRange) << "count " << count << ": " << tokens_.pending()
                                     << (tokens_.pending() == 1 ? " token was" : " tokens were") << " pushed";
  }
  if (count > kMaxPosition - position_) {
    return Status(ErrorCode::kRange) << "count " << count << ": position " << position_ << " can be at most "
                                     << kMaxPosition;
  }
  for (KvRing& ring : layers_) ring.commit();
  for (ConvTail& tail : tails_) tail.commit();
  tokens_.commit();
  position_ += count;
  stepRows_ = 0;
  return {};
}

void DecodeState::discard() {
  for (KvRing& ring : layers_) ring.undo();
  for (ConvTail& tail : tails_) tail.discard();
  tokens_.discard();
  stepRows_ = 0;
}

// ---- from a prefill done elsewhere ----

Status DecodeState::writeKvAt(uint32_t layer, std::span<const float> keys, std::span<const float> values,
                              uint32_t position) {
  uint32_t rows = 0;
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  NEEDLE3_RETURN_IF_ERROR(checkKvRows(keys, values, &rows));
  if (position > kMaxPosition || rows > kMaxPosition - position) {
    return Status(ErrorCode::kRange) << rows << " rows at position " << position << " pass the last position, "
                                     << kMaxPosition - 1;
  }
  KvRing& ring = layers_[layer];
  if (heldFirst(layer) < ring.end() && position < heldFirst(layer)) {
    return Status(ErrorCode::kRange) << "position " << position << ": layer " << layer << " holds positions from "
                                     << heldFirst(layer) << " on; rows before them are gone";
  }
  NEEDLE3_RETURN_IF_ERROR(checkKvFinite(layer, keys.data(), values.data(), rows, position));
  if (!ring.prepareImport(position, rows)) return outOfMemory(rows * uint64_t{ring.shape().rowBytes()});
  endMarks();
  ring.keepOnly(static_cast<uint32_t>(heldFirst(layer)), UINT32_MAX);
  forEachPiece(keys.data(), values.data(), position, rows, [&ring](const KvRun& run, uint32_t) { ring.append(run); });
  return {};
}

Status DecodeState::seedConvTail(uint32_t layer, Projection projection, std::span<const float> rows) {
  NEEDLE3_RETURN_IF_ERROR(checkLayer(layer));
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  ConvTail& seeded = tail(layer, projection);
  NEEDLE3_RETURN_IF_ERROR(checkLength("rows", rows.size(), seeded.length()));
  endMarks();
  seeded.assign(rows.data());
  return {};
}

Status DecodeState::seedEngramTail(uint32_t site, std::span<const float> rows) {
  NEEDLE3_RETURN_IF_ERROR(checkSite(site));
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  ConvTail& seeded = tails_[config_.numLayers * kProjections + site];
  NEEDLE3_RETURN_IF_ERROR(checkLength("rows", rows.size(), seeded.length()));
  endMarks();
  seeded.assign(rows.data());
  return {};
}

Status DecodeState::seedTokens(std::span<const uint32_t> ids) {
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  for (uint32_t id : ids) {
    if (id >= config_.vocabSize) return indexError("token", id, "vocabSize", config_.vocabSize);
  }
  endMarks();
  tokens_.assign(ids);
  return {};
}

Status DecodeState::setPosition(uint32_t position) {
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  if (position > kMaxPosition) {
    return Status(ErrorCode::kRange) << "position " << position << ": must be at most " << kMaxPosition;
  }
  endMarks();
  for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
    layers_[layer].keepOnly(static_cast<uint32_t>(heldFirst(layer)), position);
  }
  position_ = position;
  return {};
}

void DecodeState::reset() {
  discard();
  endMarks();
  for (KvRing& ring : layers_) ring.keepOnly(0, 0);
  for (ConvTail& tail : tails_) tail.clear();
  tokens_.assign({});
  position_ = 0;
}

// ---- forks and marks ----

Status DecodeState::fork(DecodeState** state) const {
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  Buffer<uint32_t> slots(memory_);
  if (!slots.allocate(config_.numLayers)) return outOfMemory(config_.numLayers * sizeof(uint32_t));
  for (uint32_t layer = 0; layer < config_.numLayers; ++layer) slots[layer] = layers_[layer].slots();
  DecodeState* forked = nullptr;
  const Status built = build(config_, options_, {slots.data(), slots.size()}, memory_, workspace_, &forked);
  if (forked == nullptr) return built;
  for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
    forked->layers_[layer].copyRows(layers_[layer], static_cast<uint32_t>(heldFirst(layer)));
  }
  for (size_t i = 0; i < tails_.size(); ++i) forked->tails_[i].copyFrom(tails_[i]);
  forked->tokens_.assign(tokens_.ids());
  forked->position_ = position_;
  *state = forked;
  return {};
}

Status DecodeState::mark(uint32_t* id) {
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  size_t tailFloats = 0;
  for (const ConvTail& tail : tails_) tailFloats += tail.length();
  void* place = memory_.allocate(sizeof(Mark));
  if (place == nullptr) return outOfMemory(sizeof(Mark));
  auto* mark = new (place) Mark(memory_);
  if (!mark->tokens.allocate(tokenCount()) || !mark->tails.allocate(tailFloats) ||
      !mark->rings.allocate(config_.numLayers)) {
    mark->~Mark();
    memory_.release(mark, sizeof(Mark));
    return outOfMemory(tailFloats * sizeof(float));
  }
  copyTokens(mark->tokens.data());
  float* rows = mark->tails.data();
  for (const ConvTail& tail : tails_) {
    tail.copyTo(rows);
    rows += tail.length();
  }
  for (uint32_t layer = 0; layer < config_.numLayers; ++layer) mark->rings[layer] = layers_[layer].moment();
  mark->position = position_;
  mark->id = ++lastMarkId_;
  mark->older = newestMark_;
  if (newestMark_ == nullptr) oldestMarkPosition_ = position_;
  newestMark_ = mark;
  *id = mark->id;
  return {};
}

KvRing::Wanted DecodeState::wantedByMarks(uint32_t layer) const {
  if (newestMark_ == nullptr) return {};
  return {static_cast<uint32_t>(spanFirst(layer, oldestMarkPosition_)), newestMark_->rings[layer].end};
}

DecodeState::Mark* DecodeState::findMark(uint32_t id) const {
  Mark* mark = newestMark_;
  while (mark != nullptr && mark->id != id) mark = mark->older;
  return mark;
}

void DecodeState::destroyNewestMark() {
  Mark* mark = newestMark_;
  newestMark_ = mark->older;
  mark->~Mark();
  memory_.release(mark, sizeof(Mark));
}

void DecodeState::endMarks() {
  if (newestMark_ == nullptr) return;
  while (newestMark_ != nullptr) destroyNewestMark();
  for (KvRing& ring : layers_) ring.dropLog();
}

Status DecodeState::rollback(uint32_t id) {
  const Mark* mark = findMark(id);
  if (mark == nullptr) return Status(ErrorCode::kRange) << "the mark has ended";
  discard();
  while (newestMark_ != mark) destroyNewestMark();
  for (uint32_t layer = 0; layer < config_.numLayers; ++layer) layers_[layer].rollback(mark->rings[layer]);
  const float* rows = mark->tails.data();
  for (ConvTail& tail : tails_) {
    tail.assign(rows);
    rows += tail.length();
  }
  tokens_.assign({mark->tokens.data(), mark->tokens.size()});
  position_ = mark->position;
  return {};
}

Status DecodeState::release(uint32_t id) {
  NEEDLE3_RETURN_IF_ERROR(refuseInStep());
  const Mark* const mark = findMark(id);
  if (mark == nullptr) return Status(ErrorCode::kRange) << "the mark has ended";
  const Mark* const older = mark->older;
  // Rows saved since this mark are from now on kept for the one before it, if it had them.
  for (uint32_t layer = 0; older != nullptr && layer < config_.numLayers; ++layer) {
    layers_[layer].compactLog(mark->rings[layer].logRows, older->rings[layer].end);
  }
  while (newestMark_ != older) destroyNewestMark();
  if (older == nullptr) {
    for (KvRing& ring : layers_) ring.dropLog();
  }
  return {};
}

}  // namespace needle3
