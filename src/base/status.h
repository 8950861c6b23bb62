#ifndef NEEDLE3_BASE_STATUS_H_
#define NEEDLE3_BASE_STATUS_H_

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace needle3 {

// What went wrong. The TypeScript wrapper mirrors this list, in this order, as ERROR_CODES (web/src/core/module.ts).
enum class ErrorCode : uint8_t {
  kOk,
  kConfig,       // a geometry field is wrong
  kShape,        // an array's length does not fit the geometry, or rows disagree in number
  kRange,        // a layer, site, position, count, token or mark out of range; a call that the moment refuses
  kType,         // TypeScript only: an argument of the wrong JavaScript type
  kNonFinite,    // NaN or infinity where it would poison later steps
  kOutOfMemory,  // an allocation failed; nothing has changed
  kDisposed,     // TypeScript only: use after dispose
  kSnapshot,     // bytes that are no valid snapshot, or not the one asked for
  kUnsupported,  // a precision, bit width or combination that does not exist here
  kLoad,         // TypeScript only: the module could not be loaded
};

// The outcome of a call: success, or a code and a message for a person. A call that fails has changed nothing.
//
// The message is part of the value, so that no state outlives the call; its bytes are written only on failure, and a
// successful return costs one store. Build one with `Status(code) << "layer " << layer << …`; text past the capacity
// is cut.
class [[nodiscard]] Status {
 public:
  Status() : code_(ErrorCode::kOk) {}
  explicit Status(ErrorCode code) : code_(code) { message_[0] = '\0'; }

  [[nodiscard]] bool ok() const { return code_ == ErrorCode::kOk; }
  [[nodiscard]] ErrorCode code() const { return code_; }
  // Null-terminated; "" on success.
  [[nodiscard]] const char* message() const { return ok() ? "" : message_; }

  Status& operator<<(const char* text);
  template <std::unsigned_integral T>
  Status& operator<<(T number) {
    return appendNumber(number);
  }

 private:
  Status& appendNumber(uint64_t number);

  static constexpr size_t kCapacity = 240;
  ErrorCode code_;
  uint8_t length_ = 0;
  char message_[kCapacity];
};

// kOutOfMemory; `bytes` is about what the call needed.
Status outOfMemory(uint64_t bytes);

// Leaves the enclosing function with the error, if `expression` gives one.
#define NEEDLE3_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::needle3::Status needle3_status = (expression); !needle3_status.ok()) { \
      return needle3_status;                                                     \
    }                                                                            \
  } while (false)

}  // namespace needle3

#endif  // NEEDLE3_BASE_STATUS_H_
