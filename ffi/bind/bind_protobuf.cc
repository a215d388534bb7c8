#include "bind/bind_protobuf.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/protobuf.h"

namespace nb = nanobind;

namespace jaxring {
namespace {

using protobuf::AppendVarint;
using protobuf::Field;
using protobuf::kBytes;
using protobuf::kFixed32;
using protobuf::kFixed64;
using protobuf::kVarint;

class Reader : public protobuf::Reader {
 public:
  using protobuf::Reader::Reader;
  explicit Reader(const nb::bytes& bytes) : protobuf::Reader(std::string_view(bytes.c_str(), bytes.size())) {}
};

nb::bytes Bytes(std::string_view data) { return nb::bytes(data.data(), data.size()); }

nb::object Value(const Field& field) {
  return field.wire == kVarint ? nb::object(nb::int_(field.value)) : nb::object(Bytes(field.data));
}

nb::tuple Varint(const nb::bytes& data, size_t at) {
  const std::string_view all(data.c_str(), data.size());
  Reader reader(all.substr(std::min(at, all.size())));
  const uint64_t number = reader.Varint();
  return nb::make_tuple(number, all.size() - reader.rest().size());
}

nb::list Fields(const nb::bytes& data) {
  nb::list found;
  Field field;
  for (Reader reader(data); reader.Next(field);) {
    found.append(nb::make_tuple(field.number, field.wire, Value(field)));
  }
  return found;
}

// The methods below read a message to its end also where they have found what they look for: so a broken one is
// noticed. Only Holding does not, since it goes through whole modules and most have nothing to find.

int64_t Number(const nb::bytes& data, uint64_t number, int64_t missing) {
  bool found = false;
  Field field;
  for (Reader reader(data); reader.Next(field, number);) {
    if (!found && field.wire == kVarint) {
      missing = static_cast<int64_t>(field.value);
      found = true;
    }
  }
  return missing;
}

nb::bytes Data(const nb::bytes& data, uint64_t number) {
  std::string_view first;
  bool found = false;
  Field field;
  for (Reader reader(data); reader.Next(field, number);) {
    if (!found && field.wire != kVarint) {
      first = field.data;
      found = true;
    }
  }
  return Bytes(first);
}

nb::list All(const nb::bytes& data, uint64_t number) {
  nb::list found;
  Field field;
  for (Reader reader(data); reader.Next(field, number);) {
    if (field.wire != kVarint) found.append(Bytes(field.data));
  }
  return found;
}

nb::list Numbers(const nb::bytes& data, uint64_t number) {
  nb::list found;
  Field field;
  for (Reader reader(data); reader.Next(field, number);) {
    if (field.wire == kVarint) found.append(nb::int_(static_cast<int64_t>(field.value)));
    if (field.wire != kBytes) continue;
    for (Reader packed(field.data); !packed.empty();) {
      found.append(nb::int_(static_cast<int64_t>(packed.Varint())));
    }
  }
  return found;
}

nb::list Rows(const nb::bytes& data, uint64_t number, const std::vector<uint64_t>& wanted) {
  nb::list rows;
  Field field;
  for (Reader reader(data); reader.Next(field, number);) {
    if (field.wire != kBytes) continue;
    std::vector<nb::object> row(wanted.size() + 1, nb::none());
    row[0] = Bytes(field.data);
    Field inner;
    for (Reader message(field.data); message.Next(inner);) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i] == inner.number && row[i + 1].is_none()) row[i + 1] = Value(inner);
      }
    }
    nb::list cells;
    for (const nb::object& cell : row) cells.append(cell);
    rows.append(nb::tuple(cells));
  }
  return rows;
}

// Whether a message holds one of the values at the end of the path that begins with its own field path[at].
bool Holds(std::string_view data, const std::vector<uint64_t>& path, size_t at,
           const std::vector<std::string_view>& values) {
  Field field;
  for (Reader reader(data); reader.Next(field, path[at]);) {
    if (field.wire != kBytes) continue;
    if (at + 1 < path.size() ? Holds(field.data, path, at + 1, values)
                             : std::find(values.begin(), values.end(), field.data) != values.end()) {
      return true;
    }
  }
  return false;
}

nb::list Holding(const nb::bytes& data, const std::vector<uint64_t>& path, const std::vector<nb::bytes>& values) {
  if (path.size() < 2) throw std::invalid_argument("a path has two fields at least");
  std::vector<std::string_view> texts;
  for (const nb::bytes& value : values) texts.emplace_back(value.c_str(), value.size());
  nb::list found;
  int64_t position = 0;
  Field field;
  for (Reader reader(data); reader.Next(field, path[0]);) {
    if (field.wire != kBytes) continue;
    if (Holds(field.data, path, 1, texts)) found.append(nb::int_(position));
    ++position;
  }
  return found;
}

void AppendBytes(std::string& to, std::string_view data) {
  AppendVarint(to, data.size());
  to.append(data);
}

// An integer, which may be negative, in two's complement.
uint64_t Integer(nb::handle value) {
  const uint64_t number = PyLong_AsUnsignedLongLongMask(value.ptr());
  if (number == ~uint64_t{0} && PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

// A field of an integer, which may be negative, a text, bytes, or a message that gives its bytes.
void AppendField(std::string& to, uint64_t number, nb::handle value) {
  if (PyLong_Check(value.ptr())) {
    AppendVarint(to, number << 3 | kVarint);
    AppendVarint(to, Integer(value));
    return;
  }
  AppendVarint(to, number << 3 | kBytes);
  if (PyUnicode_Check(value.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    AppendBytes(to, {text, static_cast<size_t>(size)});
    return;
  }
  const nb::bytes bytes =
      PyBytes_Check(value.ptr()) ? nb::borrow<nb::bytes>(value) : nb::cast<nb::bytes>(value.attr("__bytes__")());
  AppendBytes(to, {bytes.c_str(), bytes.size()});
}

// A field that Python gives as a tuple. The size is checked here, since nanobind does not check a tuple's index.
nb::tuple Parts(nb::handle field, size_t size, const char* names) {
  const nb::tuple parts = nb::cast<nb::tuple>(field);
  if (parts.size() != size) throw std::invalid_argument(std::string("a field is ") + names);
  return parts;
}

nb::bytes Of(const nb::tuple& fields) {
  std::string message;
  for (const nb::handle each : fields) {
    const nb::tuple field = Parts(each, 2, "(number, value)");
    AppendField(message, nb::cast<uint64_t>(field[0]), field[1]);
  }
  return Bytes(message);
}

nb::bytes Packed(const nb::list& numbers) {
  std::string packed;
  for (const nb::handle each : numbers) AppendVarint(packed, Integer(each));
  return Bytes(packed);
}

// The pieces one after another. Most of a message is copied only here: a module with constants has hundreds of MB.
nb::bytes Joined(const std::vector<std::string_view>& pieces) {
  size_t size = 0;
  for (const std::string_view piece : pieces) size += piece.size();
  const nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!bytes.is_valid()) throw nb::python_error();
  char* at = PyBytes_AsString(bytes.ptr());
  for (const std::string_view piece : pieces) at = std::copy(piece.begin(), piece.end(), at);
  return nb::borrow<nb::bytes>(bytes);
}

nb::bytes Replaced(const nb::bytes& data, uint64_t number, bool all, const std::vector<std::string_view>& with) {
  return Joined(protobuf::Replaced({data.c_str(), data.size()}, number, all, with));
}

nb::bytes Put(const nb::bytes& data, uint64_t number, nb::handle value) {
  std::string field;
  AppendField(field, number, value);
  return Replaced(data, number, false, {field});
}

nb::bytes PutAll(const nb::bytes& data, uint64_t number, const std::vector<nb::bytes>& values) {
  std::string heads;
  std::vector<size_t> ends;
  for (const nb::bytes& value : values) {
    AppendVarint(heads, number << 3 | kBytes);
    AppendVarint(heads, value.size());
    ends.push_back(heads.size());
  }
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    pieces.push_back(std::string_view(heads).substr(begin, ends[i] - begin));
    pieces.emplace_back(values[i].c_str(), values[i].size());
    begin = ends[i];
  }
  return Replaced(data, number, true, pieces);
}

nb::list Select(const nb::bytes& data, const std::vector<uint64_t>& numbers) {
  nb::list found;
  Field field;
  for (Reader reader(data); reader.Next(field);) {
    if (std::find(numbers.begin(), numbers.end(), field.number) != numbers.end()) {
      found.append(nb::make_tuple(field.number, Value(field)));
    }
  }
  return found;
}

nb::bytes EncodedMessage(const nb::list& fields) {
  std::string message;
  for (const nb::handle each : fields) {
    const nb::tuple field = Parts(each, 3, "(number, wire type, value)");
    const auto number = nb::cast<uint64_t>(field[0]);
    const auto wire = nb::cast<int>(field[1]);
    const bool integer = PyLong_Check(field[2].ptr()) != 0;
    if (wire == (integer ? kVarint : kBytes)) {
      AppendField(message, number, field[2]);
      continue;
    }
    const nb::bytes value = integer ? nb::bytes("") : nb::cast<nb::bytes>(field[2]);
    const size_t size = wire == kFixed64 ? 8 : wire == kFixed32 ? 4 : 0;
    if (size == 0 || value.size() != size) {
      throw std::invalid_argument("no value of field " + std::to_string(number) + " of wire type " +
                                  std::to_string(wire));
    }
    AppendVarint(message, number << 3 | static_cast<uint64_t>(wire));
    message.append(value.c_str(), value.size());
  }
  return Bytes(message);
}

}  // namespace

void BindProtobuf(nb::module_& m) {
  m.def("protobuf_fields", &Fields, nb::arg("data"),
        nb::sig("def protobuf_fields(data: bytes) -> list[tuple[int, int, int | bytes]]"),
        "(number, wire type, value) of each field of a serialized message.");
  m.def("protobuf_varint", &Varint, nb::arg("data"), nb::arg("at"),
        nb::sig("def protobuf_varint(data: bytes, at: int) -> tuple[int, int]"),
        "The integer that begins at that byte, and the byte after it.");
  m.def("protobuf_number", &Number, nb::arg("data"), nb::arg("number"), nb::arg("missing"),
        "The first integer field of that number, taken as signed; `missing` if there is none.");
  m.def("protobuf_data", &Data, nb::arg("data"), nb::arg("number"),
        "The first field of that number that is no integer; empty if there is none.");
  m.def("protobuf_all", &All, nb::arg("data"), nb::arg("number"),
        nb::sig("def protobuf_all(data: bytes, number: int) -> list[bytes]"),
        "Every field of that number that is no integer.");
  m.def("protobuf_numbers", &Numbers, nb::arg("data"), nb::arg("number"),
        nb::sig("def protobuf_numbers(data: bytes, number: int) -> list[int]"),
        "A repeated integer field, packed or not, taken as signed.");
  m.def(
      "protobuf_select", &Select, nb::arg("data"), nb::arg("numbers"),
      nb::sig(
          "def protobuf_select(data: bytes, numbers: collections.abc.Sequence[int]) -> list[tuple[int, int | bytes]]"),
      "(number, value) of the fields of these numbers, in the message's order.");
  m.def("protobuf_rows", &Rows, nb::arg("data"), nb::arg("number"), nb::arg("wanted"),
        nb::sig("def protobuf_rows(data: bytes, number: int, wanted: collections.abc.Sequence[int]) -> "
                "list[tuple[typing.Any, ...]]"),
        "For each message in a field of that number its bytes, and the first of each of its wanted fields or None.");
  m.def("protobuf_holding", &Holding, nb::arg("data"), nb::arg("path"), nb::arg("values"),
        nb::sig("def protobuf_holding(data: bytes, path: collections.abc.Sequence[int], "
                "values: collections.abc.Sequence[bytes]) -> list[int]"),
        "The positions of the messages in path[0], counted from 0, that hold one of the values at the path's end.");
  m.def("protobuf_of", &Of, nb::arg("fields"),
        nb::sig("def protobuf_of(fields: tuple[tuple[int, int | bytes | str | typing.SupportsBytes], ...]) -> bytes"),
        "The message with these fields, serialized: integers, texts, bytes, and messages that give their bytes.");
  m.def("protobuf_packed", &Packed, nb::arg("numbers"), nb::sig("def protobuf_packed(numbers: list[int]) -> bytes"),
        "The value of a packed repeated integer field.");
  m.def("protobuf_put", &Put, nb::arg("data"), nb::arg("number"), nb::arg("value"),
        nb::sig("def protobuf_put(data: bytes, number: int, value: int | bytes | str | typing.SupportsBytes) -> bytes"),
        "The message with another value in the first field of that number, which is appended if there is none.");
  m.def("protobuf_put_all", &PutAll, nb::arg("data"), nb::arg("number"), nb::arg("values"),
        nb::sig("def protobuf_put_all(data: bytes, number: int, values: list[bytes]) -> bytes"),
        "The message with these fields of that number, where its first stood; at the end if there was none.");
  m.def("protobuf_message", &EncodedMessage, nb::arg("fields"),
        nb::sig("def protobuf_message(fields: list[tuple[int, int, int | bytes]]) -> bytes"),
        "The message with these fields, serialized.");
}

}  // namespace jaxring
