#include "config/model_config.h"

#include <algorithm>

namespace needle3 {
namespace {

constexpr uint64_t kAddressableBytes = uint64_t{1} << 32;

// Products of a few 32-bit fields can pass 64 bits; once past what memory can address, how far does not matter.
uint64_t saturatingMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t saturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

Status configError(const char* field, uint64_t value, const char* rule) {
  Status status(ErrorCode::kConfig);
  status << field << " " << value << ": " << rule;
  return status;
}

// Layer indices: in range, ascending, none twice.
Status checkLayers(const char* field, std::span<const uint32_t> layers, uint32_t numLayers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] >= numLayers) {
      Status status(ErrorCode::kConfig);
      status << field << " " << layers[i] << ": must be below numLayers, " << numLayers;
      return status;
    }
    if (i > 0 && layers[i] <= layers[i - 1]) {
      return configError(field, layers[i],
                         layers[i] == layers[i - 1] ? "is listed twice" : "must be sorted in ascending order");
    }
  }
  return {};
}

struct Field {
  const char* name;
  uint32_t value;
};

Status checkAtLeastOne(std::span<const Field> fields) {
  for (const Field& field : fields) {
    if (field.value == 0) return configError(field.name, 0, "must be at least 1");
  }
  return {};
}

// Bytes of tails in multiplication that saturates, so that a geometry of any numbers can be measured.
uint64_t saturatingTailBytes(const ModelConfig& config) {
  const uint64_t qkvRows = config.qkvConvTaps == 0 ? 0 : config.qkvConvTaps - 1;
  const uint64_t qkvWidth = saturatingAdd(saturatingAdd(config.qDim(), config.kDim()), config.vDim());
  const uint64_t qkv = saturatingMultiply(saturatingMultiply(qkvRows, qkvWidth), config.numLayers);
  const uint64_t engram =
      saturatingMultiply(saturatingMultiply(config.engram.tailRows(), config.dModel), config.engram.sites.size());
  return saturatingMultiply(saturatingAdd(qkv, engram), sizeof(float));
}

}  // namespace

uint32_t EngramConfig::maxOrder() const {
  uint32_t longest = 1;
  for (uint32_t order : orders) longest = std::max(longest, order);
  return longest;
}

uint64_t EngramConfig::tailRows() const {
  return convTaps == 0 ? 0 : static_cast<uint64_t>(convTaps - 1) * convDilation;
}

bool ModelConfig::isGlobal(uint32_t layer) const {
  return slidingWindow == 0 || std::binary_search(globalLayers.begin(), globalLayers.end(), layer);
}

uint32_t ModelConfig::cap(uint32_t layer) const {
  return isGlobal(layer) ? maxSeqLen : std::min(slidingWindow, maxSeqLen);
}

uint64_t tailBytes(const ModelConfig& config) { return saturatingTailBytes(config); }

Status validateHash(const EngramConfig& engram) {
  const Field counts[] = {{"engram.heads", engram.heads}, {"engram.slots", engram.slots}};
  NEEDLE3_RETURN_IF_ERROR(checkAtLeastOne(counts));
  for (uint32_t order : engram.orders) {
    if (order == 0) return configError("engram.orders", 0, "an n-gram has at least 1 token");
  }
  return {};
}

Status validate(const ModelConfig& config) {
  const EngramConfig& engram = config.engram;
  const Field counts[] = {
      {"vocabSize", config.vocabSize},   {"dModel", config.dModel},        {"numHeads", config.numHeads},
      {"numKvHeads", config.numKvHeads}, {"numLayers", config.numLayers},  {"qkHeadDim", config.qkHeadDim},
      {"vHeadDim", config.vHeadDim},     {"maxSeqLen", config.maxSeqLen},  {"hadaN", config.hadaN},
      {"mhcLanes", config.mhcLanes},     {"engram.subDim", engram.subDim}, {"engram.convDilation", engram.convDilation},
  };
  NEEDLE3_RETURN_IF_ERROR(checkAtLeastOne(counts));
  NEEDLE3_RETURN_IF_ERROR(validateHash(engram));
  if (config.outVocab > config.vocabSize) {
    Status status(ErrorCode::kConfig);
    status << "outVocab " << config.outVocab << ": must be at most vocabSize, " << config.vocabSize;
    return status;
  }
  if (config.numHeads % config.numKvHeads != 0) {
    Status status(ErrorCode::kConfig);
    status << "numHeads " << config.numHeads << ": must be a multiple of numKvHeads, " << config.numKvHeads;
    return status;
  }
  if (config.maxSeqLen > INT32_MAX) return configError("maxSeqLen", config.maxSeqLen, "must be at most 2147483647");
  if (!(config.ropeTheta > 0) || config.ropeTheta > 1.7976931348623157e308) {
    return Status(ErrorCode::kConfig) << "ropeTheta: must be a positive finite number";
  }
  NEEDLE3_RETURN_IF_ERROR(checkLayers("globalLayers", config.globalLayers, config.numLayers));
  NEEDLE3_RETURN_IF_ERROR(checkLayers("engram.sites", engram.sites, config.numLayers));

  // Too large for 32-bit memory: each width by itself, so that the message names the field, then the smallest state.
  const struct {
    const char* name;
    uint64_t bytes;
  } sizes[] = {
      {"numHeads · qkHeadDim", saturatingMultiply(config.qDim(), sizeof(float))},
      {"numHeads · vHeadDim", saturatingMultiply(config.attnOutDim(), sizeof(float))},
      {"dModel", uint64_t{config.dModel} * sizeof(float)},
      {"engram.orders · engram.heads", saturatingMultiply(engram.tables(), sizeof(uint32_t))},
      {"max(engram.orders)", uint64_t{engram.maxOrder()} * sizeof(uint32_t)},
      {"the convolution tails", saturatingTailBytes(config)},
      {"a slot of every layer",
       saturatingMultiply(saturatingMultiply(saturatingAdd(config.kDim(), config.vDim()), sizeof(float)),
                          config.numLayers)},
  };
  uint64_t total = 0;
  for (const auto& size : sizes) {
    if (size.bytes >= kAddressableBytes) {
      Status status(ErrorCode::kConfig);
      status << size.name << ": " << size.bytes << " bytes are too large for 32-bit memory";
      return status;
    }
    total += size.bytes;
  }
  if (total >= kAddressableBytes) {
    Status status(ErrorCode::kConfig);
    status << "the smallest state of this geometry takes " << total << " bytes: too large for 32-bit memory";
    return status;
  }
  return {};
}

}  // namespace needle3
