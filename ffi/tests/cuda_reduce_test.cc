// Every dtype and operation, on any bits, by the CUDA engine on the shim: what the CPU engine makes of them. And the
// fused collectives.
#include <memory>

#include "ffi/tests/cuda_launch.h"
#include "ffi/tests/job.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kThreads = 64;

// Any bits: infinities, NaN, subnormals and zeros of both signs among them.
std::vector<Buffer> AnyBits(const Call& call, uint64_t seed) {
  std::vector<Buffer> inputs;
  const size_t element = ElementBytes(call.settings().dtype);
  const size_t bytes = call.settings().block * call.schedule().in_blocks * element;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    inputs.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      const uint64_t random = Random(i / element ^ seed << 32 ^ static_cast<uint64_t>(rank) << 48);
      char byte = static_cast<char>(random >> 8 * (i % element % 8));
      if (call.settings().dtype == DType::kBool) byte &= 1;
      if (random % 7 == 0) byte = i % element == element - 1 ? static_cast<char>(random & 0x80) : 0;  // zeros
      inputs[rank].data()[i] = byte;
    }
  }
  return inputs;
}

std::vector<Buffer> OnCpu(Call& call, const std::vector<Buffer>& inputs) {
  std::vector<Buffer> outputs = Outputs(call);
  Ends ends(call.Describe());
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    call.Arrive(rank, 0, inputs[rank].data(), outputs[rank].data(), ends.Expect());
  }
  ends.WaitOk();
  return outputs;
}

void CheckSame(const Call& call, const std::string& how, const std::vector<Buffer>& got,
               const std::vector<Buffer>& want) {
  const size_t element = ElementBytes(call.settings().dtype);
  for (size_t rank = 0; rank < got.size(); ++rank) {
    got[rank].CheckGuards();
    for (size_t i = 0; i < got[rank].size(); i += element) {
      if (SameElement(call.settings().dtype, got[rank].data() + i, want[rank].data() + i)) continue;
      std::cerr << call.Describe() << ", op " << static_cast<int>(call.settings().op) << ", " << how << ", rank "
                << rank << ", element " << i / element << std::endl;
      Fail(__FILE__, __LINE__, "the CUDA engine gives the CPU engine's value");
    }
  }
}

Settings SettingsOf(const Schedule& schedule, DType dtype, ReduceOp op, bool mean, uint64_t block) {
  Settings settings;
  settings.dtype = dtype;
  settings.op = op;
  settings.divisor = mean ? schedule.ranks() : 0;
  settings.block = block;
  settings.protocol = schedule.messages() ? jaxring::Protocol::kSimple : jaxring::Protocol::kMemory;
  settings.tile = 16;
  return settings;
}

void CheckInterpreter(Job& job, const Schedule& schedule, const Settings& settings) {
  Call call(&job, schedule, settings);
  const std::vector<Buffer> inputs = AnyBits(call, 3);
  const std::vector<Buffer> expected = OnCpu(call, inputs);
  static cuda::simt::Machine machine;
  CudaPlan plan(schedule, settings, 2);
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    Cluster cluster({schedule.ranks(), static_cast<uint32_t>(schedule.nlanes), schedule.placement, protocol, 4,
                     plan.slot_bytes(protocol)});
    std::vector<Buffer> outputs = Outputs(call);
    std::vector<cuda::simt::Stream> streams(schedule.ranks());
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      streams[rank].push_back(LaunchOf(plan.Args(cluster, rank, inputs[rank].data(), outputs[rank].data()), kThreads));
    }
    CHECK(machine.Run(streams, {settings.block, {}}));
    CheckSame(call, "protocol " + std::to_string(static_cast<int>(protocol)), outputs, expected);
  }
}

void CheckReductions() {
  Job several(4, Wire::kShared), one(1, Wire::kShared);
  const Schedule &ring = Find("all_reduce ring 4x1 x1"), &direct = Find("all_reduce direct 1x4 x1");
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const DType dtype = static_cast<DType>(d);
      const ReduceOp op = static_cast<ReduceOp>(o);
      if (FindKernels(dtype, op) == nullptr) continue;
      // Arithmetic is no matter of threads.
      if (cuda::simt::kThreadSanitizer && (op != ReduceOp::kSum || IsInteger(dtype))) continue;
      CheckInterpreter(several, ring, SettingsOf(ring, dtype, op, false, 331));
      CheckInterpreter(one, direct, SettingsOf(direct, dtype, op, false, 1031));
      if (op == ReduceOp::kSum && !IsInteger(dtype)) {
        CheckInterpreter(several, ring, SettingsOf(ring, dtype, op, true, 331));
      }
    }
  }
}

// By several launches in a row, so that stages and gates are used again; all_reduce in place in the end.
void CheckFused(Job& job, cuda::Fused fused, const char* name, DType dtype, bool mean, uint64_t block) {
  const Schedule& schedule = Find(name);
  const int n = schedule.ranks();
  Settings settings = SettingsOf(schedule, dtype, ReduceOp::kSum, mean, block);
  Call call(&job, schedule, settings);
  const std::vector<Buffer> inputs = AnyBits(call, block);
  const std::vector<Buffer> expected = OnCpu(call, inputs);
  ClusterShape shape{
      n, 3, schedule.placement, cuda::Protocol::kSimple, 4, 128, cuda::StageBytes(block * ElementBytes(dtype)) + 1024};
  Cluster cluster(shape);
  std::vector<std::vector<Buffer>> outputs;
  const bool all_reduce = schedule.collective == "all_reduce";
  std::vector<cuda::simt::Stream> streams(n);
  for (int launch = 0; launch < 5; ++launch) {
    outputs.push_back(Outputs(call));
    for (int rank = 0; rank < n; ++rank) {
      const char* in = inputs[rank].data();
      char* out = outputs[launch][rank].data();
      if (all_reduce && launch == 4) {
        std::memcpy(out, in, inputs[rank].size());
        in = out;
      }
      cuda::Args args = cluster.Common(rank, in, out, true);
      args.block_elements = block;
      args.divisor = settings.divisor;
      args.lanes = 3;
      args.in_blocks = schedule.in_blocks;
      args.out_blocks = schedule.out_blocks;
      args.root = schedule.root;
      args.dtype = dtype;
      args.op = settings.op;
      args.reduces = schedule.reduces();
      streams[rank].push_back(FusedLaunchOf(fused, args, kThreads));
    }
  }
  static cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {block + 1, {}}));
  for (const auto& launch : outputs) {
    CheckSame(call, "fused " + std::to_string(static_cast<int>(fused)), launch, expected);
  }
}

void CheckAllFused() {
  using cuda::Fused;
  Job job(1, Wire::kShared);
  for (const char* where : {"1x4", "1x1"}) {
    auto name = [&](const char* collective) { return std::string(collective) + " direct " + where + " x1"; };
    for (uint64_t block : {0, 1, 7, 300, 2111}) {
      if (cuda::simt::kThreadSanitizer && block != 300) continue;
      for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3FN, DType::kC128, DType::kInt8}) {
        const bool mean = dtype == DType::kBF16;
        CheckFused(job, Fused::kAllReduceOneShot, name("all_reduce").c_str(), dtype, mean, block);
        CheckFused(job, Fused::kAllReduceTwoShot, name("all_reduce").c_str(), dtype, mean, block);
        CheckFused(job, Fused::kReduceScatter, name("reduce_scatter").c_str(), dtype, mean, block);
      }
      for (DType dtype : {DType::kF32, DType::kInt8}) {
        CheckFused(job, Fused::kAllGather, name("all_gather").c_str(), dtype, false, block);
        CheckFused(job, Fused::kBroadcast, name("broadcast").c_str(), dtype, false, block);
        CheckFused(job, Fused::kAllToAll, name("all_to_all").c_str(), dtype, false, block);
      }
    }
  }
}

}  // namespace
}  // namespace jaxring::test

int main() {
  jaxring::test::CheckReductions();
  jaxring::test::CheckAllFused();
}
