// The kernels' bodies for the shim, compiled once for all tests and the fake GPU. Each thread of a block calls them.
#pragma once

#include "cuda/device/lane.h"
#include "cuda/experimental/multicast_launch.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/messages.h"
#include "cuda/kernels/ragged.h"

namespace jaxring::cuda::shim {

// A lane of a step table, by the protocol and width that `args` asks for.
void PlayTable(const Args& args, Shared& shared);
void PlayTableSimple(const Args& args, Shared& shared);
void PlayTableLL(const Args& args, Shared& shared);
void PlayTableLL128(const Args& args, Shared& shared);

// The same with an epilogue.
void PlayEpilogue(const EpilogueArgs& epilogue, const Args& args, Shared& shared);

void PlayFused(Fused fused, const Args& args, Shared& shared);
void PlayMulticast(const Multicast& memory, const Args& args, Shared& shared);
void PlayPointToPoint(const PointToPoint& message, const Args& args, Shared& shared);
void PlayExtents(const Ragged& ragged, const Args& args, RaggedShared& shared);
void PlayCopyBarrier(bool open, const Args& args, Shared& shared);

}  // namespace jaxring::cuda::shim
