#ifndef NEEDLE3_BASE_CRC32_H_
#define NEEDLE3_BASE_CRC32_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace needle3 {

// CRC-32 of ISO-HDLC (the one of Ethernet, gzip and PNG): polynomial 0x04C11DB7, reflected. Four bytes a turn (Kounavis
// and Berry, "slicing"), with tables that are made when they are needed: a page would have to download them.
class Crc32 {
 public:
  Crc32() {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
      tables_[0][byte] = crc;
    }
    for (size_t table = 1; table < tables_.size(); ++table) {
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint32_t crc = tables_[table - 1][byte];
        tables_[table][byte] = crc >> 8 ^ tables_[0][crc & 0xFF];
      }
    }
  }

  void add(const void* bytes, size_t length) {
    const auto* byte = static_cast<const uint8_t*>(bytes);
    for (; length >= sizeof(uint32_t); length -= sizeof(uint32_t), byte += sizeof(uint32_t)) {
      uint32_t word = 0;
      std::memcpy(&word, byte, sizeof(word));
      word ^= state_;
      state_ = tables_[3][word & 0xFF] ^ tables_[2][word >> 8 & 0xFF] ^ tables_[1][word >> 16 & 0xFF] ^
               tables_[0][word >> 24];
    }
    for (; length > 0; --length, ++byte) state_ = tables_[0][(state_ ^ *byte) & 0xFF] ^ state_ >> 8;
  }
  [[nodiscard]] uint32_t value() const { return ~state_; }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_;
  uint32_t state_ = 0xFFFFFFFFU;
};

}  // namespace needle3

#endif  // NEEDLE3_BASE_CRC32_H_
