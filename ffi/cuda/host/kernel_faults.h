// Describes a kernel's failure from the status record that it has written.
#pragma once

#include <string>

#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

// Whether it failed because another rank or another launch has failed, whose status says more.
bool Follows(const Status& status);

// The description for the rank named `self`, which waited for `peer`. `call`: what the call of Fault::kOtherCall is; ""
// if this process does not know it.
std::string Sentence(const Status& status, const std::string& self, const std::string& peer, const std::string& call);

}  // namespace jaxring::cuda
