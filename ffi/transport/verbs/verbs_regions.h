// The memory beside a link's rings that is registered with its endpoint. On every endpoint of the link it has another
// key; those who name it in pieces and messages know it by the first one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/core/direct_memory.h"
#include "transport/verbs/endpoint/verbs_endpoint.h"

namespace jaxring::verbs {

// Present keys by first keys.
using Keys = std::unordered_map<uint32_t, uint32_t>;

class Regions {
 public:
  // Registers memory with the endpoint in service and, if there is one, the one that is to follow it. Returns its key.
  // `refused`: whether the device of the one that is to follow cannot, so that this one is of no use.
  uint32_t Add(Endpoint& now, Endpoint* next, const DirectRegion& region, bool* refused);
  // Registers all of it with the endpoint that is to follow.
  void Prepare(Endpoint& next);
  // That endpoint is in service.
  void Switch();
  Keys keys() const;

 private:
  struct Entry {
    DirectRegion region;
    uint32_t first, now, next;
  };
  bool IsTaken(uint32_t key) const;
  std::vector<Entry> entries_;
};

// As text, and back. Throws std::runtime_error if the text is no such thing.
std::string ToText(const Keys& keys);
Keys ToKeys(const std::string& text);

}  // namespace jaxring::verbs
