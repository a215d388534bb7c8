// Fuzzes plans of any bytes. An accepted plan is run, with all ranks in this process and buffers of the exact size.
#include "plan/plan.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/operation/interpreter.h"
#include "input.h"
#include "network/peers/peer.h"

using namespace jaxring;

namespace {

constexpr uint32_t kSlot = 4096;
constexpr int kTurns = 64;
constexpr size_t kMostBytes = 1 << 16;

std::string_view Table(fuzz::Input* input, size_t record, int most) {
  return input->Bytes(record * (input->Number<uint8_t>() % (most + 1)));
}

std::shared_ptr<Plan> Read(fuzz::Input* input) {
  auto plan = std::make_shared<Plan>();
  const int ranks = 1 + input->Number<uint8_t>() % 3;
  const int dtype = input->Number<uint8_t>() % kDTypeCount, op = input->Number<int8_t>() % kReduceOpCount;
  plan->data.dtype = static_cast<DType>(dtype);
  plan->data.element_bytes = plan->data.partial_bytes = ElementBytes(plan->data.dtype);
  if (op >= 0) plan->data.kernels = FindKernels(plan->data.dtype, static_cast<ReduceOp>(op));
  if (plan->data.kernels != nullptr) plan->data.partial_bytes = plan->data.kernels->accumulator_bytes;
  // Python sets the divisor for floats only.
  const bool floats = plan->data.dtype >= DType::kF8E4M3FN;
  plan->data.divisor = floats ? input->Number<uint8_t>() % 4 : 0;
  plan->protocol = static_cast<Protocol>(input->Number<uint8_t>() % 4);
  plan->shape.in_blocks = input->Number<int8_t>();
  plan->shape.out_blocks = input->Number<int8_t>();
  plan->shape.pieces = input->Number<int8_t>();
  plan->shape.scratch_chunks = input->Number<int8_t>();
  plan->shape.nlanes = 1 + input->Number<uint8_t>() % 3;
  plan->channels = 1 + input->Number<uint8_t>() % 2;
  plan->shape.block_elements = input->Number<uint16_t>() % 2048;
  plan->shape.tile_elements = input->Number<uint16_t>();
  const int elsewhere = input->Number<uint8_t>();
  for (int r = 0; r < ranks; ++r)
    plan->group.ranks.push_back({r > 0 && elsewhere % 4 == 3 ? 1 : 0, r, std::to_string(r)});
  for (int r = 0; r < ranks; ++r) {
    if (plan->group.ranks[r].process != 0) continue;
    const std::string_view lanes = input->Bytes(sizeof(uint32_t) * (plan->shape.nlanes + 1));
    const std::string_view peers = Table(input, sizeof(int32_t), 12);
    RankTable table = ReadTable(r, Table(input, sizeof(Step), 12), lanes, peers, plan->shape.nlanes);
    table.NumberFlows();
    plan->group.locals.push_back(std::move(table));
  }
  const std::vector<std::string> functions[] = {{}, {"scale", "cast"}, {"clip", "sgd"}, {"momentum"}, {"adam"}};
  const size_t further[] = {0, 0, 1, 2, 3};
  if (const size_t which = input->Number<uint8_t>() % 5; which != 0 && plan->data.kernels != nullptr) {
    const auto result = static_cast<DType>(input->Number<uint8_t>() % kDTypeCount);
    plan->epilogue =
        MakeEpilogue(functions[which], plan->data.dtype, result, std::vector<DType>(further[which], result));
  }
  if (const size_t which = input->Number<uint8_t>() % (kQuantFormatCount + 1); which != 0) {
    const auto format = static_cast<QuantFormat>(which - 1);
    const bool stochastic = input->Number<uint8_t>() % 2 != 0;
    plan->codes = PlanCodes{format, FindQuantizers(format).block_bytes, stochastic, 0};
    plan->shape.piece_bytes = kQuantBlock * sizeof(float);
  }
  CheckPlan(*plan, kSlot);
  plan->Seal();
  return plan;
}

struct Silence final : Notifier {
  void Notify() override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::shared_ptr<Plan> plan;
  try {
    plan = Read(&input);
  } catch (const std::invalid_argument&) {
    return 0;
  }
  if (plan->in_bytes() > kMostBytes || plan->out_bytes() > kMostBytes ||
      plan->shape.scratch_chunks * plan->shape.tile_elements * plan->data.partial_bytes > kMostBytes) {
    return 0;
  }
  std::vector<std::unique_ptr<char[]>> buffers;
  std::vector<Participant> participants;
  for (const RankTable& table : plan->group.locals) {
    buffers.push_back(std::make_unique<char[]>(plan->in_bytes()));
    buffers.push_back(std::make_unique<char[]>(plan->out_bytes()));
    Participant& participant = participants.emplace_back();
    participant.rank = table.rank;
    participant.in = buffers[buffers.size() - 2].get();
    participant.out = buffers.back().get();
    if (plan->codes) {
      static const uint32_t key[] = {1, 2, 0};
      const bool feedback = table.rank == 0;
      if (feedback) buffers.push_back(std::make_unique<char[]>(plan->out_bytes()));
      float* error = feedback ? reinterpret_cast<float*>(buffers.back().get()) : nullptr;
      participant.codes = std::make_unique<CodeBuffers>(CodeBuffers{key, error});
    }
    if (plan->epilogue == nullptr) continue;
    participant.epilogue = std::make_unique<EpilogueBuffers>();
    auto buffer = [&buffers](size_t bytes) -> EpilogueBuffers::Buffer {
      buffers.push_back(std::make_unique<char[]>(bytes));
      return {buffers.back().get(), bytes};
    };
    participant.epilogue->parameters = buffer(plan->epilogue->parameter_bytes());
    for (const PlanEpilogue::Further& each : plan->epilogue->further) {
      const size_t bytes = plan->shape.out_blocks * plan->shape.block_elements * each.kernels->element_bytes;
      participant.epilogue->further.push_back(buffer(bytes));
      if (each.state < 0) continue;
      // Some are updated where they lie, as XLA has it for donated ones.
      const bool in_place = (each.state + table.rank) % 2 == 0;
      participant.epilogue->states.push_back(in_place ? participant.epilogue->further.back() : buffer(bytes));
    }
  }
  static Silence doorbell;
  Links links(kSlot, &doorbell);
  UnexpectedMessages unexpected;
  const auto loss = [](const Operation& op, int self, int peer, const LinkEnd&) {
    return LostPeer(op, self, peer, PeerEnd{});
  };
  Interpreter interpreter(&links, &unexpected, loss, plan->protocol == Protocol::kLL);
  Operation op(plan, 1, std::move(participants), Clock::time_point::max());
  for (int turn = 0; turn < kTurns; ++turn) {
    bool moved = false;
    for (auto& lane : op.lanes()) moved |= !lane->done && interpreter.Advance(op, *lane, 32) == Progress::kMoved;
    if (!moved) break;
  }
  return 0;
}
