#include "tests/cuda/cuda_compare.h"

#include "tests/support/reduce_reference.h"

namespace jaxring::test {

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

}  // namespace jaxring::test
