#include "bind/bind_cuda_plans.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <type_traits>

#include "bind/bind_tables.h"
#include "cuda/host/standalone.h"

namespace nb = nanobind;

namespace jaxring::cuda {

void PlanBuilder::SetData(int dtype, int op, uint64_t divisor, uint64_t block_elements) {
  if (dtype < 0 || dtype >= kDTypeCount || op >= kReduceOpCount) throw std::invalid_argument("no such dtype or op");
  spec.data.dtype = static_cast<DType>(dtype);
  spec.data.reduces = op >= 0;
  if (op >= 0) spec.data.op = static_cast<ReduceOp>(op);
  if (op >= 0 && FindKernels(spec.data.dtype, spec.data.op) == nullptr) {
    throw std::invalid_argument("the reduction is not defined for the dtype");
  }
  spec.data.divisor = divisor;
  spec.shape.block_elements = block_elements;
}

void PlanBuilder::SetEpilogue(const std::vector<std::string>& functions, int result, const std::vector<int>& further) {
  if (!spec.data.reduces) throw std::invalid_argument("only a reduction has an epilogue");
  spec.epilogue = EpilogueFromNumbers(functions, spec.data.dtype, result, further);
}

void PlanBuilder::AddLocal(int rank, const nb::bytes& steps, const nb::bytes& lane_begin, const nb::bytes& peers,
                           bool members) {
  RankTable table = TableFromBytes(rank, steps, lane_begin, peers, spec.shape.nlanes);
  for (const Step& step : table.steps) {
    if (step.recv_count > kMaxStepPeers || step.send_count > kMaxStepPeers) {
      throw std::invalid_argument("a step of more than 64 sources or destinations");
    }
  }
  locals.emplace_back(std::move(table), members);
}

std::shared_ptr<LaunchPlan> PlanBuilder::Finish(std::shared_ptr<Communicator> communicator) {
  if (made_ && &made_->communicator() == communicator.get()) return made_;
  for (const auto& [table, members] : locals) {
    if (members && communicator->ranks().Members(table.rank).size() > kMaxStepPeers) {
      throw std::invalid_argument("more than 65 ranks that share memory: set JAXRING_P2P=none or use fewer");
    }
  }
  auto plan = std::make_shared<LaunchPlan>(std::move(communicator), spec);
  for (const auto& [table, members] : locals) plan->AddLocal(table, members);
  for (const auto& [rank, what] : moves) plan->SetMoves(rank, what.first, what.second);
  made_ = plan;
  return plan;
}

namespace {

// The results of a run of one rank each are bytes, or the word that they consist of.
template <class Output, class Shown>
void BindResult(nb::module_& m, const char* name) {
  using Result = StandaloneResult<Output>;
  const auto shown = [](const std::vector<Output>& of) {
    std::vector<Shown> found;
    for (const Output& output : of) {
      if constexpr (std::is_same_v<Shown, Output>) {
        found.push_back(output);
      } else {
        found.emplace_back(output.data(), output.size());
      }
    }
    return found;
  };
  nb::class_<Result>(m, name, "What a standalone run has given.")
      .def_prop_ro(
          "outputs", [shown](const Result& r) { return shown(r.outputs); },
          "Of each rank, from the last launch with the inputs.")
      .def_prop_ro(
          "other_outputs", [shown](const Result& r) { return shown(r.other_outputs); },
          "Of each rank, from a launch with the other inputs.")
      .def_ro("us", &Result::microseconds, "Microseconds of a launch on all ranks, one after another.")
      .def_ro("waited_us", &Result::waited, "The same where each launch is waited for; 0 in a graph.");
}

}  // namespace

void BindPlans(nb::module_& m) {
  nb::class_<Move>(m, "Move", "One copy of a rank.")
      .def(
          "__init__", [](Move* self, int block, int rank, int to) { new (self) Move{block, rank, to}; }, nb::kw_only(),
          nb::arg("block"), nb::arg("rank"), nb::arg("to"),
          "From its own `block`, or of zeros if that is -1, to block `to` of the output of `rank`.");
  BindResult<std::string, nb::bytes>(m, "StandaloneResult");
  BindResult<uint32_t, uint32_t>(m, "StandaloneWords");
  nb::class_<PlanBuilder>(m, "PlanBuilder", "A plan in the making; resolve() freezes it.")
      .def(nb::init<>())
      .def(
          "set_identity",
          [](PlanBuilder& b, const std::string& what, double timeout_s, int root, uint32_t call) {
            b.spec.what = what;
            b.spec.timeout_s = timeout_s;
            b.spec.data.root = root;
            b.spec.call = call;
          },
          nb::arg("what"), nb::arg("timeout_s"), nb::arg("root"), nb::arg("call"),
          "`call`: a number of the call site that all ranks share, by which their launches tell each other apart.")
      .def(
          "set_range", [](PlanBuilder& b, const std::string& name) { b.spec.range = name; }, nb::arg("name"),
          "The name that profilers show for its launches.")
      .def("set_data", &PlanBuilder::SetData, nb::arg("dtype"), nb::arg("op"), nb::arg("divisor"),
           nb::arg("block_elements"))
      .def(
          "set_shape",
          [](PlanBuilder& b, int in_blocks, int out_blocks, int pieces, int scratch_chunks, int nlanes) {
            if (scratch_chunks > static_cast<int>(kMaxScratch)) {
              throw std::invalid_argument("the schedule needs more scratch than a kernel has");
            }
            b.spec.shape.in_blocks = in_blocks;
            b.spec.shape.out_blocks = out_blocks;
            b.spec.shape.pieces = pieces;
            b.spec.shape.scratch_chunks = scratch_chunks;
            b.spec.shape.nlanes = nlanes;
          },
          nb::arg("in_blocks"), nb::arg("out_blocks"), nb::arg("pieces"), nb::arg("scratch_chunks"), nb::arg("nlanes"))
      .def(
          "set_kernel",
          [](PlanBuilder& b, int protocol, int fused, int threads, bool trap, bool zero_copy) {
            b.spec.kernel.protocol = static_cast<cuda::Protocol>(protocol);
            if (fused >= 0) b.spec.kernel.fused = static_cast<Fused>(fused);
            b.spec.kernel.threads = threads;
            b.spec.trap = trap;
            b.spec.zero_copy = zero_copy;
          },
          nb::arg("protocol"), nb::arg("fused"), nb::arg("threads"), nb::arg("trap"), nb::arg("zero_copy"))
      .def(
          "set_bulk", [](PlanBuilder& b, uint64_t bytes) { b.spec.kernel.bulk_bytes = bytes; }, nb::arg("bytes"),
          "From how many bytes on a slice that only moves goes by bulk copies, on devices that have them; 0: never.")
      .def(
          "set_point_to_point",
          [](PlanBuilder& b, std::shared_ptr<Communicator> header_ring, bool sends, uint64_t check) {
            b.spec.message.half = sends ? Half::kSend : Half::kRecv;
            b.spec.message.header_ring = std::move(header_ring);
            b.spec.message.check = check;
          },
          nb::arg("header_ring"), nb::arg("sends"), nb::arg("check"),
          "One half of a message between named ranks; `header_ring` is its queue's communicator.")
      .def(
          "set_ragged", [](PlanBuilder& b, uint64_t row_elements) { b.spec.shape.ragged_row = row_elements; },
          nb::arg("row_elements"), "Offsets and sizes come with each launch, in rows of so many elements.")
      .def("set_epilogue", &PlanBuilder::SetEpilogue, nb::arg("functions"), nb::arg("result"), nb::arg("further"),
           "What its EPILOGUE steps apply, by names of `epilogues`; the dtypes of the result, the operands and states.")
      .def("add_local", &PlanBuilder::AddLocal, nb::arg("rank"), nb::arg("steps"), nb::arg("lane_begin"),
           nb::arg("peers"), nb::arg("members"))
      .def(
          "set_multicast",
          [](PlanBuilder& b, int kind) {
            if (kind < 0 || kind > 2) throw std::invalid_argument("no such collective through multicast memory");
            b.spec.kernel.multicast = static_cast<MulticastKind>(kind);
          },
          nb::arg("kind"), "Through the communicator's multicast memory: 0 all_reduce, 1 reduce_scatter, 2 all_gather.")
      .def(
          "set_moves",
          [](PlanBuilder& b, int rank, std::vector<Move> moves, std::vector<int> arrivals) {
            b.moves[rank] = {std::move(moves), std::move(arrivals)};
          },
          nb::arg("rank"), nb::arg("moves"), nb::arg("arrivals"),
          "Makes the copy engine move the rank's bytes. `arrivals`: the blocks that others send.");
  m.def(
      "switch_widens",
      [](int dtype, int op, bool mean) -> int {
        return SwitchFormOf(static_cast<DType>(dtype), static_cast<ReduceOp>(op), mean).widen;
      },
      nb::arg("dtype"), nb::arg("op"), nb::arg("mean"),
      "How many bytes an NVLink switch reduces for each byte of such elements; 0 if it cannot reduce them.");
  m.def(
      "run_standalone",
      [](std::shared_ptr<Communicator> communicator, PlanBuilder& builder, const std::vector<nb::bytes>& inputs,
         const std::vector<nb::bytes>& others, int launches, bool in_graph) {
        const auto views = [](const std::vector<nb::bytes>& of) {  // the caller keeps them
          std::vector<std::string_view> found;
          for (const nb::bytes& input : of) found.emplace_back(input.c_str(), input.size());
          return found;
        };
        const auto given = views(inputs), other = views(others);
        nb::gil_scoped_release release;
        auto plan = builder.Finish(std::move(communicator));
        return RunStandalone(*plan, given, other, launches, in_graph ? Timed::kInGraph : Timed::kByHost);
      },
      nb::arg("communicator"), nb::arg("plan"), nb::arg("inputs"), nb::arg("others"), nb::arg("launches"),
      nb::arg("in_graph"), "Runs a plan whose ranks are all in this process, without XLA.");
  m.def(
      "run_standalone_words",
      [](std::shared_ptr<Communicator> communicator, PlanBuilder& builder, uint32_t input, uint32_t other, int launches,
         bool in_graph) {
        auto plan = builder.Finish(std::move(communicator));
        const auto timed = in_graph ? Timed::kInGraph : Timed::kByHost;
        return RunStandaloneWords(*plan, input, other, launches, timed);
      },
      nb::arg("communicator"), nb::arg("plan"), nb::arg("input"), nb::arg("other"), nb::arg("launches"),
      nb::arg("in_graph"), nb::call_guard<nb::gil_scoped_release>(),
      "The same where all inputs and outputs consist of one word of four bytes each, of which the outputs' are given.");
  m.def(
      "time_copy", [](int device, uint64_t bytes, int copies) { return TimeCopy(ThisGpu(), device, bytes, copies); },
      nb::arg("device"), nb::arg("bytes"), nb::arg("copies"), nb::call_guard<nb::gil_scoped_release>(),
      "Microseconds of a copy of so many bytes within a device.");
  m.def(
      "time_empty",
      [](int ranks, int launches, bool in_graph, int lanes, int threads) {
        const auto timed = in_graph ? Timed::kInGraph : Timed::kByHost;
        return TimeEmpty(ThisGpu(), ranks, launches, timed, lanes, threads);
      },
      nb::arg("ranks"), nb::arg("launches"), nb::arg("in_graph"), nb::arg("lanes"), nb::arg("threads"),
      nb::call_guard<nb::gil_scoped_release>(),
      "The same two times where so many ranks launch a kernel that does nothing; there are no outputs. It has one "
      "thread "
      "where `lanes` is 0, otherwise the blocks, threads and parameters of a collective's.");
}

}  // namespace jaxring::cuda
