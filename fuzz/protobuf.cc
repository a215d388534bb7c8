// Fuzzes the reader of protocol buffers with any bytes, and with messages within them. Fields that were read are
// written, and read as the same again. A field is replaced, and all others stay as they were.
#include "base/protobuf.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "input.h"

using namespace jaxring;

namespace {

constexpr int kMostDepth = 8;

// False for what is no message.
bool Read(std::string_view data, std::vector<protobuf::Field>* fields) {
  try {
    protobuf::Field field;
    for (protobuf::Reader reader(data); reader.Next(field);) {
      FUZZ_CHECK(reader.rest().data() + reader.rest().size() == data.data() + data.size());
      if (field.wire != protobuf::kVarint) {
        FUZZ_CHECK(field.data.data() >= data.data());
        FUZZ_CHECK(field.data.data() + field.data.size() == reader.rest().data());
      }
      fields->push_back(field);
    }
    return true;
  } catch (const std::out_of_range&) {
    return false;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

std::string Written(const std::vector<protobuf::Field>& fields) {
  std::string message;
  for (const protobuf::Field& field : fields) {
    protobuf::AppendVarint(message, field.number << 3 | static_cast<uint64_t>(field.wire));
    if (field.wire == protobuf::kVarint) {
      protobuf::AppendVarint(message, field.value);
      continue;
    }
    if (field.wire == protobuf::kBytes) protobuf::AppendVarint(message, field.data.size());
    message.append(field.data);
  }
  return message;
}

std::string Joined(const std::vector<std::string_view>& pieces) {
  std::string message;
  for (const std::string_view piece : pieces) message.append(piece);
  return message;
}

// A message with a mark in place of its field or fields of that number, against the same from the fields one by one.
void CheckReplaced(std::string_view data, const std::vector<protobuf::Field>& fields, uint64_t number, bool all) {
  const std::string mark = Written({{number, protobuf::kBytes, 0, "mark"}});
  const std::string replaced = Joined(protobuf::Replaced(data, number, all, {mark}));
  std::vector<protobuf::Field> expected, found;
  bool marked = false;
  for (const protobuf::Field& field : fields) {
    if (field.number != number || (marked && !all)) {
      expected.push_back(field);
    } else if (!marked) {
      expected.push_back({number, protobuf::kBytes, 0, "mark"});
      marked = true;
    }
  }
  if (!marked) expected.push_back({number, protobuf::kBytes, 0, "mark"});
  FUZZ_CHECK(Read(replaced, &found));
  FUZZ_CHECK(Written(found) == Written(expected));
}

void Check(std::string_view data, int depth) {
  std::vector<protobuf::Field> fields, again;
  if (!Read(data, &fields)) return;
  const std::string written = Written(fields);
  FUZZ_CHECK(written.size() <= data.size());  // numbers may have come in more bytes than they need
  FUZZ_CHECK(Read(written, &again));
  FUZZ_CHECK(again.size() == fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    const protobuf::Field &one = fields[i], &other = again[i];
    FUZZ_CHECK(one.number == other.number && one.wire == other.wire);
    FUZZ_CHECK(one.wire == protobuf::kVarint ? one.value == other.value : one.data == other.data);
    if (one.wire == protobuf::kBytes && depth < kMostDepth) Check(one.data, depth + 1);
  }
  // A number that is there, and one that is most often not.
  for (const uint64_t number : {fields.empty() ? uint64_t{1} : fields.back().number, uint64_t{7}}) {
    CheckReplaced(data, fields, number, false);
    CheckReplaced(data, fields, number, true);
  }
  FUZZ_CHECK(Joined(protobuf::Replaced(data, ~uint64_t{0}, true, {})) == data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Check({reinterpret_cast<const char*>(data), size}, 0);
  return 0;
}
