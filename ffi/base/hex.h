// Bytes as hexadecimal digits, and back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace jaxring {

// Two digits for each byte, in lower case.
inline std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Fills `bytes`. False where `text` is not what ToHex makes of as many bytes.
inline bool FromHex(std::string_view text, std::span<char> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    bytes[i / 2] = static_cast<char>((i % 2 == 0 ? 0 : bytes[i / 2] << 4) | digit);
  }
  return true;
}

}  // namespace jaxring
