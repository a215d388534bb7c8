#include "transport/verbs/verbs_regions.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace jaxring::verbs {

bool Regions::IsTaken(uint32_t key) const {
  return std::any_of(entries_.begin(), entries_.end(), [key](const Entry& entry) { return entry.first == key; });
}

uint32_t Regions::Add(Endpoint& now, Endpoint* next, const DirectRegion& region, bool* refused) {
  // Another device may give a key that is some memory's first one already. It keeps that while it has it.
  uint32_t key = now.RegisterMore(region);
  while (IsTaken(key)) key = now.RegisterMore(region);
  uint32_t later = 0;
  *refused = false;
  try {
    if (next != nullptr) later = next->RegisterMore(region);
  } catch (const std::runtime_error&) {
    *refused = true;
  }
  entries_.push_back({region, key, key, later});
  return key;
}

void Regions::Prepare(Endpoint& next) {
  for (Entry& entry : entries_) entry.next = next.RegisterMore(entry.region);
}

void Regions::Switch() {
  for (Entry& entry : entries_) entry.now = entry.next;
}

Keys Regions::keys() const {
  Keys keys;
  for (const Entry& entry : entries_) keys[entry.first] = entry.now;
  return keys;
}

std::string ToText(const Keys& keys) {
  std::ostringstream text;
  text << keys.size();
  for (const auto& [first, now] : keys) text << ' ' << first << ' ' << now;
  return text.str();
}

Keys ToKeys(const std::string& text) {
  std::istringstream words(text);
  size_t count = 0;
  Keys keys;
  uint32_t first = 0, now = 0;
  words >> count;
  while (keys.size() < count && words >> first >> now) {
    if (!keys.emplace(first, now).second) break;
  }
  if (!words || keys.size() != count) throw std::runtime_error("the peer's keys of memory cannot be read");
  return keys;
}

}  // namespace jaxring::verbs
