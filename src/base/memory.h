#ifndef NEEDLE3_BASE_MEMORY_H_
#define NEEDLE3_BASE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace needle3 {

// Where the bytes of states, marks and arrays come from: malloc, counted.
//
// It must outlive everything allocated from it. Not thread-safe: one per thread, or one per WebAssembly instance.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // `bytes` uninitialised bytes (at least one, so that success is never null), or null.
  void* allocate(uint64_t bytes);
  // `bytes` as given to allocate. Null is allowed.
  void release(void* pointer, uint64_t bytes);
  // Gives the end of a block back; it keeps its first `newBytes`, perhaps elsewhere. Never fails.
  void* shrink(void* pointer, uint64_t bytes, uint64_t newBytes);
  // Bytes allocated and not yet released.
  [[nodiscard]] uint64_t liveBytes() const { return liveBytes_; }

  // For tests of failure: the allocation after the next `count` ones fails, and all after it until disarmed.
  void failAfter(uint64_t count) { remaining_ = count; }
  void neverFail() { remaining_ = UINT64_MAX; }

 private:
  uint64_t liveBytes_ = 0;
  uint64_t remaining_ = UINT64_MAX;
};

// memcpy for what is often a single row. WebAssembly's memory.copy is a call out of the module in today's engines,
// which costs more than a short row does.
inline void copyBytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kStep = 16;
  constexpr size_t kLong = 1024;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (bytes < kLong) {
    for (; bytes >= kStep; bytes -= kStep, target += kStep, source += kStep) {
      std::memcpy(target, source, kStep);
      asm volatile("" ::: "memory");  // or compilers see what the loop does, and call memcpy
    }
    for (; bytes >= sizeof(uint32_t);
         bytes -= sizeof(uint32_t), target += sizeof(uint32_t), source += sizeof(uint32_t)) {
      std::memcpy(target, source, sizeof(uint32_t));
      asm volatile("" ::: "memory");
    }
  }
  if (bytes != 0) std::memcpy(target, source, bytes);
}

// An owned array of trivial elements, of fixed length between calls to `allocate` and `swap`. Empty until allocated.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit Buffer(Memory& memory) : memory_(&memory) {}
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  // Replaces the contents by `size` uninitialised elements. False, and nothing changed, when memory runs out.
  [[nodiscard]] bool allocate(uint64_t size) {
    if (size > UINT64_MAX / sizeof(T)) return false;
    void* data = size == 0 ? nullptr : memory_->allocate(size * sizeof(T));
    if (data == nullptr && size != 0) return false;
    reset();
    data_ = static_cast<T*>(data);
    size_ = static_cast<size_t>(size);
    return true;
  }

  // Keeps the first min(size(), size) elements. False, and nothing changed, when memory runs out.
  [[nodiscard]] bool resize(uint64_t size) {
    Buffer other(*memory_);
    if (!other.allocate(size)) return false;
    const size_t kept = size_ < other.size_ ? size_ : other.size_;
    if (kept != 0) std::memcpy(other.data_, data_, kept * sizeof(T));
    swap(other);
    return true;
  }

  // Keeps the first `size` ≤ size() elements. Never fails.
  void shrink(uint64_t size) {
    if (size == 0) return reset();
    data_ = static_cast<T*>(memory_->shrink(data_, size_ * sizeof(T), size * sizeof(T)));
    size_ = static_cast<size_t>(size);
  }

  void reset() {
    if (data_ != nullptr) memory_->release(data_, size_ * sizeof(T));
    data_ = nullptr;
    size_ = 0;
  }
  void swap(Buffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void zero() {
    if (size_ != 0) std::memset(data_, 0, size_ * sizeof(T));
  }

  [[nodiscard]] Memory& memory() const { return *memory_; }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  Memory* memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// An owned array of objects that are built once, in place, and destroyed in reverse.
template <typename T>
class ObjectArray {
 public:
  explicit ObjectArray(Memory& memory) : storage_(memory) {}
  ObjectArray(ObjectArray&& other) noexcept
      : storage_(std::move(other.storage_)), built_(std::exchange(other.built_, 0)) {}
  ObjectArray(const ObjectArray&) = delete;
  ObjectArray& operator=(const ObjectArray&) = delete;
  ObjectArray& operator=(ObjectArray&&) = delete;
  ~ObjectArray() {
    while (built_ > 0) (*this)[--built_].~T();
  }

  // Room for `capacity` objects; call once, before emplace. False when memory runs out.
  [[nodiscard]] bool reserve(uint64_t capacity) { return storage_.allocate(capacity); }
  template <typename... Args>
  T& emplace(Args&&... args) {
    return *new (storage_.data() + built_++) T(std::forward<Args>(args)...);
  }

  [[nodiscard]] size_t size() const { return built_; }
  T& operator[](size_t i) { return *std::launder(reinterpret_cast<T*>(storage_.data() + i)); }
  const T& operator[](size_t i) const { return *std::launder(reinterpret_cast<const T*>(storage_.data() + i)); }
  T* begin() { return built_ == 0 ? nullptr : &(*this)[0]; }
  T* end() { return begin() + built_; }
  const T* begin() const { return built_ == 0 ? nullptr : &(*this)[0]; }
  const T* end() const { return begin() + built_; }

 private:
  struct alignas(T) Slot {
    std::byte bytes[sizeof(T)];
  };
  Buffer<Slot> storage_;
  size_t built_ = 0;
};

}  // namespace needle3

#endif  // NEEDLE3_BASE_MEMORY_H_
