#include "base/status.h"

namespace needle3 {

Status& Status::operator<<(const char* text) {
  while (*text != '\0' && length_ + 1U < kCapacity) message_[length_++] = *text++;
  message_[length_] = '\0';
  return *this;
}

Status& Status::appendNumber(uint64_t number) {
  char digits[21];
  size_t begin = sizeof(digits) - 1;
  digits[begin] = '\0';
  do {
    digits[--begin] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return *this << digits + begin;
}

Status outOfMemory(uint64_t bytes) {
  Status status(ErrorCode::kOutOfMemory);
  status << "no room for " << bytes << " bytes";
  return status;
}

}  // namespace needle3
