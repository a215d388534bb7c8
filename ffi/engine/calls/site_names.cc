#include "engine/calls/site_names.h"

#include <map>

#include "base/mutex.h"

namespace jaxring {
namespace {

// Counts a call's instantiations since a program with one of its specs was last compiled.
struct Program {
  uint64_t before = 0, calls = 0;
};

Mutex names_mutex;
auto* compiled JAXRING_PT_GUARDED_BY(names_mutex) = new std::map<std::string, uint64_t>;
auto* programs JAXRING_PT_GUARDED_BY(names_mutex) = new std::map<std::string, Program>;

// FNV-1a: the same in every process.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

void EndProgram(const std::vector<std::string>& specs) {
  MutexLock lock(names_mutex);
  for (const std::string& spec : specs) (*compiled)[spec]++;
}

std::vector<uint64_t> OrdinalsOfCall(const std::string& call, const std::vector<std::string>& specs) {
  MutexLock lock(names_mutex);
  uint64_t before = 0;
  for (const std::string& spec : specs) {
    const auto found = compiled->find(spec);
    if (found != compiled->end()) before += found->second;
  }
  Program& program = (*programs)[call];
  if (program.before != before) program = {before, 0};
  const uint64_t which = program.calls++;
  if (specs.size() == 1) return {which};
  std::vector<uint64_t> ordinals;
  for (size_t i = 0; i < specs.size(); ++i) {
    ordinals.push_back(Hash(call + "/" + std::to_string(which) + "/" + std::to_string(i)));
  }
  return ordinals;
}

}  // namespace jaxring
