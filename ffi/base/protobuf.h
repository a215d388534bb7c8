// Protobuf's wire format: a message is a sequence of fields, each with a number, a wire type and a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace jaxring::protobuf {

inline constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

struct Field {
  uint64_t number = 0;
  int wire = 0;
  uint64_t value = 0;     // of a varint
  std::string_view data;  // of all others
};

// Reads a message field by field. Throws std::out_of_range or std::invalid_argument for what is no message.
class Reader {
 public:
  explicit Reader(std::string_view data) : rest_(data) {}

  bool Next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t key = Varint();
    field.number = key >> 3;
    field.wire = static_cast<int>(key & 7);
    uint64_t size = 0;
    switch (field.wire) {
      case kVarint:
        field.value = Varint();
        return true;
      case kBytes:
        size = Varint();
        break;
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      default:
        throw std::invalid_argument("wire type " + std::to_string(field.wire));
    }
    if (size > rest_.size()) throw std::invalid_argument("a field reaches past the end of its message");
    field.data = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  // The next field of that number.
  bool Next(Field& field, uint64_t number) {
    while (Next(field)) {
      if (field.number == number) return true;
    }
    return false;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (size_t i = 0; i < rest_.size(); ++i) {
      if (i == 10) throw std::invalid_argument("a number of more than 64 bits");
      const uint8_t byte = static_cast<uint8_t>(rest_[i]);
      value |= static_cast<uint64_t>(byte & 127) << (7 * i);
      if (byte < 128) {
        rest_.remove_prefix(i + 1);
        return value;
      }
    }
    throw std::out_of_range("a number has no end");
  }

  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// The message with these pieces in place of its first field of that number, or of all of them; at its end if there is
// none. As parts of `data` and `with`, to be put one after another. Throws as Reader does.
inline std::vector<std::string_view> Replaced(std::string_view data, uint64_t number, bool all,
                                              const std::vector<std::string_view>& with) {
  std::vector<std::string_view> pieces;
  bool found = false;
  Field field;
  Reader reader(data);
  for (std::string_view before = reader.rest(); reader.Next(field); before = reader.rest()) {
    if (field.number != number || (found && !all)) {
      pieces.push_back(before.substr(0, before.size() - reader.rest().size()));
    } else if (!found) {
      pieces.insert(pieces.end(), with.begin(), with.end());
      found = true;
    }
  }
  if (!found) pieces.insert(pieces.end(), with.begin(), with.end());
  return pieces;
}

inline void AppendVarint(std::string& to, uint64_t value) {
  for (; value > 127; value >>= 7) to.push_back(static_cast<char>((value & 127) | 128));
  to.push_back(static_cast<char>(value));
}

}  // namespace jaxring::protobuf
