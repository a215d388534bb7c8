// The functions of multimem.h on the host. A multicast address has no memory of its own, so any other access to it
// faults. Replicas are reduced in the order in which they were passed.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/device/reduce.h"

namespace jaxring::cuda {

namespace simt {

// A range of `bytes` addresses that stand for the same bytes of every replica, until FreeMulticast.
char* NewMulticast(std::vector<char*> replicas, uint64_t bytes);
void FreeMulticast(char* all);

struct Replicas {
  const std::vector<char*>* bases;
  uint64_t offset;
};
// Ends the process if the address is not a multicast address.
Replicas ReplicasOf(const char* all);
// Whether the address belongs to a replica, which has two addresses then.
bool IsReplica(const char* at);
// Ends the process if multimem.h has no instruction for the reduction, since the host could reduce more than a switch.
void MustReduce(const Arithmetic& how);

}  // namespace simt

// Before this is called, stores by one alias are delayed past any release.
inline void FenceAliases() {
  if (!ThisMachine().faults().lost_alias_fence) ThisMachine().JoinAliases();
}
inline Vec LoadBound(const char* from) { return Load(from); }
inline void StoreBound(char* to, const Vec& v) {
  ThisMachine().Chance();
  ThisMachine().Delay(to, &v, sizeof v, simt::Kind::kAlias);
}
inline void StoreAll(char* to, const Vec& v) {
  const simt::Replicas replicas = simt::ReplicasOf(to);
  for (char* base : *replicas.bases) StoreBound(base + replicas.offset, v);
}

template <int kWiden>
Vec Reduced(const Arithmetic& how, const char* from) {
  const simt::Replicas replicas = simt::ReplicasOf(from);
  Vec value[kWiden] = {}, next[kWiden] = {};
  bool first = true;
  for (const char* base : *replicas.bases) {
    Widen<kWiden>(how, Load(base + replicas.offset), first ? value : next);
    if (!first) Fold<kWiden>(how, value, next);
    first = false;
  }
  return Narrow<kWiden>(how, value);
}
template <int kN>
void LoadReduced(const Arithmetic& how, const char* const (&from)[kN], Vec (&to)[kN]) {
  simt::MustReduce(how);
  for (int i = 0; i < kN; ++i) {
    if (from[i] != nullptr)
      to[i] = Widening(how.dtype, true) == 2 ? Reduced<2>(how, from[i]) : Reduced<1>(how, from[i]);
  }
}

}  // namespace jaxring::cuda
