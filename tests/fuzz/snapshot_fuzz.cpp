// The snapshot reader: arbitrary bytes, and snapshots mutated with their length and checksum made to fit, so that the
// checks behind those are reached. What is restored must be a state: it saves to the same bytes and takes steps.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/scratch.h"
#include "support/checksum.h"
#include "support/state.h"

using needle3::testing::Arena;
using needle3::testing::StatePtr;

namespace {

// Offsets in the header, from docs/snapshot-format.md.
constexpr size_t kLengthAt = 16;
constexpr size_t kFingerprintBytesAt = 32;
constexpr size_t kHeaderBytes = 48;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Appends a row to every layer, in steps of one and of three; attends where the span is held.
void takeSteps(needle3::DecodeState& state) {
  const needle3::ModelConfig& config = state.config();
  const uint64_t widest =
      std::max({config.qDim() + config.attnOutDim(), config.kDim() + config.vDim(),
                uint64_t{config.dModel} * (config.engram.convTaps + 1), config.qDim() * (config.qkvConvTaps + 1),
                config.engram.tables(), uint64_t{config.engram.maxOrder()}});
  if (config.numLayers > 64 || widest > 1 << 16) return;
  const auto ones = [](uint64_t count) { return std::vector<float>(static_cast<size_t>(count), 1.0F); };
  for (uint32_t rows : {1U, 3U}) {
    if (state.position() > INT32_MAX - rows) return;
    std::vector<uint32_t> indices(static_cast<size_t>(config.engram.tables()));
    std::vector<uint8_t> valid(indices.size());
    for (uint32_t i = 0; i < rows; ++i) require(state.pushToken(0).ok(), "a token was refused");
    require(state.engramIndices(indices.data(), valid.data()).ok(), "no Engram indices");
    for (uint32_t site = 0; site < config.engram.sites.size(); ++site) {
      std::vector<float> x = ones(uint64_t{rows} * config.dModel);
      require(state.engramConv(site, ones(uint64_t{config.engram.convTaps} * config.dModel), x).ok(), "no engramConv");
    }
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      std::vector<float> q = ones(rows * config.qDim());
      require(state.conv(layer, needle3::Projection::kQ, ones(config.qkvConvTaps * config.qDim()), q).ok(), "no conv");
      std::vector<float> out = ones(rows * config.attnOutDim());
      std::fill(q.begin(), q.end(), 1.0F);
      const needle3::Status attended =
          state.appendAndAttend(layer, q, ones(rows * config.kDim()), ones(rows * config.vDim()), out);
      require(attended.ok() || attended.code() == needle3::ErrorCode::kRange ||
                  attended.code() == needle3::ErrorCode::kOutOfMemory,
              attended.message());
      if (!attended.ok()) (void)state.writeKv(layer, ones(rows * config.kDim()), ones(rows * config.vDim()));
    }
    require(state.advance(rows).ok(), "the step was not committed");
  }
}

}  // namespace

// Allocations that a few bytes can ask for, but no test needs, fail; the reader must take that as well.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=64"; }

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t maxSize);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t maxSize, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, maxSize);
  if (seed % 8 == 0 || size < kHeaderBytes + sizeof(uint32_t)) return size;
  const uint64_t length = size;
  std::memcpy(data + kLengthAt, &length, sizeof(length));
  const uint32_t checksum = needle3::testing::crc32(data, size - sizeof(uint32_t));
  std::memcpy(data + size - sizeof(uint32_t), &checksum, sizeof(checksum));
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Arena arena;
  {
    StatePtr state;
    const needle3::Status status = needle3::testing::restore({data, size}, {}, arena, &state);
    if (!status.ok()) {
      require(status.code() == needle3::ErrorCode::kSnapshot || status.code() == needle3::ErrorCode::kOutOfMemory,
              "an error of another kind");
      require(status.message()[0] != '\0', "an error without a message");
      require(arena.memory.liveBytes() == 0, "a failed restore has kept memory");
      return 0;
    }
    uint32_t fingerprintBytes = 0;
    std::memcpy(&fingerprintBytes, data + kFingerprintBytesAt, sizeof(fingerprintBytes));
    const std::vector<uint8_t> saved = needle3::testing::save(*state, {data + kHeaderBytes, fingerprintBytes});
    require(saved.size() == size && std::equal(saved.begin(), saved.end(), data), "it saves to other bytes");
    takeSteps(*state);
    state->reset();
    takeSteps(*state);
  }
  require(arena.memory.liveBytes() == 0, "memory is left when the state is destroyed");
  return 0;
}
