#ifndef NEEDLE3_TESTS_STATE_H_
#define NEEDLE3_TESTS_STATE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "state/decode_state.h"
#include "state/snapshot.h"
#include "support/geometry.h"

namespace needle3::testing {

struct DestroyState {
  void operator()(DecodeState* state) const { DecodeState::destroy(state); }
};
using StatePtr = std::unique_ptr<DecodeState, DestroyState>;

// What states are made from: counted memory and shared scratch.
struct Arena {
  Memory memory;
  Scratch workspace;

  // Null where creation fails.
  StatePtr create(const Geometry& geometry, const DecodeStateOptions& options) {
    DecodeState* state = nullptr;
    const Status status = DecodeState::create(geometry.config(), options, memory, workspace, &state);
    return StatePtr(status.ok() ? state : nullptr);
  }
  StatePtr fork(const DecodeState& state) {
    DecodeState* other = nullptr;
    const Status status = state.fork(&other);
    return StatePtr(status.ok() ? other : nullptr);
  }
};

struct VectorSink : SnapshotSink {
  std::vector<uint8_t> bytes;
  void write(const void* data, size_t length) override {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), begin, begin + length);
  }
};

struct SpanSource : SnapshotSource {
  explicit SpanSource(std::span<const uint8_t> snapshot) : bytes(snapshot) {}
  std::span<const uint8_t> bytes;
  void read(uint64_t offset, void* destination, size_t length) override {
    // A copy of nothing may come with no address.
    if (length != 0) std::memcpy(destination, bytes.subspan(static_cast<size_t>(offset), length).data(), length);
  }
};

inline std::vector<uint8_t> save(const DecodeState& state, std::span<const uint8_t> fingerprint = {}) {
  VectorSink sink;
  const Status status = writeSnapshot(state, fingerprint, sink);
  if (!status.ok()) sink.bytes.clear();
  return sink.bytes;
}

inline Status restore(std::span<const uint8_t> bytes, std::span<const uint8_t> fingerprint, Arena& arena,
                      StatePtr* state) {
  SpanSource source(bytes);
  DecodeState* restored = nullptr;
  Status status = restoreSnapshot(source, bytes.size(), fingerprint, arena.memory, arena.workspace, &restored);
  state->reset(status.ok() ? restored : nullptr);
  return status;
}

inline std::vector<uint32_t> tokensOf(const DecodeState& state) {
  std::vector<uint32_t> tokens(state.tokenCount());
  if (!tokens.empty()) state.copyTokens(tokens.data());
  return tokens;
}

inline uint32_t bitsOf(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The first index at which two arrays differ in a bit (two NaNs are equal), or the length.
inline size_t firstDifference(std::span<const float> a, std::span<const float> b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && (bitsOf(a[i]) == bitsOf(b[i]) || (a[i] != a[i] && b[i] != b[i]))) ++i;
  return i;
}
inline bool sameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && firstDifference(a, b) == a.size();
}

// Equal as numbers: the sign of zero is free.
inline bool sameNumbers(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i])) return false;
  }
  return true;
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_STATE_H_
