#include "state/snapshot.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/crc32.h"
#include "config/config_words.h"
#include "kernels/kv_run.h"
#include "kernels/quantize.h"
#include "state/state_size.h"

namespace needle3 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "snapshots are little-endian, and written as memory has them");

constexpr uint8_t kMagic[8] = {'N', '3', 'S', 'T', 'A', 'T', 'E', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAddressableBytes = uint64_t{1} << 32;

// The fixed part, byte for byte.
struct Header {
  uint8_t magic[8];
  uint32_t version;
  uint32_t position;
  uint64_t length;  // of the whole snapshot
  uint32_t precision;
  uint32_t quantizeQuery;
  uint32_t fingerprintBytes;
  uint32_t configWords;
  uint32_t tokens;
  uint32_t reserved;
};
static_assert(sizeof(Header) == 48);

// A layer's slots and the range of positions whose rows follow; 0 and 0 for an empty one.
struct LayerHeader {
  uint32_t slots;
  uint32_t first;
  uint32_t end;
};

// The arrays of a layer's rows, in the order in which a snapshot has them.
struct RowField {
  const void* KvRun::*array;
  const float* KvRun::*scales;
  size_t bytes;  // per row

  [[nodiscard]] const void* of(const KvRun& run) const { return array != nullptr ? run.*array : run.*scales; }
};

std::array<RowField, 4> rowFields(const KvShape& shape) {
  return {{{&KvRun::keys, nullptr, shape.keyBytes()},
           {&KvRun::values, nullptr, shape.valueBytes()},
           {nullptr, &KvRun::keyScales, shape.scaleBytes()},
           {nullptr, &KvRun::valueScales, shape.scaleBytes()}}};
}

template <typename... Parts>
Status damaged(Parts... parts) {
  Status status(ErrorCode::kSnapshot);
  (status << ... << parts);
  return status;
}

}  // namespace

class SnapshotWriter {
 public:
  SnapshotWriter(const DecodeState& state, size_t fingerprintBytes) : state_(state) {
    const ModelConfig& config = state.config();
    header_ = {.magic = {},
               .version = kVersion,
               .position = state.position(),
               .length = 0,
               .precision = static_cast<uint32_t>(state.precision()),
               .quantizeQuery = state.quantizeQuery() ? 1U : 0U,
               .fingerprintBytes = static_cast<uint32_t>(fingerprintBytes),
               .configWords = static_cast<uint32_t>(state.configWords().size()),
               .tokens = state.tokenCount(),
               .reserved = 0};
    std::copy(std::begin(kMagic), std::end(kMagic), header_.magic);
    header_.length = sizeof(Header) + fingerprintBytes + state.configWords().size_bytes() +
                     uint64_t{header_.tokens} * sizeof(uint32_t) + config.numLayers * sizeof(LayerHeader) +
                     tailBytes(config) + sizeof(uint32_t);
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      const LayerHeader held = layerHeader(layer);
      header_.length += uint64_t{held.end - held.first} * state.ring(layer).shape().rowBytes();
    }
  }

  [[nodiscard]] uint64_t length() const { return header_.length; }

  void write(std::span<const uint8_t> fingerprint, SnapshotSink& sink) {
    sink_ = &sink;
    const uint32_t layers = state_.config().numLayers;
    put(&header_, sizeof(header_));
    put(fingerprint.data(), fingerprint.size());
    put(state_.configWords().data(), state_.configWords().size_bytes());
    put(state_.tokens_.ids().data(), state_.tokens_.ids().size_bytes());
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const LayerHeader held = layerHeader(layer);
      put(&held, sizeof(held));
    }
    for (const ConvTail& tail : state_.tails_) {
      for (uint32_t age = tail.rows(); age > 0; --age) put(tail.committedRow(age), tail.dim() * sizeof(float));
    }
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const LayerHeader held = layerHeader(layer);
      const KvRing& ring = state_.ring(layer);
      KvRun runs[2];
      const size_t count = ring.runs(held.first, held.end, runs);
      for (const RowField& field : rowFields(ring.shape())) {
        for (size_t i = 0; i < count; ++i) put(field.of(runs[i]), runs[i].rows * field.bytes);
      }
    }
    const uint32_t checksum = crc_.value();
    put(&checksum, sizeof(checksum));
  }

 private:
  [[nodiscard]] LayerHeader layerHeader(uint32_t layer) const {
    const auto first = static_cast<uint32_t>(state_.heldFirst(layer));
    const auto end = static_cast<uint32_t>(state_.heldEnd(layer));
    return first < end ? LayerHeader{state_.slots(layer), first, end} : LayerHeader{state_.slots(layer), 0, 0};
  }

  void put(const void* bytes, size_t length) {
    if (length == 0) return;
    crc_.add(bytes, length);
    sink_->write(bytes, length);
  }

  const DecodeState& state_;
  Header header_;
  SnapshotSink* sink_ = nullptr;
  Crc32 crc_;
};

class SnapshotReader {
 public:
  SnapshotReader(SnapshotSource& source, uint64_t length, Memory& memory)
      : source_(source), length_(length), words_(memory), layers_(memory), slots_(memory) {}

  Status validate(std::span<const uint8_t> fingerprint) {
    NEEDLE3_RETURN_IF_ERROR(checkEnvelope());
    NEEDLE3_RETURN_IF_ERROR(checkHeader(fingerprint));
    NEEDLE3_RETURN_IF_ERROR(readConfig());
    NEEDLE3_RETURN_IF_ERROR(checkTokens());
    NEEDLE3_RETURN_IF_ERROR(readLayers());
    return checkRows();
  }

  // Once validated.
  Status build(Memory& memory, Scratch& workspace, DecodeState** state) {
    const DecodeStateOptions options = {.precision = precision(), .quantizeQuery = header_.quantizeQuery != 0};
    Buffer<uint32_t> tokens(memory);
    if (!tokens.allocate(header_.tokens)) return outOfMemory(header_.tokens * sizeof(uint32_t));
    DecodeState* restored = nullptr;
    NEEDLE3_RETURN_IF_ERROR(
        DecodeState::build(config_, options, {slots_.data(), slots_.size()}, memory, workspace, &restored));
    source_.read(tokensAt_, tokens.data(), tokens.size() * sizeof(uint32_t));
    restored->tokens_.assign({tokens.data(), tokens.size()});
    uint64_t at = tailsAt_;
    const auto take = [this, &at](void* bytes, size_t length) {
      if (length != 0) source_.read(at, bytes, length);
      at += length;
    };
    for (ConvTail& tail : restored->tails_) take(tail.refill(), tail.length() * sizeof(float));
    for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
      KvRing& ring = restored->layers_[layer];
      KvRun runs[2];
      const size_t count = ring.refill(layers_[layer].first, layers_[layer].end, runs);
      for (const RowField& field : rowFields(ring.shape())) {
        // The ring hands its memory out to be filled.
        for (size_t i = 0; i < count; ++i) take(const_cast<void*>(field.of(runs[i])), runs[i].rows * field.bytes);
      }
    }
    restored->position_ = header_.position;
    *state = restored;
    return {};
  }

 private:
  static constexpr size_t kPieceFloats = 1024;

  [[nodiscard]] Precision precision() const { return header_.precision == 0 ? Precision::kF32 : Precision::kInt8; }

  // What any damage shows in: magic, version, length, checksum.
  Status checkEnvelope() {
    uint8_t magic[sizeof(kMagic)];
    if (length_ >= sizeof(magic)) {
      source_.read(0, magic, sizeof(magic));
      if (!std::equal(std::begin(magic), std::end(magic), std::begin(kMagic))) {
        return damaged("these bytes are no decode state: they do not begin with N3STATE");
      }
    }
    if (length_ < sizeof(Header) + sizeof(uint32_t)) {
      return damaged("truncated: ", length_, " bytes are less than a header");
    }
    source_.read(0, &header_, sizeof(header_));
    if (header_.version != kVersion) {
      return damaged("version ", header_.version, ": this package reads version ", kVersion);
    }
    if (length_ < header_.length) return damaged("truncated: ", length_, " bytes of ", header_.length);
    if (length_ > header_.length)
      return damaged("trailing bytes: ", length_, " where ", header_.length, " were written");
    Crc32 crc;
    uint8_t piece[kPieceFloats * sizeof(float)];
    const uint64_t checked = length_ - sizeof(uint32_t);
    for (uint64_t at = 0; at < checked; at += sizeof(piece)) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(sizeof(piece), checked - at));
      source_.read(at, piece, count);
      crc.add(piece, count);
    }
    uint32_t checksum = 0;
    source_.read(checked, &checksum, sizeof(checksum));
    return checksum == crc.value() ? Status() : damaged("the checksum does not match: the bytes are damaged");
  }

  // Takes `bytes` off what is left before the checksum.
  Status skip(uint64_t bytes, const char* what) {
    if (bytes > length_ - sizeof(uint32_t) - at_) return damaged("the ", what, " go past the end");
    at_ += bytes;
    return {};
  }

  Status checkHeader(std::span<const uint8_t> fingerprint) {
    if (header_.precision > 1) return damaged("precision ", header_.precision, ": must be 0 (f32) or 1 (int8)");
    if (header_.quantizeQuery > header_.precision) {
      return damaged("quantizeQuery ", header_.quantizeQuery, ": must be 0, or 1 with int8");
    }
    if (header_.reserved != 0) return damaged("reserved field ", header_.reserved, ": must be 0");
    if (header_.position > INT32_MAX)
      return damaged("position ", header_.position, ": must be at most ", uint32_t{INT32_MAX});
    if (header_.fingerprintBytes > kMaxFingerprintBytes) {
      return damaged("a fingerprint of ", header_.fingerprintBytes, " bytes: must be at most 64");
    }
    const uint64_t fingerprintAt = sizeof(Header);
    at_ = fingerprintAt;
    NEEDLE3_RETURN_IF_ERROR(skip(header_.fingerprintBytes, "fingerprint's bytes"));
    if (fingerprint.empty()) return {};
    uint8_t own[kMaxFingerprintBytes];
    source_.read(fingerprintAt, own, header_.fingerprintBytes);
    if (fingerprint.size() == header_.fingerprintBytes && std::equal(fingerprint.begin(), fingerprint.end(), own)) {
      return {};
    }
    return damaged(header_.fingerprintBytes == 0 ? "it was saved without a fingerprint"
                                                 : "its fingerprint is not the one asked for");
  }

  Status readConfig() {
    const uint64_t wordsAt = at_;
    NEEDLE3_RETURN_IF_ERROR(skip(uint64_t{header_.configWords} * sizeof(uint32_t), "words of the geometry"));
    if (!words_.allocate(header_.configWords)) return outOfMemory(header_.configWords * sizeof(uint32_t));
    source_.read(wordsAt, words_.data(), words_.size() * sizeof(uint32_t));
    Status status = decodeConfig({words_.data(), words_.size()}, &config_);
    if (status.ok()) status = needle3::validate(config_);
    return status.ok() ? Status() : damaged("its geometry: ", status.message());
  }

  Status checkTokens() {
    tokensAt_ = at_;
    if (header_.tokens > config_.engram.maxOrder()) {
      return damaged(header_.tokens, " tokens: the geometry retains ", config_.engram.maxOrder());
    }
    NEEDLE3_RETURN_IF_ERROR(skip(uint64_t{header_.tokens} * sizeof(uint32_t), "tokens"));
    for (uint32_t i = 0; i < header_.tokens; ++i) {
      uint32_t token = 0;
      source_.read(tokensAt_ + i * sizeof(uint32_t), &token, sizeof(token));
      if (token >= config_.vocabSize) return damaged("token ", token, ": must be below vocabSize, ", config_.vocabSize);
    }
    return {};
  }

  Status readLayers() {
    const uint64_t layersAt = at_;
    NEEDLE3_RETURN_IF_ERROR(skip(uint64_t{config_.numLayers} * sizeof(LayerHeader), "layers"));
    if (!layers_.allocate(config_.numLayers) || !slots_.allocate(config_.numLayers)) {
      return outOfMemory(config_.numLayers * (sizeof(LayerHeader) + sizeof(uint32_t)));
    }
    source_.read(layersAt, layers_.data(), layers_.size() * sizeof(LayerHeader));
    tailsAt_ = at_;
    NEEDLE3_RETURN_IF_ERROR(skip(tailBytes(config_), "convolution tails"));
    uint64_t total = tailBytes(config_);
    for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
      const LayerHeader& held = layers_[layer];
      const uint32_t cap = config_.cap(layer);
      const uint64_t visible = uint64_t{header_.position} + 1 > cap ? uint64_t{header_.position} + 1 - cap : 0;
      if (held.slots == 0 || held.slots > cap) {
        return damaged("layer ", layer, " has ", held.slots, " slots: must be 1 to ", cap);
      }
      const bool isEmpty = held.first == 0 && held.end == 0;
      if (!isEmpty && (held.first >= held.end || held.end > INT32_MAX || held.end - held.first > held.slots ||
                       (held.slots < cap && held.end > held.slots) || held.first < visible)) {
        return damaged("layer ", layer, " cannot hold positions ", held.first, " to before ", held.end, " in ",
                       held.slots, " slots at position ", header_.position);
      }
      slots_[layer] = held.slots;
      total += held.slots * slotBytes(config_, precision());
      if (total >= kAddressableBytes) return damaged("its layers take more than 4 GiB");
    }
    return {};
  }

  // Keys, values and scales must be finite, scales positive: a state refuses to write others.
  Status checkRows() {
    const KvShape shape = {.precision = precision(),
                           .numKvHeads = config_.numKvHeads,
                           .kDim = static_cast<uint32_t>(config_.kDim()),
                           .vDim = static_cast<uint32_t>(config_.vDim())};
    for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
      const uint64_t rows = layers_[layer].end - layers_[layer].first;
      for (const RowField& field : rowFields(shape)) {
        const uint64_t fieldAt = at_;
        NEEDLE3_RETURN_IF_ERROR(skip(rows * field.bytes, "keys and values"));
        const bool isScale = field.array == nullptr;
        if (isScale || precision() == Precision::kF32) {
          NEEDLE3_RETURN_IF_ERROR(checkFloats(layer, fieldAt, rows * field.bytes / sizeof(float), isScale));
        }
      }
    }
    const uint64_t left = length_ - sizeof(uint32_t) - at_;
    return left == 0 ? Status() : damaged(left, " bytes more than the geometry accounts for");
  }

  Status checkFloats(uint32_t layer, uint64_t at, uint64_t count, bool isScale) {
    float piece[kPieceFloats];
    while (count > 0) {
      const auto length = static_cast<size_t>(std::min<uint64_t>(count, kPieceFloats));
      source_.read(at, piece, length * sizeof(float));
      if (findNonFinite(piece, length) != length)
        return damaged("layer ", layer, " has keys, values or scales that are not finite");
      if (isScale && std::any_of(piece, piece + length, [](float scale) { return !(scale > 0); })) {
        return damaged("layer ", layer, " has scales that are not positive");
      }
      at += length * sizeof(float);
      count -= length;
    }
    return {};
  }

  SnapshotSource& source_;
  const uint64_t length_;
  Header header_{};
  Buffer<uint32_t> words_;
  ModelConfig config_;
  Buffer<LayerHeader> layers_;
  Buffer<uint32_t> slots_;
  uint64_t at_ = 0;
  uint64_t tokensAt_ = 0;
  uint64_t tailsAt_ = 0;
};

namespace {

Status checkSave(const DecodeState& state, size_t fingerprintBytes) {
  if (state.inStep())
    return Status(ErrorCode::kRange) << "the state is in the middle of a step: advance or discard it first";
  if (fingerprintBytes <= kMaxFingerprintBytes) return {};
  return Status(ErrorCode::kRange) << "a fingerprint of " << fingerprintBytes << " bytes: must be at most "
                                   << kMaxFingerprintBytes;
}

}  // namespace

Status snapshotBytes(const DecodeState& state, size_t fingerprintBytes, uint64_t* bytes) {
  NEEDLE3_RETURN_IF_ERROR(checkSave(state, fingerprintBytes));
  *bytes = SnapshotWriter(state, fingerprintBytes).length();
  return {};
}

Status writeSnapshot(const DecodeState& state, std::span<const uint8_t> fingerprint, SnapshotSink& sink) {
  NEEDLE3_RETURN_IF_ERROR(checkSave(state, fingerprint.size()));
  SnapshotWriter(state, fingerprint.size()).write(fingerprint, sink);
  return {};
}

Status restoreSnapshot(SnapshotSource& source, uint64_t length, std::span<const uint8_t> fingerprint, Memory& memory,
                       Scratch& workspace, DecodeState** state) {
  if (fingerprint.size() > kMaxFingerprintBytes) {
    return Status(ErrorCode::kRange) << "a fingerprint of " << fingerprint.size() << " bytes: must be at most "
                                     << kMaxFingerprintBytes;
  }
  SnapshotReader reader(source, length, memory);
  NEEDLE3_RETURN_IF_ERROR(reader.validate(fingerprint));
  return reader.build(memory, workspace, state);
}

}  // namespace needle3
