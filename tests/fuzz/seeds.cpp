// Writes the seed corpora that are committed in tests/fuzz/corpus: `needle3_seeds tests/fuzz/corpus`.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/operations.h"
#include "support/random.h"
#include "support/state.h"

using namespace needle3::testing;

namespace {

bool writeFile(const std::filesystem::path& path, const std::vector<uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return !file.fail();
}

std::vector<uint8_t> randomBytes(Random& random, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next() >> 24);
  return bytes;
}

// A state of a small geometry at `position`, saved.
std::vector<uint8_t> snapshotAt(Geometry geometry, uint32_t position, const needle3::DecodeStateOptions& options,
                                size_t fingerprintBytes) {
  Arena arena;
  const needle3::ModelConfig config = geometry.config();
  const StatePtr state = arena.create(geometry, options);
  Random random(position + 1);
  for (uint32_t p = 0; state && p < position; ++p) {
    bool ok = state->pushToken(random.below(config.vocabSize)).ok();
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      ok = ok && state->writeKv(layer, random.floats(config.kDim()), random.floats(config.vDim())).ok();
    }
    if (!ok || !state->advance(1).ok()) return {};
  }
  return state ? save(*state, std::vector<uint8_t>(fingerprintBytes, 7)) : std::vector<uint8_t>();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: needle3_seeds <directory>\n");
    return 2;
  }
  const std::filesystem::path operations = std::filesystem::path(argv[1]) / "operations";
  const std::filesystem::path snapshots = std::filesystem::path(argv[1]) / "snapshot";
  std::filesystem::create_directories(operations);
  std::filesystem::create_directories(snapshots);
  bool ok = true;

  for (uint32_t seed = 1; seed <= 16; ++seed) {
    Random random(seed * 40503);
    ok = writeFile(operations / ("random-" + std::to_string(seed)), randomBytes(random, 150 + seed * 20)) && ok;
  }

  Geometry tiny = smallGeometry();
  tiny.fields.numLayers = 2;
  tiny.sites = {0};
  tiny.fields.numHeads = tiny.fields.numKvHeads = 1;
  tiny.fields.qkHeadDim = tiny.fields.vHeadDim = tiny.fields.dModel = 2;
  tiny.fields.maxSeqLen = 6;
  tiny.fields.slidingWindow = 3;
  Geometry plain = tiny;
  plain.orders = {};
  plain.sites = {};
  plain.globalLayers = {};
  plain.fields.slidingWindow = plain.fields.qkvConvTaps = plain.fields.engram.convTaps = 0;
  const struct {
    const char* name;
    Geometry geometry;
    uint32_t position;
    needle3::DecodeStateOptions options;
    size_t fingerprintBytes;
  } states[] = {
      {"new-f32", tiny, 0, {1, needle3::Precision::kF32, false}, 0},
      {"grown-f32", tiny, 2, {1, needle3::Precision::kF32, false}, 3},
      {"wrapped-f32", tiny, 9, {1, needle3::Precision::kF32, false}, 0},
      {"grown-int8", tiny, 2, {1, needle3::Precision::kInt8, false}, 64},
      {"wrapped-int8", tiny, 9, {6, needle3::Precision::kInt8, true}, 0},
      {"plain-f32", plain, 4, {3, needle3::Precision::kF32, false}, 0},
      {"plain-int8", plain, 8, {3, needle3::Precision::kInt8, true}, 1},
  };
  for (const auto& state : states) {
    const std::vector<uint8_t> bytes =
        snapshotAt(state.geometry, state.position, state.options, state.fingerprintBytes);
    ok = !bytes.empty() && writeFile(snapshots / state.name, bytes) && ok;
  }
  if (!ok) std::fprintf(stderr, "a seed could not be made or written\n");
  return ok ? 0 : 1;
}
