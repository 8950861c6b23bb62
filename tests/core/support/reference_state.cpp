#include "support/reference_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attend_kernels.h"
#include "kernels/quantize.h"

namespace needle3::testing {
namespace {

constexpr uint64_t kMaxPosition = INT32_MAX;
constexpr Codes kRangeCode = codeBit(ErrorCode::kRange);
constexpr Codes kShapeCode = codeBit(ErrorCode::kShape);
constexpr Codes kNonFiniteCode = codeBit(ErrorCode::kNonFinite);

bool allFinite(std::span<const float> x) {
  return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
}

std::span<const float> part(std::span<const float> x, size_t index, uint64_t length) {
  return x.subspan(index * static_cast<size_t>(length), static_cast<size_t>(length));
}

}  // namespace

QuantizedRow quantizePlainly(std::span<const float> x) {
  float absmax = 0;
  for (float value : x) absmax = std::max(absmax, std::fabs(value));
  QuantizedRow row{std::vector<int8_t>(x.size(), 0), 1};
  const float scale = absmax / 127;
  const float inverse = 1 / scale;
  if (absmax == 0 || !std::isfinite(inverse)) return row;
  row.scale = scale;
  for (size_t i = 0; i < x.size(); ++i) {
    const float scaled = x[i] * inverse;
    row.values[i] = static_cast<int8_t>(std::clamp(std::round(scaled), -128.0F, 127.0F));  // ties away from zero
  }
  return row;
}

void attendPlainly(std::span<const double> query, std::span<const double> keys, std::span<const double> values,
                   size_t count, size_t depth, double* out, double* bound) {
  constexpr double kUnit = 0x1p-24;  // half an ulp of 1
  const size_t queryWidth = query.size();
  const size_t valueWidth = values.size() / count;
  const double root = std::sqrt(static_cast<double>(queryWidth));
  std::vector<double> scores(count);
  std::vector<double> magnitudes(count);
  for (size_t p = 0; p < count; ++p) {
    for (size_t c = 0; c < queryWidth; ++c) {
      const double product = query[c] * keys[p * queryWidth + c] / root;
      scores[p] += product;
      magnitudes[p] += std::fabs(product);
    }
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> weights(count);
  std::vector<double> errors(count);  // relative, of each weight
  double sum = 0;
  double largestError = 0;
  for (size_t p = 0; p < count; ++p) {
    weights[p] = std::exp(scores[p] - largest);
    sum += weights[p];
    const double scoreError = static_cast<double>(queryWidth + 6) * kUnit * magnitudes[p];
    const double exponent = largest - scores[p];
    errors[p] = std::expm1(scoreError + kUnit * (exponent + 2 * scoreError)) + 4 * kUnit;
    // Past −87 a weight may vanish; what it was is counted below as an absolute error.
    if (exponent < 80) largestError = std::max(largestError, errors[p]);
  }
  for (size_t c = 0; c < valueWidth; ++c) {
    double mean = 0;
    double magnitude = 0;
    double widest = 0;
    for (size_t p = 0; p < count; ++p) {
      const double value = values[p * valueWidth + c];
      mean += weights[p] / sum * value;
      magnitude += weights[p] / sum * std::fabs(value);
      widest = std::max(widest, std::fabs(value));
    }
    double spread = 0;
    for (size_t p = 0; p < count; ++p) {
      spread += weights[p] / sum * errors[p] * std::fabs(values[p * valueWidth + c] - mean);
    }
    out[c] = mean;
    bound[c] = spread * (1 + largestError) + static_cast<double>(depth + 4) * kUnit * (magnitude + std::fabs(mean)) +
               static_cast<double>(count) * widest * 0x1p-115 +
               static_cast<double>(128 * count + depth + 4) * std::numeric_limits<float>::denorm_min();
  }
}

size_t summationDepth(size_t count) {
  // A span of so many positions touches at most this many aligned blocks.
  const size_t blocks = (count + kBlockPositions - 2) / kBlockPositions + 1;
  return std::min<size_t>(count, kBlockPositions) + 7 * blocks;
}

ReferenceState::Step::Step(const Geometry& geometry)
    : qkv(geometry.fields.numLayers * kProjections),
      engram(geometry.sites.size()),
      layers(geometry.fields.numLayers),
      slots(geometry.fields.numLayers) {}

ReferenceState::ReferenceState(const Geometry& geometry, const DecodeStateOptions& options)
    : geometry_(geometry), options_(options), step_(geometry) {
  const ModelConfig config = geometry_.config();
  const uint32_t hint = std::clamp(options.capacityHint, 1U, config.maxSeqLen);
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) slots_.push_back(std::min(hint, config.cap(layer)));
  reset();
}

void ReferenceState::reset() {
  discard();
  marks_.clear();
  committed_ = Committed{};
  committed_.qkv.resize(geometry_.fields.numLayers * kProjections);
  committed_.engram.resize(geometry_.sites.size());
  committed_.layers.resize(geometry_.fields.numLayers);
}

bool ReferenceState::isSaturated() const {
  const bool anyGlobal = geometry_.fields.slidingWindow == 0 || !geometry_.globalLayers.empty();
  return anyGlobal && position() > geometry_.fields.maxSeqLen;
}

uint64_t ReferenceState::byteLength() const {
  const ModelConfig config = geometry_.config();
  const uint64_t width = config.kDim() + config.vDim();
  const uint64_t taps = config.qkvConvTaps;
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    const uint64_t slots = this->slots(layer);
    bytes += options_.precision == Precision::kF32 ? slots * width * 4 : slots * width + slots * config.numKvHeads * 8;
  }
  if (taps > 0) bytes += config.numLayers * (taps - 1) * (config.qDim() + width) * 4;
  if (config.engram.convTaps > 0) {
    bytes += geometry_.sites.size() * (config.engram.convTaps - 1) * config.engram.convDilation * config.dModel * 4;
  }
  return bytes + tokenHistory().size() * 4;
}

std::vector<uint32_t> ReferenceState::tokenHistory() const {
  std::vector<uint32_t> tokens = committed_.tokens;
  tokens.insert(tokens.end(), step_.tokens.begin(), step_.tokens.end());
  size_t longest = 1;
  for (uint32_t order : geometry_.orders) longest = std::max<size_t>(longest, order);
  if (tokens.size() > longest) tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(longest));
  return tokens;
}

uint64_t ReferenceState::spanFirst(uint32_t layer, uint64_t position) const {
  const uint64_t cap = geometry_.config().cap(layer);
  return position + 1 > cap ? position + 1 - cap : 0;
}

uint64_t ReferenceState::projectionDim(Projection projection) const {
  const ModelConfig config = geometry_.config();
  return projection == Projection::kQ ? config.qDim() : projection == Projection::kK ? config.kDim() : config.vDim();
}

Codes ReferenceState::checkLayer(uint32_t layer) const { return layer < geometry_.fields.numLayers ? 0 : kRangeCode; }

Codes ReferenceState::checkRows(size_t length, uint64_t dim, size_t* count) const {
  *count = length / static_cast<size_t>(dim);
  if (length == 0 || length % dim != 0) return kShapeCode;
  Codes codes = 0;
  if (step_.rows != 0 && *count != step_.rows) codes |= kShapeCode;
  if (position() + *count > kMaxPosition) codes |= kRangeCode;
  return codes;
}

Codes ReferenceState::checkKv(std::span<const float> keys, std::span<const float> values, size_t* count) const {
  const ModelConfig config = geometry_.config();
  Codes codes = 0;
  *count = keys.size() / static_cast<size_t>(config.kDim());
  if (keys.empty() || keys.size() % config.kDim() != 0 || values.size() != *count * config.vDim()) codes |= kShapeCode;
  if (!allFinite(keys) || !allFinite(values)) codes |= kNonFiniteCode;
  return codes;
}

Codes ReferenceState::checkQuery(std::span<const float> query) const {
  return options_.quantizeQuery && !allFinite(query) ? kNonFiniteCode : 0;
}

Codes ReferenceState::pushToken(uint32_t id) {
  if (id >= geometry_.fields.vocabSize) return kRangeCode;
  step_.tokens.push_back(id);
  return 0;
}

Codes ReferenceState::engramIndices(std::vector<uint32_t>* indices, std::vector<uint8_t>* valid) const {
  const std::vector<uint32_t> tokens = tokenHistory();
  if (tokens.empty()) return kRangeCode;
  const EngramConfig& engram = geometry_.fields.engram;
  const uint32_t stride = engram.seedHeads == 0 ? engram.heads : engram.seedHeads;
  indices->clear();
  valid->clear();
  for (uint32_t orderIndex = 0; orderIndex < geometry_.orders.size(); ++orderIndex) {
    const uint32_t order = geometry_.orders[orderIndex];
    for (uint32_t head = 0; head < engram.heads; ++head) {
      uint32_t accumulator = 0x9E3779B9U * (orderIndex * stride + head + 1);
      for (size_t j = 0; j < order; ++j) {
        const uint32_t token = j < tokens.size() ? tokens[tokens.size() - 1 - j] : 0;
        accumulator = (accumulator ^ token) * 0x01000193U;
      }
      accumulator ^= accumulator >> 15;
      indices->push_back(accumulator % engram.slots);
      valid->push_back(tokens.size() >= order ? 1 : 0);
    }
  }
  return 0;
}

void ReferenceState::convolve(const History& history, uint32_t taps, uint64_t dilation, uint64_t wake,
                              std::span<const float> weights, uint64_t dim, std::vector<float>* rows,
                              History* raw) const {
  const size_t count = rows->size() / static_cast<size_t>(dim);
  History all = history;
  for (size_t i = 0; i < count; ++i) {
    const std::span<const float> row = part(*rows, i, dim);
    all.emplace_back(row.begin(), row.end());
  }
  *raw = History(all.end() - static_cast<ptrdiff_t>(count), all.end());
  if (taps == 0) return;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t p = position() + i;
    for (size_t c = 0; c < dim; ++c) {
      float accumulator = weights[c] * all[history.size() + i][c];
      for (uint64_t j = 1; j < taps; ++j) {
        if (p < j * dilation || p < j * wake) continue;
        const uint64_t back = j * dilation;
        // Where a seed or a skipped step left fewer rows, there are zeros in front.
        const float x = back <= history.size() + i ? all[history.size() + i - static_cast<size_t>(back)][c] : 0;
        const float product = weights[static_cast<size_t>(j * dim) + c] * x;
        accumulator += product;
      }
      (*rows)[i * static_cast<size_t>(dim) + c] = accumulator;
    }
  }
}

Codes ReferenceState::conv(uint32_t layer, Projection projection, std::span<const float> taps,
                           std::vector<float>* rows) {
  const uint64_t dim = projectionDim(projection);
  size_t count = 0;
  Codes codes = checkLayer(layer) | checkRows(rows->size(), dim, &count);
  if (taps.size() != geometry_.fields.qkvConvTaps * dim) codes |= kShapeCode;
  if (codes != 0) return codes;
  const size_t tail = layer * kProjections + static_cast<size_t>(projection);
  step_.rows = count;
  convolve(committed_.qkv[tail], geometry_.fields.qkvConvTaps, 1, 1, taps, dim, rows, &step_.qkv[tail]);
  return 0;
}

Codes ReferenceState::engramConv(uint32_t site, std::span<const float> taps, std::vector<float>* rows) {
  const EngramConfig& engram = geometry_.fields.engram;
  const uint64_t dim = geometry_.fields.dModel;
  size_t count = 0;
  Codes codes = (site < geometry_.sites.size() ? 0 : kRangeCode) | checkRows(rows->size(), dim, &count);
  if (taps.size() != engram.convTaps * dim) codes |= kShapeCode;
  if (codes != 0) return codes;
  uint32_t wake = 1;
  for (uint32_t order : geometry_.orders) wake = std::max(wake, order);
  step_.rows = count;
  convolve(committed_.engram[site], engram.convTaps, engram.convDilation, wake, taps, dim, rows, &step_.engram[site]);
  return 0;
}

std::shared_ptr<const ReferenceRow> ReferenceState::makeRow(std::span<const float> keys,
                                                            std::span<const float> values) const {
  const ModelConfig config = geometry_.config();
  auto row = std::make_shared<ReferenceRow>();
  row->keys.assign(keys.begin(), keys.end());
  row->values.assign(values.begin(), values.end());
  if (options_.precision == Precision::kF32) {
    row->seenKeys.assign(keys.begin(), keys.end());
    row->seenValues.assign(values.begin(), values.end());
    return row;
  }
  for (size_t head = 0; head < config.numKvHeads; ++head) {
    row->quantizedKeys.push_back(quantizePlainly(part(keys, head, config.qkHeadDim)));
    row->quantizedValues.push_back(quantizePlainly(part(values, head, config.vHeadDim)));
    const QuantizedRow& key = row->quantizedKeys.back();
    const QuantizedRow& value = row->quantizedValues.back();
    for (int8_t q : key.values) row->seenKeys.push_back(double{key.scale} * q);
    for (int8_t q : value.values) row->seenValues.push_back(double{value.scale} * q);
  }
  return row;
}

uint32_t ReferenceState::grown(uint32_t layer, uint64_t position, size_t count) const {
  const uint64_t cap = geometry_.config().cap(layer);
  uint64_t slots = slots_[layer];
  for (uint64_t p = position; p < position + count; ++p) {
    if (p >= slots && slots < cap) slots = std::min(std::max(2 * slots, p + 1), cap);
  }
  return static_cast<uint32_t>(slots);
}

ReferenceState::Layer ReferenceState::writtenLayer(uint32_t layer, std::span<const float> keys,
                                                   std::span<const float> values, uint64_t position,
                                                   size_t count) const {
  const ModelConfig config = geometry_.config();
  Layer rows = committed_.layers[layer];
  if (rows.count(position) == 0 && (position == 0 || rows.count(position - 1) == 0)) rows.clear();
  for (size_t i = 0; i < count; ++i) {
    rows[position + i] = makeRow(part(keys, i, config.kDim()), part(values, i, config.vDim()));
  }
  return rows;
}

Codes ReferenceState::writeKv(uint32_t layer, std::span<const float> keys, std::span<const float> values) {
  size_t count = 0;
  Codes codes = checkLayer(layer) | checkKv(keys, values, &count);
  codes |= checkRows(keys.size(), geometry_.config().kDim(), &count);
  if (codes != 0) return codes;
  step_.rows = count;
  // Rows at or after `position` were never committed.
  Layer& committed = committed_.layers[layer];
  committed.erase(committed.lower_bound(position()), committed.end());
  step_.layers[layer] = writtenLayer(layer, keys, values, position(), count);
  step_.slots[layer] = grown(layer, position(), count);
  return 0;
}

bool ReferenceState::spanHeld(const Layer& rows, uint32_t layer, uint64_t position) const {
  const uint64_t first = spanFirst(layer, position);
  const auto begin = rows.lower_bound(first);
  const auto end = rows.upper_bound(position);
  return static_cast<uint64_t>(std::distance(begin, end)) == position + 1 - first;
}

void ReferenceState::attendAt(const Layer& rows, uint32_t layer, uint64_t position, std::span<const float> query,
                              ReferenceAttention* attention) const {
  const ModelConfig config = geometry_.config();
  const size_t group = config.numHeads / config.numKvHeads;
  const size_t valueWidth = config.vHeadDim;
  const auto begin = rows.find(spanFirst(layer, position));
  const auto count = static_cast<size_t>(position + 1 - begin->first);
  std::vector<double> keys;
  std::vector<double> values;
  std::vector<double> seen(config.qkHeadDim);
  for (size_t head = 0; head < config.numHeads; ++head) {
    const std::span<const float> given = part(query, head, config.qkHeadDim);
    std::copy(given.begin(), given.end(), seen.begin());
    if (options_.quantizeQuery) {
      const QuantizedRow quantized = quantizePlainly(given);
      for (size_t c = 0; c < seen.size(); ++c) seen[c] = double{quantized.scale} * quantized.values[c];
    }
    keys.clear();
    values.clear();
    const auto kvHead = static_cast<ptrdiff_t>(head / group);
    auto row = begin;
    for (size_t i = 0; i < count; ++i, ++row) {
      const auto keyWidth = static_cast<ptrdiff_t>(config.qkHeadDim);
      const double* key = row->second->seenKeys.data() + kvHead * keyWidth;
      const double* value = row->second->seenValues.data() + kvHead * static_cast<ptrdiff_t>(valueWidth);
      keys.insert(keys.end(), key, key + keyWidth);
      values.insert(values.end(), value, value + valueWidth);
    }
    const size_t at = attention->out.size();
    attention->out.resize(at + valueWidth);
    attention->bound.resize(at + valueWidth);
    attendPlainly(seen, keys, values, count, summationDepth(count), attention->out.data() + at,
                  attention->bound.data() + at);
  }
}

Codes ReferenceState::attend(uint32_t layer, std::span<const float> query, size_t outLength,
                             ReferenceAttention* attention) const {
  const ModelConfig config = geometry_.config();
  Codes codes = checkLayer(layer) | checkQuery(query);
  if (query.size() != config.qDim() || outLength != config.attnOutDim() || step_.rows > 1) codes |= kShapeCode;
  const bool layerExists = checkLayer(layer) == 0;
  if (layerExists && (!step_.layers[layer] || !spanHeld(*step_.layers[layer], layer, position()))) codes |= kRangeCode;
  if (codes != 0) return codes;
  *attention = {};
  attendAt(*step_.layers[layer], layer, position(), query, attention);
  return 0;
}

Codes ReferenceState::appendAndAttend(uint32_t layer, std::span<const float> query, std::span<const float> keys,
                                      std::span<const float> values, size_t outLength, ReferenceAttention* attention) {
  const ModelConfig config = geometry_.config();
  size_t count = 0;
  Codes codes = checkLayer(layer) | checkQuery(query) | checkKv(keys, values, &count);
  if (query.size() != count * config.qDim() || outLength != count * config.attnOutDim()) codes |= kShapeCode;
  codes |= checkRows(keys.size(), config.kDim(), &count);
  // The first query's span must be among what the layer has committed and the rows of the step.
  if (checkLayer(layer) == 0) {
    const Layer& rows = committed_.layers[layer];
    const uint64_t first = spanFirst(layer, position());
    const auto heldBefore = std::distance(rows.lower_bound(first), rows.lower_bound(position()));
    if (static_cast<uint64_t>(heldBefore) != position() - first) codes |= kRangeCode;
  }
  if (codes != 0) return codes;
  codes = writeKv(layer, keys, values);
  *attention = {};
  for (size_t i = 0; i < count; ++i) {
    attendAt(*step_.layers[layer], layer, position() + i, part(query, i, config.qDim()), attention);
  }
  return codes;
}

void ReferenceState::forgetUnseen() {
  const ModelConfig config = geometry_.config();
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    Layer& rows = committed_.layers[layer];
    const uint64_t cap = config.cap(layer);
    rows.erase(rows.begin(), rows.lower_bound(position() + 1 > cap ? position() + 1 - cap : 0));
    while (rows.size() > cap) rows.erase(rows.begin());
  }
}

Codes ReferenceState::advance(uint32_t count) {
  if (count == 0 || position() + uint64_t{count} > kMaxPosition) return kRangeCode;
  if (step_.rows != 0 && step_.rows != count) return kRangeCode;
  if (!step_.tokens.empty() && step_.tokens.size() != count) return kRangeCode;
  committed_.tokens.insert(committed_.tokens.end(), step_.tokens.begin(), step_.tokens.end());
  const auto append = [](std::vector<History>& histories, const std::vector<History>& added) {
    for (size_t i = 0; i < added.size(); ++i) {
      histories[i].insert(histories[i].end(), added[i].begin(), added[i].end());
    }
  };
  append(committed_.qkv, step_.qkv);
  append(committed_.engram, step_.engram);
  for (size_t layer = 0; layer < step_.layers.size(); ++layer) {
    if (!step_.layers[layer]) continue;
    committed_.layers[layer] = *step_.layers[layer];
    slots_[layer] = step_.slots[layer];
  }
  committed_.position += count;
  forgetUnseen();
  discard();
  return 0;
}

Codes ReferenceState::writeKvAt(uint32_t layer, std::span<const float> keys, std::span<const float> values,
                                uint32_t position) {
  size_t count = 0;
  Codes codes = checkLayer(layer) | betweenSteps() | checkKv(keys, values, &count);
  if (uint64_t{position} + count > kMaxPosition) codes |= kRangeCode;
  if (checkLayer(layer) == 0 && !committed_.layers[layer].empty() &&
      position < committed_.layers[layer].begin()->first) {
    codes |= kRangeCode;
  }
  if (codes != 0) return codes;
  committed_.layers[layer] = writtenLayer(layer, keys, values, position, count);
  slots_[layer] = grown(layer, position, count);
  forgetUnseen();
  marks_.clear();
  return 0;
}

void ReferenceState::seed(History* history, std::span<const float> rows, uint64_t dim) {
  history->clear();
  for (size_t i = 0; i * dim < rows.size(); ++i) {
    const std::span<const float> row = part(rows, i, dim);
    history->emplace_back(row.begin(), row.end());
  }
  marks_.clear();
}

Codes ReferenceState::seedConvTail(uint32_t layer, Projection projection, std::span<const float> rows) {
  const uint64_t dim = projectionDim(projection);
  const uint64_t taps = geometry_.fields.qkvConvTaps;
  Codes codes = checkLayer(layer) | betweenSteps();
  if (rows.size() != (taps == 0 ? 0 : taps - 1) * dim) codes |= kShapeCode;
  if (codes != 0) return codes;
  seed(&committed_.qkv[layer * kProjections + static_cast<size_t>(projection)], rows, dim);
  return 0;
}

Codes ReferenceState::seedEngramTail(uint32_t site, std::span<const float> rows) {
  const uint64_t dim = geometry_.fields.dModel;
  const EngramConfig& engram = geometry_.fields.engram;
  Codes codes = (site < geometry_.sites.size() ? 0 : kRangeCode) | betweenSteps();
  if (rows.size() != (engram.convTaps == 0 ? 0 : uint64_t{engram.convTaps - 1} * engram.convDilation) * dim) {
    codes |= kShapeCode;
  }
  if (codes != 0) return codes;
  seed(&committed_.engram[site], rows, dim);
  return 0;
}

Codes ReferenceState::seedTokens(std::span<const uint32_t> ids) {
  Codes codes = betweenSteps();
  for (uint32_t id : ids) {
    if (id >= geometry_.fields.vocabSize) codes |= kRangeCode;
  }
  if (codes != 0) return codes;
  committed_.tokens.assign(ids.begin(), ids.end());
  marks_.clear();
  return 0;
}

Codes ReferenceState::setPosition(uint32_t position) {
  if (inStep() || position > kMaxPosition) return kRangeCode;
  committed_.position = position;
  for (Layer& rows : committed_.layers) rows.erase(rows.lower_bound(position), rows.end());
  forgetUnseen();
  marks_.clear();
  return 0;
}

ReferenceState ReferenceState::forked() const {
  ReferenceState fork = *this;
  fork.marks_.clear();
  return fork;
}

uint32_t ReferenceState::mark() {
  marks_.emplace(nextMark_, committed_);
  return nextMark_++;
}

Codes ReferenceState::rollback(uint32_t mark) {
  const auto found = marks_.find(mark);
  if (found == marks_.end()) return kRangeCode;
  discard();
  committed_ = found->second;
  marks_.erase(std::next(found), marks_.end());
  return 0;
}

Codes ReferenceState::release(uint32_t mark) {
  const auto found = marks_.find(mark);
  if (inStep() || found == marks_.end()) return kRangeCode;
  marks_.erase(found, marks_.end());
  return 0;
}

}  // namespace needle3::testing
