#ifndef NEEDLE3_STATE_SNAPSHOT_H_
#define NEEDLE3_STATE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/scratch.h"
#include "base/status.h"
#include "state/decode_state.h"

namespace needle3 {

// Snapshots of a decode state: docs/snapshot-format.md has the bytes. They are streamed in pieces, so that neither
// side needs the whole of one in memory beside the state.

inline constexpr size_t kMaxFingerprintBytes = 64;

// Takes the next `length` bytes.
struct SnapshotSink {
  virtual void write(const void* bytes, size_t length) = 0;

 protected:
  ~SnapshotSink() = default;
};

// Copies `length` bytes from `offset` on, which lie within the length given to restoreSnapshot.
struct SnapshotSource {
  virtual void read(uint64_t offset, void* bytes, size_t length) = 0;

 protected:
  ~SnapshotSource() = default;
};

// What writeSnapshot will write. kRange in the middle of a step, or a fingerprint of more than kMaxFingerprintBytes.
Status snapshotBytes(const DecodeState& state, size_t fingerprintBytes, uint64_t* bytes);
// The same state gives the same bytes. Errors as snapshotBytes; then nothing has been written.
Status writeSnapshot(const DecodeState& state, std::span<const uint8_t> fingerprint, SnapshotSink& sink);
// Validates every byte before it allocates the state. A fingerprint that is not empty must be the snapshot's own.
// kSnapshot says what is wrong with the bytes; kOutOfMemory.
Status restoreSnapshot(SnapshotSource& source, uint64_t length, std::span<const uint8_t> fingerprint, Memory& memory,
                       Scratch& workspace, DecodeState** state);

}  // namespace needle3

#endif  // NEEDLE3_STATE_SNAPSHOT_H_
