#ifndef NEEDLE3_TESTS_CHECKSUM_H_
#define NEEDLE3_TESTS_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace needle3::testing {

// CRC-32 of ISO-HDLC, bit by bit as its definition has it.
inline uint32_t crc32(const uint8_t* bytes, size_t length) {
  uint32_t crc = 0xFFFFFFFFU;
  for (size_t i = 0; i < length; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

// Makes the last four bytes the checksum of those before, as docs/snapshot-format.md has it.
inline void sealSnapshot(std::vector<uint8_t>& bytes) {
  if (bytes.size() < sizeof(uint32_t)) return;
  const uint32_t checksum = crc32(bytes.data(), bytes.size() - sizeof(uint32_t));
  std::memcpy(bytes.data() + bytes.size() - sizeof(uint32_t), &checksum, sizeof(checksum));
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_CHECKSUM_H_
