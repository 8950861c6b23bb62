#include "scalar_loops.h"

#include <algorithm>
#include <cmath>

namespace needle3::bench {
namespace {

// Turns `count` scores into weights that add up to 1.
void softmax(float* scores, uint32_t count) {
  float maximum = scores[0];
  for (uint32_t i = 1; i < count; ++i) maximum = std::max(maximum, scores[i]);
  float sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    scores[i] = std::exp(scores[i] - maximum);
    sum += scores[i];
  }
  for (uint32_t i = 0; i < count; ++i) scores[i] /= sum;
}

}  // namespace

void scalarAttend(const ScalarShape& shape, const ScalarFloatCache& cache, uint32_t first, uint32_t last,
                  const float* query, float* scores, float* out) {
  const uint32_t group = shape.numHeads / shape.numKvHeads;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.qkHeadDim));
  for (uint32_t head = 0; head < shape.numHeads; ++head) {
    const uint32_t kvHead = head / group;
    const float* q = query + head * shape.qkHeadDim;
    for (uint32_t p = first; p <= last; ++p) {
      const float* k = cache.keys + (p % cache.slots * shape.numKvHeads + kvHead) * shape.qkHeadDim;
      float dot = 0;
      for (uint32_t d = 0; d < shape.qkHeadDim; ++d) dot += q[d] * k[d];
      scores[p - first] = dot * scale;
    }
    softmax(scores, last - first + 1);
    float* o = out + head * shape.vHeadDim;
    std::fill(o, o + shape.vHeadDim, 0.0F);
    for (uint32_t p = first; p <= last; ++p) {
      const float* v = cache.values + (p % cache.slots * shape.numKvHeads + kvHead) * shape.vHeadDim;
      const float weight = scores[p - first];
      for (uint32_t d = 0; d < shape.vHeadDim; ++d) o[d] += weight * v[d];
    }
  }
}

namespace {

// Weighted sum of one kv head's int8 value rows.
void weighValues(const ScalarShape& shape, const ScalarInt8Cache& cache, uint32_t first, uint32_t last, uint32_t kvHead,
                 const float* weights, float* out) {
  std::fill(out, out + shape.vHeadDim, 0.0F);
  for (uint32_t p = first; p <= last; ++p) {
    const uint32_t row = p % cache.slots * shape.numKvHeads + kvHead;
    const int8_t* v = cache.values + row * shape.vHeadDim;
    const float weight = weights[p - first] * cache.valueScales[row];
    for (uint32_t d = 0; d < shape.vHeadDim; ++d) out[d] += weight * static_cast<float>(v[d]);
  }
}

}  // namespace

void scalarAttendInt8(const ScalarShape& shape, const ScalarInt8Cache& cache, uint32_t first, uint32_t last,
                      const float* query, float* scores, float* out) {
  const uint32_t group = shape.numHeads / shape.numKvHeads;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.qkHeadDim));
  for (uint32_t head = 0; head < shape.numHeads; ++head) {
    const uint32_t kvHead = head / group;
    const float* q = query + head * shape.qkHeadDim;
    for (uint32_t p = first; p <= last; ++p) {
      const uint32_t row = p % cache.slots * shape.numKvHeads + kvHead;
      const int8_t* k = cache.keys + row * shape.qkHeadDim;
      float dot = 0;
      for (uint32_t d = 0; d < shape.qkHeadDim; ++d) dot += q[d] * static_cast<float>(k[d]);
      scores[p - first] = dot * (cache.keyScales[row] * scale);
    }
    softmax(scores, last - first + 1);
    weighValues(shape, cache, first, last, kvHead, scores, out + head * shape.vHeadDim);
  }
}

void scalarAttendInt8QuantizedQuery(const ScalarShape& shape, const ScalarInt8Cache& cache, uint32_t first,
                                    uint32_t last, const float* query, int8_t* quantized, float* scores, float* out) {
  const uint32_t group = shape.numHeads / shape.numKvHeads;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.qkHeadDim));
  for (uint32_t head = 0; head < shape.numHeads; ++head) {
    const uint32_t kvHead = head / group;
    const float queryScale = scalarQuantizeRow(query + head * shape.qkHeadDim, shape.qkHeadDim, quantized) * scale;
    for (uint32_t p = first; p <= last; ++p) {
      const uint32_t row = p % cache.slots * shape.numKvHeads + kvHead;
      const int8_t* k = cache.keys + row * shape.qkHeadDim;
      int32_t dot = 0;
      for (uint32_t d = 0; d < shape.qkHeadDim; ++d) dot += quantized[d] * k[d];
      scores[p - first] = static_cast<float>(dot) * (cache.keyScales[row] * queryScale);
    }
    softmax(scores, last - first + 1);
    weighValues(shape, cache, first, last, kvHead, scores, out + head * shape.vHeadDim);
  }
}

float scalarQuantizeRow(const float* x, uint32_t length, int8_t* values) {
  float absmax = 0;
  for (uint32_t i = 0; i < length; ++i) absmax = std::max(absmax, std::fabs(x[i]));
  const float scale = absmax / 127;
  const float inverse = 1 / scale;
  if (absmax == 0 || !std::isfinite(inverse)) {
    std::fill(values, values + length, static_cast<int8_t>(0));
    return 1;
  }
  for (uint32_t i = 0; i < length; ++i) {
    values[i] = static_cast<int8_t>(std::clamp(std::round(x[i] * inverse), -128.0F, 127.0F));
  }
  return scale;
}

void scalarWriteKv(const ScalarShape& shape, uint32_t position, uint32_t slots, const float* keys, const float* values,
                   float* cachedKeys, float* cachedValues) {
  const uint32_t slot = position % slots;
  const uint32_t kDim = shape.numKvHeads * shape.qkHeadDim;
  const uint32_t vDim = shape.numKvHeads * shape.vHeadDim;
  for (uint32_t i = 0; i < kDim; ++i) cachedKeys[slot * kDim + i] = keys[i];
  for (uint32_t i = 0; i < vDim; ++i) cachedValues[slot * vDim + i] = values[i];
}

void scalarWriteKvInt8(const ScalarShape& shape, uint32_t position, uint32_t slots, const float* keys,
                       const float* values, int8_t* cachedKeys, float* keyScales, int8_t* cachedValues,
                       float* valueScales) {
  for (uint32_t kvHead = 0; kvHead < shape.numKvHeads; ++kvHead) {
    const uint32_t row = position % slots * shape.numKvHeads + kvHead;
    keyScales[row] =
        scalarQuantizeRow(keys + kvHead * shape.qkHeadDim, shape.qkHeadDim, cachedKeys + row * shape.qkHeadDim);
    valueScales[row] =
        scalarQuantizeRow(values + kvHead * shape.vHeadDim, shape.vHeadDim, cachedValues + row * shape.vHeadDim);
  }
}

void scalarConvolve(const ScalarConvolution& convolution, uint32_t position, float* tail, float* row) {
  const uint32_t dim = convolution.dim;
  const uint32_t rows = (convolution.count - 1) * convolution.dilation;
  const uint32_t step = std::max(convolution.dilation, convolution.wake);
  for (uint32_t c = 0; c < dim; ++c) {
    float sum = convolution.taps[c] * row[c];
    for (uint32_t j = 1; j < convolution.count; ++j) {
      if (position < j * step) break;
      sum += convolution.taps[j * dim + c] * tail[(position - j * convolution.dilation) % rows * dim + c];
    }
    tail[position % rows * dim + c] = row[c];
    row[c] = sum;
  }
}

}  // namespace needle3::bench
