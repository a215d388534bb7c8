#include "xla/cpu_handlers.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/calls/site_names.h"
#include "engine/operation/float_mode.h"
#include "engine/runtime.h"
#include "engine/site.h"
#include "xla/code_buffers.h"
#include "xla/epilogue_buffers.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {

namespace ffi = xla::ffi;

// The result of a handler: a future of the call's end, or the end itself.
struct CallOutcome {
  std::optional<ffi::Future> later;
  ffi::Error now;
};

}  // namespace jaxring

// The specialisation by which XLA's header (xla/ffi/api/api.h) lets a handler return a type of its own.
template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxring::CallOutcome> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                                              jaxring::CallOutcome outcome) {
    if (outcome.later) return ResultEncoding<stage, Future>::Encode(api, context, std::move(*outcome.later));
    return ResultEncoding<stage, Error>::Encode(api, context, std::move(outcome.now));
  }
};

namespace jaxring {
namespace {

// The state that INSTANTIATE attaches to the executable. It holds the site, which all devices of the process share.
struct SiteState {
  static ffi::TypeId id;
  std::shared_ptr<Site> site;
  bool has_input, has_output;
  int64_t row_elements;                        // ragged only
  bool buffer_per_block;                       // operands and results are a buffer for each rank
  int64_t epilogue_operands, epilogue_states;  // arrays that its epilogue takes and gives; -1 where it has none
  bool codes;                                  // its messages are codes
};
ffi::TypeId SiteState::id = {};

// Splits an attribute that holds one line for each collective.
std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

ffi::ErrorOr<std::unique_ptr<SiteState>> Instantiate(ffi::Dictionary attributes) {
  auto spec = attributes.get<std::string_view>("spec");
  auto groups = attributes.get<ffi::Span<const int32_t>>("groups");
  auto group_size = attributes.get<int64_t>("group_size");
  auto timeout_s = attributes.get<double>("timeout_s");
  auto has_input = attributes.get<bool>("has_input");
  auto has_output = attributes.get<bool>("has_output");
  auto row_elements = attributes.get<int64_t>("row_elements");
  if (!spec || spec->empty() || !groups || !group_size || !timeout_s || !has_input || !has_output || !row_elements) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kInvalidArgument,
                                      "this program was lowered by another version of jaxring: lower it again"));
  }
  Engine* engine = RunningEngine();
  if (engine == nullptr) {
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                                      "jaxring's engine is not running: import jaxring before this program is loaded"));
  }
  SiteSpec site{Lines(*spec), {groups->begin(), groups->end()}, static_cast<int>(*group_size), *timeout_s, {}};
  if (auto shown = attributes.get<std::string_view>("shown")) site.shown = Lines(*shown);
  site.ordinals = OrdinalsOfCall(std::string(*spec), site.specs);
  auto buffer_per_block = attributes.get<bool>("buffer_per_block");
  auto epilogue_operands = attributes.get<int64_t>("epilogue_operands");
  auto epilogue_states = attributes.get<int64_t>("epilogue_states");
  auto codes = attributes.get<bool>("codes");
  const bool has_epilogue = epilogue_operands.has_value() && epilogue_states.has_value();
  return std::make_unique<SiteState>(SiteState{Site::Make(engine, std::move(site)), *has_input, *has_output,
                                               *row_elements, buffer_per_block.has_value() && *buffer_per_block,
                                               has_epilogue ? *epilogue_operands : -1,
                                               has_epilogue ? *epilogue_states : -1, codes.has_value() && *codes});
}

ffi::ErrorCode ToXla(Code code) { return static_cast<ffi::ErrorCode>(static_cast<int>(code)); }

ffi::Error ToXla(const Status& status) {
  return status.ok() ? ffi::Error::Success()
                     : ffi::Error(ToXla(status.code), RunningEngine()->options().ToMessage(status));
}

// The end of a call, before its handler returns or later. A future, for which XLA and its header allocate and lock, is
// made only in the second case. The call counts as in flight until its end. The completion and the handler share this
// object, and the second to finish with it deletes it.
class CallEnd {
 public:
  CallEnd() { InFlight().fetch_add(1, std::memory_order_relaxed); }
  // The completion may be called once.
  Completion completion() {
    return [this](const Status& status) { Set(status); };
  }
  // The handler's result; called once.
  CallOutcome Take() {
    if (state_.load(std::memory_order_acquire) == State::kEnded) return Ended();
    ffi::Future future(promise_.emplace());
    mode_ = ReadFloatMode();
    if (state_.exchange(State::kAwaited, std::memory_order_acq_rel) == State::kEnded) return Ended();
    return CallOutcome{std::move(future), ffi::Error::Success()};
  }

 private:
  enum class State { kBegun, kAwaited, kEnded };
  static std::atomic<int64_t>& InFlight() { return RunningEngine()->counters().in_flight; }
  void Set(const Status& status) {
    InFlight().fetch_sub(1, std::memory_order_relaxed);
    status_ = status;
    if (state_.exchange(State::kEnded, std::memory_order_acq_rel) != State::kAwaited) return;
    // XLA runs the rest of the device's program inside this call.
    const ScopedFloatMode mode(mode_);
    status_.ok() ? promise_->SetAvailable() : promise_->SetError(ToXla(status_));
    delete this;
  }
  CallOutcome Ended() {
    CallOutcome outcome{std::nullopt, ToXla(status_)};
    delete this;
    return outcome;
  }

  std::atomic<State> state_{State::kBegun};
  Status status_;
  std::optional<ffi::Promise> promise_;
  FloatMode mode_ = kIeeeFloatMode;  // the launching thread's; set before the call is awaited
};

Arrival MakeArrival(ffi::RunId run, int32_t device, const ffi::AnyBuffer& partition) {
  Arrival arrival;
  arrival.run_id = run.run_id;
  arrival.device = device;
  arrival.partition = static_cast<int>(*static_cast<const uint32_t*>(partition.untyped_data()));
  return arrival;
}

// Takes a buffer for each block of the operand and of the result. If their lengths differ, it leaves the byte counts at
// zero, so that the site, which checks them against the plan, refuses the call before a buffer is touched.
void TakeBlocks(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, size_t blocks, Arrival* arrival) {
  if (args.size() != blocks + 1 || rets.size() != blocks) return;
  arrival->participant.blocks = std::make_unique<char*[]>(2 * blocks);
  bool fit = true;
  size_t bytes = 0;
  for (size_t i = 0; i < blocks; ++i) {
    const ffi::AnyBuffer in = *args.get<ffi::AnyBuffer>(i);
    ffi::Result<ffi::AnyBuffer> out = *rets.get<ffi::AnyBuffer>(i);
    if (i == 0) bytes = in.size_bytes();
    fit = fit && in.size_bytes() == bytes && out->size_bytes() == bytes;
    arrival->participant.blocks[i] = static_cast<char*>(in.untyped_data());
    arrival->participant.blocks[blocks + i] = static_cast<char*>(out->untyped_data());
  }
  arrival->participant.in = arrival->participant.blocks[0];
  arrival->participant.out = arrival->participant.blocks[blocks];
  if (fit) arrival->in_bytes = arrival->out_bytes = blocks * bytes;
}

CallOutcome Call(SiteState* state, Arrival&& arrival) {
  auto* end = new CallEnd;
  arrival.participant.done = end->completion();
  state->site->Arrive(std::move(arrival));
  return end->Take();
}

// Operands: the data (absent for a pure receive), an optional token, and the partition id. Results: the data (absent
// for a pure send) and the optional token, whose buffer is the operand's. In a fused call operand and result i are
// those of collective i, and there is no token. With a buffer for each block the call holds one collective, operand i
// is block i of its data, and so is result i. A call with an epilogue or with codes holds one collective; EpilogueOf
// and CodesOf say the rest.
[[gnu::hot]] CallOutcome Collective(SiteState* state, ffi::RunId run, int32_t device, ffi::RemainingArgs args,
                                    ffi::RemainingRets rets, ffi::Dictionary) {
  Arrival arrival = MakeArrival(run, device, *args.get<ffi::AnyBuffer>(args.size() - 1));
  if (state->buffer_per_block) {
    TakeBlocks(args, rets, static_cast<size_t>(state->site->spec().group_size), &arrival);
    return Call(state, std::move(arrival));
  }
  const size_t collectives = state->site->spec().specs.size();
  if (state->has_input) {
    ffi::AnyBuffer in = *args.get<ffi::AnyBuffer>(0);
    arrival.participant.in = in.untyped_data();
    arrival.in_bytes = in.size_bytes();
  }
  if (state->has_output) {
    ffi::Result<ffi::AnyBuffer> out = *rets.get<ffi::AnyBuffer>(0);
    arrival.participant.out = out->untyped_data();
    arrival.out_bytes = out->size_bytes();
  }
  if (state->epilogue_operands >= 0) {
    arrival.participant.epilogue = EpilogueOf(args, rets, state->epilogue_operands, state->epilogue_states);
  }
  if (state->codes) arrival.participant.codes = CodesOf(args, rets);
  if (collectives > 1) arrival.further = std::make_unique<Arrival::Buffers[]>(collectives - 1);
  for (size_t i = 1; i < collectives; ++i) {
    ffi::AnyBuffer in = *args.get<ffi::AnyBuffer>(i);
    ffi::Result<ffi::AnyBuffer> out = *rets.get<ffi::AnyBuffer>(i);
    arrival.further[i - 1] = {in.untyped_data(), out->untyped_data(), in.size_bytes(), out->size_bytes()};
  }
  return Call(state, std::move(arrival));
}

std::vector<uint64_t> Numbers(const ffi::AnyBuffer& buffer, uint64_t scale, bool* negative) {
  std::vector<uint64_t> numbers(buffer.element_count());
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t n = buffer.element_type() == ffi::S64 ? static_cast<const int64_t*>(buffer.untyped_data())[i]
                                                  : static_cast<const int32_t*>(buffer.untyped_data())[i];
    if (n < 0) *negative = true;
    numbers[i] = static_cast<uint64_t>(n) * scale;
  }
  return numbers;
}

// Operands: data, output (aliased with the result), input offsets, send sizes, receive offsets, receive sizes, the
// sizes that the peers say they send, partition id. Offsets and sizes count rows of `row_elements` elements.
CallOutcome Ragged(SiteState* state, ffi::RunId run, int32_t device, ffi::AnyBuffer in, ffi::AnyBuffer,
                   ffi::AnyBuffer in_offset, ffi::AnyBuffer in_size, ffi::AnyBuffer out_offset, ffi::AnyBuffer out_size,
                   ffi::AnyBuffer peer_size, ffi::AnyBuffer partition, ffi::Result<ffi::AnyBuffer> out,
                   ffi::Dictionary) {
  Arrival arrival = MakeArrival(run, device, partition);
  auto extents = std::make_unique<Extents>();
  const uint64_t scale = static_cast<uint64_t>(state->row_elements);
  bool negative = false;
  extents->in_offset = Numbers(in_offset, scale, &negative);
  extents->in_length = Numbers(in_size, scale, &negative);
  extents->out_offset = Numbers(out_offset, scale, &negative);
  extents->out_length = Numbers(peer_size, scale, &negative);
  extents->expected = Numbers(out_size, scale, &negative);
  if (negative) extents->invalid = "an offset or size is negative";
  for (size_t i = 0; i < extents->in_offset.size(); ++i) {
    if (extents->in_offset[i] + extents->in_length[i] > in.element_count()) {
      extents->invalid = "input_offsets + send_sizes for peer " + std::to_string(i) + " reach past the operand's end";
    }
    if (extents->out_offset[i] + extents->out_length[i] > out->element_count()) {
      extents->invalid = "what rank " + std::to_string(i) + " sends here reaches past the output's end";
    }
    if (extents->out_length[i] != extents->expected[i]) {
      extents->invalid = "recv_sizes says " + std::to_string(extents->expected[i] / std::max<uint64_t>(1, scale)) +
                         " rows from rank " + std::to_string(i) + ", whose send_sizes says " +
                         std::to_string(extents->out_length[i] / std::max<uint64_t>(1, scale));
    }
  }
  arrival.participant.in = in.untyped_data();
  arrival.participant.out = out->untyped_data();
  arrival.participant.extents = std::move(extents);
  return Call(state, std::move(arrival));
}

// JAX cannot register a type together with a stateful target before the backend starts. So the type is registered with
// the API of the first call frame, which only queries the handler's metadata.
void RegisterStateType(XLA_FFI_CallFrame* frame) {
  static std::once_flag once;
  std::call_once(once, [&] {
    static constexpr auto info = ffi::MakeTypeInfo<SiteState>();
    if (XLA_FFI_Error* error = ffi::Ffi::RegisterTypeId(frame->api, "jaxring_site", &SiteState::id, info)) {
      ffi::internal::DestroyError(frame->api, error);
    }
  });
}

}  // namespace

XLA_FFI_Error* CpuInstantiate(XLA_FFI_CallFrame* frame) {
  RegisterStateType(frame);
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(Instantiate).release();
  return handler->Call(frame);
}

XLA_FFI_Error* CpuCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<SiteState>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .Attrs()
                             .To(Collective)
                             .release();
  return handler->Call(frame);
}

// Does nothing, but XLA orders it after the calls that make its operands. Some operands are aliased with the results;
// others are kept alive until here.
XLA_FFI_Error* CpuDone(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .RemainingArgs()
                             .RemainingRets()
                             .To([](ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); })
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CpuRagged(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<SiteState>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Ret<ffi::AnyBuffer>()
                             .Attrs()
                             .To(Ragged)
                             .release();
  return handler->Call(frame);
}

}  // namespace jaxring
