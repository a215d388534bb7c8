#include "xla/cuda_handlers.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu_runtime.h"
#include "xla/epilogue_buffers.h"
#include "xla/ffi/api/ffi.h"
#if defined(JAXRING_FAKE_GPU)
#include "cuda/sim/fake/gpu_fake.h"
#endif

namespace jaxring::cuda {
namespace {

namespace ffi = xla::ffi;

// The state that INSTANTIATE attaches to the executable. It identifies the call site: a Site for each collective of the
// call.
struct SiteState {
  static ffi::TypeId id;
  std::vector<std::shared_ptr<Site>> sites;
  bool has_input, has_output;
  int64_t epilogue_operands, epilogue_states;  // arrays that its epilogue takes and gives; -1 where it has none
};
ffi::TypeId SiteState::id = {};

ffi::ErrorOr<std::unique_ptr<SiteState>> Instantiate(ffi::Dictionary attributes) {
  auto spec = attributes.get<std::string_view>("spec");
  auto groups = attributes.get<ffi::Span<const int32_t>>("groups");
  auto group_size = attributes.get<int64_t>("group_size");
  auto timeout_s = attributes.get<double>("timeout_s");
  auto has_input = attributes.get<bool>("has_input");
  auto has_output = attributes.get<bool>("has_output");
  if (!spec || !groups || !group_size || !timeout_s || !has_input || !has_output) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kInvalidArgument,
                                      "this program was lowered by another version of jaxring: lower it again"));
  }
  Runtime* runtime = RunningRuntime();
  if (runtime == nullptr) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                                      "jaxring's CUDA engine is not running: import jaxring before this program is "
                                      "loaded"));
  }
  // Sites with equal specs are numbered in the order of their instantiation in this process: the processes meet by
  // these numbers when a call is planned, so all must compile a program equally often. On CPUs they need not
  // (engine/calls/site_names.h).
  static Mutex mutex;
  static auto* made JAXRING_PT_GUARDED_BY(mutex) = new std::map<std::string, uint64_t>;
  auto epilogue_operands = attributes.get<int64_t>("epilogue_operands");
  auto epilogue_states = attributes.get<int64_t>("epilogue_states");
  const bool has_epilogue = epilogue_operands.has_value() && epilogue_states.has_value();
  auto state = std::make_unique<SiteState>(SiteState{
      {}, *has_input, *has_output, has_epilogue ? *epilogue_operands : -1, has_epilogue ? *epilogue_states : -1});
  for (std::string_view rest = *spec; !rest.empty();) {
    const size_t end = rest.find('\n');
    SiteSpec site{std::string(rest.substr(0, end)),
                  {groups->begin(), groups->end()},
                  static_cast<int>(*group_size),
                  *timeout_s,
                  0};
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    {
      MutexLock lock(mutex);
      site.ordinal = (*made)[site.spec]++;
    }
    state->sites.push_back(std::make_shared<Site>(runtime, std::move(site)));
  }
  return state;
}

// Operands: the data (absent for a pure receive), an optional token, and the partition id. Results: the data (absent
// for a pure send) and the optional token, whose buffer is the operand's. In a fused call operand and result i are
// those of collective i, there is no token, and the collectives are enqueued one after another. A call with an epilogue
// holds one collective, and has no token: EpilogueOf (xla/epilogue_buffers.h) says the rest.
ffi::Error Run(SiteState* state, int32_t device, void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
               const RaggedVectors* vectors = nullptr, bool on_side_stream = false) {
  const void* partition = args.get<ffi::AnyBuffer>(args.size() - 1)->untyped_data();
  std::unique_ptr<EpilogueBuffers> epilogue;
  if (state->epilogue_operands >= 0) {
    epilogue = EpilogueOf(args, rets, state->epilogue_operands, state->epilogue_states);
  }
  for (size_t i = 0; i < state->sites.size(); ++i) {
    const void* in = nullptr;
    void* out = nullptr;
    uint64_t in_bytes = 0, out_bytes = 0;
    if (state->has_input) {
      ffi::AnyBuffer buffer = *args.get<ffi::AnyBuffer>(i);
      in = buffer.untyped_data();
      in_bytes = buffer.size_bytes();
    }
    if (state->has_output) {
      ffi::Result<ffi::AnyBuffer> buffer = *rets.get<ffi::AnyBuffer>(i);
      out = buffer->untyped_data();
      out_bytes = buffer->size_bytes();
    }
    const jaxring::Status status = state->sites[i]->Run(device, partition, in, out, in_bytes, out_bytes, stream,
                                                        vectors, epilogue.get(), on_side_stream);
    if (!status.ok()) return ffi::Error(static_cast<ffi::ErrorCode>(static_cast<int>(status.code)), status.message);
  }
  return ffi::Error::Success();
}

// Operands: data, output (aliased with the result), input offsets, send sizes, receive offsets, receive sizes, the
// sizes that the peers say they send, partition id. The numbers are left on the device.
ffi::Error RunRagged(SiteState* state, int32_t device, void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  RaggedVectors vectors{};
  for (int v = 0; v < RaggedVectors::kCount; ++v) {
    auto buffer = args.get<ffi::AnyBuffer>(2 + v);
    if (!buffer) return buffer.error();
    vectors.at[v] = buffer->untyped_data();
    vectors.wide |= (buffer->element_type() == ffi::S64 ? 1u : 0u) << v;
  }
  return Run(state, device, stream, args, rets, &vectors);
}

// Operands: values that become the results in place, then operands of the collectives that make some of these values.
// `started` has the indices of those values.
ffi::Error RunJoin(int32_t device, void* stream, ffi::RemainingArgs args, ffi::Dictionary attributes) {
  auto started = attributes.get<ffi::Span<const int64_t>>("started");
  Runtime* runtime = RunningRuntime();
  if (!started || runtime == nullptr) return ffi::Error(ffi::ErrorCode::kInternal, "jaxring: a done without a start");
  for (const int64_t i : *started) {
    auto value = args.get<ffi::AnyBuffer>(static_cast<size_t>(i));
    if (!value) return value.error();
    if (value->size_bytes() == 0) continue;
    try {
      if (runtime->side_streams().Join(device, value->untyped_data(), stream)) continue;
    } catch (const std::exception& error) {
      return ffi::Error(ffi::ErrorCode::kInternal, error.what());
    }
    return ffi::Error(ffi::ErrorCode::kInternal,
                      "jaxring: XLA moved the result of a collective before it was done; do not start it (call the "
                      "collective itself), and report this");
  }
  return ffi::Error::Success();
}

// The type is registered with the API of the first call frame, as for the CPU handlers.
void RegisterStateType(XLA_FFI_CallFrame* frame) {
  static std::once_flag once;
  std::call_once(once, [&] {
    static constexpr auto info = ffi::MakeTypeInfo<SiteState>();
#if defined(JAXRING_FAKE_GPU)
    static constexpr const char* name = "jaxring_fake_cuda_site";
#else
    static constexpr const char* name = "jaxring_cuda_site";
#endif
    if (XLA_FFI_Error* error = ffi::Ffi::RegisterTypeId(frame->api, name, &SiteState::id, info)) {
      ffi::internal::DestroyError(frame->api, error);
    }
  });
}

#if defined(JAXRING_FAKE_GPU)
// The host platform has no streams, so the call runs on the fake device's stream and waits for it.
ffi::Error Awaited(void* stream, ffi::Error error) {
  if (error.failure()) return error;
  try {
    ThisGpu().streams.Synchronize(0, stream);
  } catch (const std::exception& raised) {
    return ffi::Error(ffi::ErrorCode::kInternal, raised.what());
  }
  return ffi::Error::Success();
}
ffi::Error Collective(SiteState* state, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      ffi::Dictionary) {
  void* stream = fake::StreamOf(device);
  return Awaited(stream, Run(state, device, stream, args, rets));
}
ffi::Error RaggedCollective(SiteState* state, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                            ffi::Dictionary) {
  void* stream = fake::StreamOf(device);
  return Awaited(stream, RunRagged(state, device, stream, args, rets));
}
// Does not wait for the stream: no later work on XLA's stream can overtake the start.
ffi::Error Start(SiteState* state, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary) {
  return Run(state, device, fake::StreamOf(device), args, rets, nullptr, true);
}
ffi::Error Join(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets, ffi::Dictionary attributes) {
  void* stream = fake::StreamOf(device);
  return Awaited(stream, RunJoin(device, stream, args, attributes));
}
#else
ffi::Error Collective(SiteState* state, int32_t device, void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      ffi::Dictionary) {
  return Run(state, device, stream, args, rets);
}
ffi::Error RaggedCollective(SiteState* state, int32_t device, void* stream, ffi::RemainingArgs args,
                            ffi::RemainingRets rets, ffi::Dictionary) {
  return RunRagged(state, device, stream, args, rets);
}
ffi::Error Start(SiteState* state, int32_t device, void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Dictionary) {
  return Run(state, device, stream, args, rets, nullptr, true);
}
ffi::Error Join(int32_t device, void* stream, ffi::RemainingArgs args, ffi::RemainingRets, ffi::Dictionary attributes) {
  return RunJoin(device, stream, args, attributes);
}
#endif

// The arguments of all handlers of a call site.
auto SiteBinding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<SiteState>>()
      .Ctx<ffi::DeviceOrdinal>()
#if !defined(JAXRING_FAKE_GPU)
      .Ctx<ffi::PlatformStream<void*>>()
#endif
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
}

// The arguments of a handler without a call site.
auto ValuesBinding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::DeviceOrdinal>()
#if !defined(JAXRING_FAKE_GPU)
      .Ctx<ffi::PlatformStream<void*>>()
#endif
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
}

ffi::Error Nothing(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

XLA_FFI_Error* InstantiateCall(XLA_FFI_CallFrame* frame) {
  RegisterStateType(frame);
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(Instantiate).release();
  return handler->Call(frame);
}

// `kBind` makes the handler on the first call.
template <auto kBind>
XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame) {
  static auto* handler = kBind().release();
  return handler->Call(frame);
}

constexpr auto kCaptured = ffi::Traits::kCmdBufferCompatible;

// The partition id of a program over an abstract mesh has to be read, which a capture forbids: "uncaptured". Also, a
// start and its join are not compatible with command buffers: XLA captures each call by itself, and a start ends while
// its work on another stream goes on.
constexpr Handler kHandlers[] = {
    {"instantiate", InstantiateCall},
    {"collective", Call<[] { return SiteBinding().To(Collective, {kCaptured}); }>},
    {"ragged", Call<[] { return SiteBinding().To(RaggedCollective, {kCaptured}); }>},
    {"uncaptured_collective", Call<[] { return SiteBinding().To(Collective); }>},
    {"uncaptured_ragged", Call<[] { return SiteBinding().To(RaggedCollective); }>},
    {"start", Call<[] { return SiteBinding().To(Start); }>},
    {"join", Call<[] { return ValuesBinding().To(Join); }>},
    {"done", Call<[] { return ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(Nothing, {kCaptured}); }>},
};

}  // namespace

std::span<const Handler> Handlers() { return kHandlers; }

}  // namespace jaxring::cuda
