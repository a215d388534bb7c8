// What a kernel wrote down of its failure, as a sentence.
#pragma once

#include <string>

#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

// Whether it failed because another rank, or another launch, did: that one says more.
bool Follows(const Status& status);

// Of the rank that is called `self`, which waited for `peer`.
std::string Sentence(const Status& status, const std::string& self, const std::string& peer);

}  // namespace jaxring::cuda
