// Snapshots: a restored state goes on bit for bit, and no damage goes unnoticed.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "state/state_size.h"
#include "support/checksum.h"
#include "support/driver.h"

namespace needle3::testing {
namespace {

// Offsets in the header, from docs/snapshot-format.md.
constexpr size_t kVersionAt = 8;
constexpr size_t kPositionAt = 12;
constexpr size_t kLengthAt = 16;
constexpr size_t kPrecisionAt = 24;
constexpr size_t kQuantizeQueryAt = 28;
constexpr size_t kFingerprintBytesAt = 32;
constexpr size_t kConfigWordsAt = 36;
constexpr size_t kTokensAt = 40;
constexpr size_t kReservedAt = 44;
constexpr size_t kHeaderBytes = 48;

class Snapshots : public ::testing::Test {
 protected:
  Snapshots() : driver_(smallGeometry()) {}

  StatePtr decoded(const DecodeStateOptions& options, uint32_t position, uint32_t batch = 3) {
    StatePtr state = arena_.create(driver_.geometry(), options);
    EXPECT_NE(state, nullptr);
    driver_.decode(*state, position, batch, nullptr);
    return state;
  }
  // A small snapshot of every part.
  std::vector<uint8_t> snapshot(const DecodeStateOptions& options = {2, Precision::kInt8, true}) {
    return save(*decoded(options, 9));
  }

  static uint32_t wordAt(const std::vector<uint8_t>& bytes, size_t at) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    return word;
  }
  static void setWord(std::vector<uint8_t>& bytes, size_t at, uint32_t word) {
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
  // With the checksum that goes with the rest.
  static std::vector<uint8_t> changed(std::vector<uint8_t> bytes, size_t at, uint32_t word) {
    setWord(bytes, at, word);
    sealSnapshot(bytes);
    return bytes;
  }

  std::string messageOf(std::span<const uint8_t> bytes, std::span<const uint8_t> fingerprint = {}) {
    StatePtr state;
    const uint64_t live = arena_.memory.liveBytes();
    const Status status = restore(bytes, fingerprint, arena_, &state);
    EXPECT_EQ(status.code(), ErrorCode::kSnapshot) << status.message();
    EXPECT_EQ(arena_.memory.liveBytes(), live);
    return status.message();
  }

  Driver driver_;
  Arena arena_;
};

TEST_F(Snapshots, ARestoredStateGoesOnBitForBit) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (uint32_t position : {0U, 1U, 2U, 4U, 5U, 6U, 11U, 23U, 24U, 25U, 60U}) {
      StatePtr state = decoded(options, position);
      const std::vector<uint8_t> saved = save(*state);
      StatePtr restored;
      const Status status = restore(saved, {}, arena_, &restored);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(restored->position(), position);
      EXPECT_EQ(restored->precision(), options.precision);
      EXPECT_EQ(restored->quantizeQuery(), options.quantizeQuery);
      EXPECT_EQ(restored->byteLength(), state->byteLength());
      EXPECT_EQ(tokensOf(*restored), tokensOf(*state));
      EXPECT_TRUE(std::equal(restored->configWords().begin(), restored->configWords().end(),
                             state->configWords().begin(), state->configWords().end()));
      for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(restored->slots(layer), state->slots(layer));
      EXPECT_EQ(save(*restored), saved);
      const uint32_t end = position + 40;
      EXPECT_EQ(difference(driver_.decoded(*restored, end, 7), driver_.decoded(*state, end, 1)), "")
          << "position " << position;
    }
  }
}

TEST_F(Snapshots, TheShippedGeometryIsRestored) {
  const Driver driver(shippedGeometry());
  for (const DecodeStateOptions& options : everyPrecision(4)) {
    StatePtr state = arena_.create(driver.geometry(), options);
    driver.decode(*state, 9, 5, nullptr);
    StatePtr restored;
    ASSERT_TRUE(restore(save(*state), {}, arena_, &restored).ok());
    EXPECT_EQ(difference(driver.decoded(*restored, 12, 3), driver.decoded(*state, 12, 3)), "");
  }
}

TEST_F(Snapshots, TheSameStateGivesTheSameBytesByWhateverWay) {
  for (const DecodeStateOptions& options : everyPrecision(4096)) {
    for (uint32_t position : {3U, 5U, 17U, 50U}) {
      const std::vector<uint8_t> saved = save(*decoded(options, position, 1));
      EXPECT_EQ(save(*decoded(options, position, 50)), saved);
      StatePtr state = decoded(options, position, 4);
      EXPECT_EQ(save(*arena_.fork(*state)), saved);
      uint32_t mark = 0;
      ASSERT_TRUE(state->mark(&mark).ok());
      driver_.decode(*state, position + 9, 2, nullptr);
      driver_.calls(*state, 2, 0, 9, 8, nullptr);
      ASSERT_TRUE(state->rollback(mark).ok());
      EXPECT_EQ(save(*state), saved);
      state->reset();
      driver_.decode(*state, position, 2, nullptr);
      EXPECT_EQ(save(*state), saved);
    }
  }
}

TEST_F(Snapshots, ASnapshotHoldsOnlyTheRowsInUse) {
  for (const DecodeStateOptions& options : everyPrecision(4096)) {
    const ModelConfig config = driver_.geometry().config();
    const size_t empty = save(*decoded(options, 0)).size();
    const size_t saved = save(*decoded(options, 9)).size();
    // Four rows of each of the local layers can still be seen, all nine of the global one, and three tokens.
    EXPECT_EQ(saved - empty, (4 + 9 + 4) * slotBytes(config, options.precision) + 3 * sizeof(uint32_t));
    StatePtr state = decoded(options, 9);
    uint64_t announced = 0;
    ASSERT_TRUE(snapshotBytes(*state, 64, &announced).ok());
    EXPECT_EQ(announced, saved + 64);
  }
}

TEST_F(Snapshots, RowsImportedAfterThePositionAreRestored) {
  StatePtr state = decoded({2, Precision::kF32, false}, 0);
  const ModelConfig config = driver_.geometry().config();
  for (uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(state
                    ->writeKvAt(layer, driver_.inputs(2001 + layer * 3, 0, 12, config.kDim(), 0),
                                driver_.inputs(2002 + layer * 3, 0, 12, config.vDim(), 0), 0)
                    .ok());
  }
  StatePtr restored;
  ASSERT_TRUE(restore(save(*state), {}, arena_, &restored).ok());
  ASSERT_TRUE(restored->setPosition(12).ok());
  ASSERT_TRUE(state->setPosition(12).ok());
  EXPECT_EQ(difference(driver_.decoded(*restored, 20, 3), driver_.decoded(*state, 20, 3)), "");
}

TEST_F(Snapshots, AFingerprintIsStoredAndAskedFor) {
  StatePtr state = decoded({2, Precision::kF32, false}, 9);
  for (size_t length = 1; length <= kMaxFingerprintBytes; ++length) {
    std::vector<uint8_t> fingerprint(length);
    for (size_t i = 0; i < length; ++i) fingerprint[i] = static_cast<uint8_t>(i * 37 + length);
    const std::vector<uint8_t> saved = save(*state, fingerprint);
    StatePtr restored;
    ASSERT_TRUE(restore(saved, fingerprint, arena_, &restored).ok()) << length << " bytes";
    ASSERT_TRUE(restore(saved, {}, arena_, &restored).ok());
    EXPECT_EQ(save(*restored, fingerprint), saved);
    fingerprint[length / 2] ^= 1;
    EXPECT_EQ(messageOf(saved, fingerprint), "its fingerprint is not the one asked for");
    fingerprint[length / 2] ^= 1;
    fingerprint.pop_back();
    if (length > 1) {
      EXPECT_EQ(messageOf(saved, fingerprint), "its fingerprint is not the one asked for");
    }
  }
  const std::vector<uint8_t> fingerprint = {1, 2, 3};
  EXPECT_EQ(messageOf(save(*state), fingerprint), "it was saved without a fingerprint");
}

TEST_F(Snapshots, AFingerprintOfMoreThan64BytesIsRefused) {
  StatePtr state = decoded({2, Precision::kF32, false}, 2);
  const std::vector<uint8_t> fingerprint(kMaxFingerprintBytes + 1);
  VectorSink sink;
  uint64_t bytes = 0;
  EXPECT_EQ(writeSnapshot(*state, fingerprint, sink).code(), ErrorCode::kRange);
  EXPECT_TRUE(sink.bytes.empty());
  EXPECT_EQ(snapshotBytes(*state, fingerprint.size(), &bytes).code(), ErrorCode::kRange);
  StatePtr restored;
  EXPECT_EQ(restore(save(*state), fingerprint, arena_, &restored).code(), ErrorCode::kRange);
}

TEST_F(Snapshots, ATruncationAtAnyByteIsNoticed) {
  const std::vector<uint8_t> saved = snapshot();
  for (size_t length = 0; length < saved.size(); ++length) {
    // At the exact end of an allocation, so that a sanitizer sees any read past it.
    const std::vector<uint8_t> truncated(saved.begin(), saved.begin() + static_cast<ptrdiff_t>(length));
    const std::string message = messageOf(truncated);
    EXPECT_EQ(message.substr(0, 9), "truncated") << length << " bytes: " << message;
  }
}

TEST_F(Snapshots, AnyFlippedBitIsNoticed) {
  std::vector<uint8_t> saved = snapshot();
  for (size_t at = 0; at < saved.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      saved[at] = static_cast<uint8_t>(saved[at] ^ 1 << bit);
      EXPECT_NE(messageOf(saved), "") << "byte " << at << ", bit " << bit;
      saved[at] = static_cast<uint8_t>(saved[at] ^ 1 << bit);
    }
  }
  StatePtr restored;
  EXPECT_TRUE(restore(saved, {}, arena_, &restored).ok());
}

TEST_F(Snapshots, TrailingBytesAreNoticed) {
  std::vector<uint8_t> saved = snapshot();
  const std::string size = std::to_string(saved.size());
  saved.push_back(0);
  EXPECT_EQ(messageOf(saved), "trailing bytes: " + std::to_string(saved.size()) + " where " + size + " were written");
  // And where the length and the checksum are made to fit them.
  saved.insert(saved.end() - 4, 3, uint8_t{0});
  EXPECT_NE(messageOf(changed(saved, kLengthAt, static_cast<uint32_t>(saved.size()))), "");
}

TEST_F(Snapshots, OtherBytesAndOtherVersionsAreNamedForWhatTheyAre) {
  const std::vector<uint8_t> saved = snapshot();
  std::vector<uint8_t> other = saved;
  other[0] = 'X';
  sealSnapshot(other);
  EXPECT_EQ(messageOf(other), "these bytes are no decode state: they do not begin with N3STATE");
  EXPECT_EQ(messageOf(changed(saved, kVersionAt, 2)), "version 2: this package reads version 1");
  EXPECT_EQ(messageOf(changed(saved, kVersionAt, 0)), "version 0: this package reads version 1");
  std::vector<uint8_t> flipped = saved;
  flipped[saved.size() / 2] ^= 4;
  EXPECT_EQ(messageOf(flipped), "the checksum does not match: the bytes are damaged");
}

TEST_F(Snapshots, AHeaderThatCannotBeIsRefusedEvenWithItsChecksum) {
  const std::vector<uint8_t> saved = snapshot();
  const std::vector<uint8_t> plain = snapshot({2, Precision::kF32, false});
  EXPECT_NE(messageOf(changed(saved, kPrecisionAt, 2)), "");
  EXPECT_NE(messageOf(changed(saved, kPrecisionAt, 0)), "");  // f32 rows do not fit; nor does a quantised query
  EXPECT_NE(messageOf(changed(plain, kPrecisionAt, 1)), "");
  EXPECT_NE(messageOf(changed(plain, kQuantizeQueryAt, 1)), "");
  EXPECT_NE(messageOf(changed(saved, kQuantizeQueryAt, 2)), "");
  EXPECT_NE(messageOf(changed(saved, kReservedAt, 1)), "");
  EXPECT_NE(messageOf(changed(saved, kPositionAt, 0x80000000U)), "");
  EXPECT_NE(messageOf(changed(saved, kPositionAt, UINT32_MAX)), "");
  EXPECT_NE(messageOf(changed(saved, kPositionAt, 30)), "");  // its rows could not be seen from there
  for (size_t at : {kFingerprintBytesAt, kConfigWordsAt, kTokensAt}) {
    for (uint32_t value : {1U, 4U, 65U, 1000U, 0x3FFFFFFFU, 0x40000000U, 0x7FFFFFFFU, 0x80000000U, UINT32_MAX}) {
      if (value == wordAt(saved, at)) continue;
      EXPECT_NE(messageOf(changed(saved, at, value)), "") << "offset " << at << ", " << value;
    }
  }
  for (uint32_t high : {1U, UINT32_MAX}) EXPECT_NE(messageOf(changed(saved, kLengthAt + 4, high)), "");
}

TEST_F(Snapshots, AGeometryThatCannotBeOrDoesNotFitIsRefusedWhateverItsSizes) {
  const std::vector<uint8_t> saved = snapshot();
  const uint32_t words = wordAt(saved, kConfigWordsAt);
  for (uint32_t word = 0; word < words; ++word) {
    const size_t at = kHeaderBytes + word * sizeof(uint32_t);
    for (uint32_t value : {0U, 1U, 2U, 3U, 7U, 0x10000U, 0x7FFFFFFFU, 0x80000000U, UINT32_MAX}) {
      StatePtr restored;
      const uint64_t live = arena_.memory.liveBytes();
      const Status status = restore(changed(saved, at, value), {}, arena_, &restored);
      // Fields that the state does not read may have any value; all else shows.
      if (!status.ok()) {
        EXPECT_EQ(status.code(), ErrorCode::kSnapshot) << "word " << word << ", " << value;
      }
      if (status.ok()) {
        EXPECT_EQ(save(*restored), changed(saved, at, value));
      }
      restored.reset();
      EXPECT_EQ(arena_.memory.liveBytes(), live);
    }
  }
}

TEST_F(Snapshots, LayersThatCannotBeAreRefusedEvenWithTheirChecksum) {
  const std::vector<uint8_t> saved = snapshot();
  const size_t layersAt = kHeaderBytes + (wordAt(saved, kConfigWordsAt) + wordAt(saved, kTokensAt)) * sizeof(uint32_t);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t field = 0; field < 3; ++field) {
      const size_t at = layersAt + (layer * 3 + field) * sizeof(uint32_t);
      for (uint32_t value : {0U, 1U, 3U, 4U, 8U, 10U, 25U, 0x7FFFFFFFU, 0x80000000U, UINT32_MAX}) {
        if (value == wordAt(saved, at)) continue;
        StatePtr restored;
        const Status status = restore(changed(saved, at, value), {}, arena_, &restored);
        // Only another number of slots that could have held the rows is a state as well.
        if (field == 0 && status.ok()) {
          EXPECT_EQ(restored->slots(layer), value);
          EXPECT_EQ(save(*restored), changed(saved, at, value));
          continue;
        }
        EXPECT_EQ(status.code(), ErrorCode::kSnapshot) << "layer " << layer << ", field " << field << ", " << value;
      }
    }
  }
}

TEST_F(Snapshots, TokensOutsideTheVocabularyAreRefused) {
  const std::vector<uint8_t> saved = snapshot();
  const size_t tokensAt = kHeaderBytes + wordAt(saved, kConfigWordsAt) * sizeof(uint32_t);
  EXPECT_EQ(messageOf(changed(saved, tokensAt + 4, 100)), "token 100: must be below vocabSize, 100");
}

TEST_F(Snapshots, KeysValuesAndScalesThatAStateWouldRefuseAreRefused) {
  const uint32_t nan = 0x7FC00000;
  const uint32_t infinity = 0x7F800000;
  // The last rows of the last layer stand before the checksum: values in f32, scales in int8.
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    const std::vector<uint8_t> saved = snapshot(options);
    for (uint32_t bits : {nan, infinity, infinity | 0x80000000U}) {
      EXPECT_EQ(messageOf(changed(saved, saved.size() - 8, bits)),
                "layer 2 has keys, values or scales that are not finite");
    }
    if (options.precision == Precision::kF32) continue;
    for (uint32_t bits : {0U, 0x80000000U, 0xBF800000U}) {
      EXPECT_EQ(messageOf(changed(saved, saved.size() - 8, bits)), "layer 2 has scales that are not positive");
    }
  }
}

TEST_F(Snapshots, ASizeThatCouldNeverFitIsASnapshotErrorAndAllocatesNothing) {
  // 2^31 − 1 slots of a layer that holds nothing: no rows, so that the bytes are few.
  Geometry geometry = smallGeometry();
  geometry.fields.maxSeqLen = INT32_MAX;
  StatePtr state = arena_.create(geometry, {1, Precision::kF32, false});
  std::vector<uint8_t> saved = save(*state);
  const size_t layersAt = kHeaderBytes + wordAt(saved, kConfigWordsAt) * sizeof(uint32_t);
  EXPECT_EQ(messageOf(changed(saved, layersAt + 12, INT32_MAX)), "its layers take more than 4 GiB");
}

}  // namespace
}  // namespace needle3::testing
