// Starts the CUDA engine's kernels. Implemented in lane_kernels.cu, epilogue_kernels.cu, direct.cu, one_shot.cu and
// staged_kernels.cu; needs no CUDA header to include.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Collectives by one kernel without a step table, among ranks that are all each other's memory peers (members lists all
// ranks but this one, sorted). Same bits as the schedule `direct`. Args needs no steps, peers, pieces or connections.
enum class Fused : uint8_t {
  kAllReduceOneShot = 0,  // every rank pushes its input to all (LL lines in stages), then folds: no barrier is passed.
                          // StageBytes(in_bytes) <= stage_bytes
  kAllReduceTwoShot,      // every rank folds its share of all inputs and writes it to all outputs
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
};

// Bytes of one of a stage's two halves for an input of that many bytes.
constexpr uint64_t StageBytes(uint64_t bytes) { return MessageBytes(Protocol::kLL, bytes, 1, 1); }

// Runs args.shape.lanes lanes on a CUstream, each by a block of `threads` threads (a multiple of kWarp, at most
// kMaxThreads; fewer if the kernel allows no more). Returns a cudaError_t. Asynchronous; can be captured into a graph.
int Launch(const Args& args, int threads, void* stream);

// The same for a reduction whose steps with StepFlag::kEpilogue apply an epilogue. The call's dtype is a float, and so
// are the epilogue's dtypes, which accumulate as it does. There are no bulk copies, and no kernel for LL128.
int LaunchEpilogue(const EpilogueArgs& epilogue, const Args& args, int threads, void* stream);

// The same for a fused collective, by args.shape.lanes blocks.
int LaunchFused(Fused fused, const Args& args, int threads, void* stream);

// LaunchFused of the one-shot all-reduce, by the kernel for its dtype, operation and ranks.
int LaunchOneShot(const Args& args, int threads, void* stream);

// What Launch, LaunchEpilogue and LaunchFused, but for the one-shot all-reduce, do where Args::staging has something to
// copy. There is no kernel for LL128.
int LaunchStaged(const Args& args, int threads, void* stream);
int LaunchStagedEpilogue(const EpilogueArgs& epilogue, const Args& args, int threads, void* stream);
int LaunchStagedFused(Fused fused, const Args& args, int threads, void* stream);

// Load all kernels of Launch, of LaunchEpilogue, of LaunchFused, of LaunchOneShot and of the launches with copies into
// the current context. A first launch that had to load its kernel could wait for running kernels, which wait for it.
// Return a cudaError_t.
int LoadKernels();
int LoadEpilogueKernels();
int LoadFusedKernels();
int LoadOneShotKernels();
int LoadStagedKernels();

// The architectures and PTX version that were compiled in, for example "sm_90 compute_90".
const char* Architectures();

}  // namespace jaxring::cuda
