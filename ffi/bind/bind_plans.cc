#include "bind/bind_plans.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind_calls.h"
#include "bind/bind_links.h"
#include "bind/bind_tables.h"
#include "engine/site.h"

namespace nb = nanobind;

namespace jaxring {
namespace {

// A plan that Python builds field by field for a planning request.
struct PlanBuilder {
  std::shared_ptr<Plan> plan = std::make_shared<Plan>();

  void SetData(int dtype, int op, uint64_t divisor, uint64_t block_elements, bool exact) {
    if (dtype < 0 || dtype >= kDTypeCount || op >= kReduceOpCount) throw std::invalid_argument("no such dtype or op");
    plan->data.dtype = static_cast<DType>(dtype);
    plan->data.element_bytes = plan->data.partial_bytes = ElementBytes(plan->data.dtype);
    plan->data.divisor = divisor;
    plan->shape.block_elements = block_elements;
    if (op < 0) return;
    plan->data.kernels = FindKernels(plan->data.dtype, static_cast<ReduceOp>(op));
    if (plan->data.kernels == nullptr) throw std::invalid_argument("the reduction is not defined for the dtype");
    plan->data.partial_bytes = plan->data.kernels->accumulator_bytes;
    // The order of other reductions does not matter, or they are no sums.
    plan->data.exact = exact && plan->data.kernels->sum_exactly != nullptr;
  }
  // After SetData.
  void SetEpilogue(const std::vector<std::string>& functions, int result, const std::vector<int>& further) {
    if (plan->data.kernels == nullptr) throw std::invalid_argument("only a reduction has an epilogue");
    plan->epilogue = EpilogueFromNumbers(functions, plan->data.dtype, result, further);
  }
  void SetCodes(int format, bool stochastic, uint64_t first_word) {
    if (format < 0 || format >= kQuantFormatCount) throw std::invalid_argument("no such format of codes");
    const auto found = static_cast<QuantFormat>(format);
    plan->codes = PlanCodes{found, FindQuantizers(found).block_bytes, stochastic, first_word};
  }
  void SetShape(int in_blocks, int out_blocks, int pieces, int scratch_chunks, int nlanes) {
    plan->shape.in_blocks = in_blocks;
    plan->shape.out_blocks = out_blocks;
    plan->shape.pieces = pieces;
    plan->shape.scratch_chunks = scratch_chunks;
    plan->shape.nlanes = nlanes;
  }
  void SetProtocol(int protocol, uint64_t tile_elements, int channels, uint64_t piece_bytes) {
    if (tile_elements == 0 || channels < 1) throw std::invalid_argument("tile_elements and channels must be positive");
    if (piece_bytes % 64 != 0 || piece_bytes == 0)
      throw std::invalid_argument("piece_bytes must be a positive multiple of 64");
    plan->protocol = static_cast<Protocol>(protocol);
    plan->shape.tile_elements = tile_elements;
    plan->channels = channels;
    plan->shape.piece_bytes = piece_bytes;
  }
  void AddRank(int process, int device, const std::string& name) {
    plan->group.ranks.push_back({process, device, name});
  }
  void AddLocal(int rank, int caller, const nb::bytes& steps, const nb::bytes& lane_begin, const nb::bytes& peers) {
    RankTable table = TableFromBytes(rank, steps, lane_begin, peers, plan->shape.nlanes);
    table.caller = caller;
    table.NumberFlows();
    plan->group.locals.push_back(std::move(table));
  }
  std::shared_ptr<const Plan> Finish() {
    CheckPlan(*plan, Running().network().links().slot_bytes());
    plan->Seal();
    return plan;
  }
};

}  // namespace

void BindPlans(nb::module_& m) {
  nb::class_<PlanRequest>(m, "PlanRequest", "A call site's request for the plan of one of its groups.")
      .def_prop_ro("spec", [](const PlanRequest& r) { return r.spec(); })
      .def_prop_ro(
          "shown", [](const PlanRequest& r) { return r.shown(); },
          "The call's place in the program for people; empty where the spec has it.")
      .def_prop_ro("ordinal", [](const PlanRequest& r) { return r.ordinal; })
      .def_prop_ro("site", [](const PlanRequest& r) { return r.site->id(); })
      .def_prop_ro("group", [](const PlanRequest& r) { return r.group; })
      .def_prop_ro("partitions", [](const PlanRequest& r) { return r.site->GroupPartitions(r.group); })
      .def(
          "arrived", [](const PlanRequest& r) { return r.site->Arrived(r.group); },
          "The device id of each rank of this process that has arrived so far.")
      .def(
          "resolve", [](const PlanRequest& r, PlanBuilder& builder) { r.Resolve(builder.Finish()); }, nb::arg("plan"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "identify",
          [](const PlanRequest& r, uint64_t key, int half, int process) {
            r.Identify(key, static_cast<Half>(half), process);
          },
          nb::arg("key"), nb::arg("half"), nb::arg("process"),
          "Sets the plan's identity in advance, under which the other processes are told if planning fails.")
      .def(
          "reject",
          [](const PlanRequest& r, int code, const std::string& message) {
            r.Reject(Status::Error(static_cast<Code>(code), message));
          },
          nb::arg("code"), nb::arg("message"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "next_request",
      [](double timeout_s) -> nb::object {
        PlanRequest request;
        bool got;
        {
          nb::gil_scoped_release release;
          got = Running().NextRequest(timeout_s, &request);
        }
        return got ? nb::cast(request) : nb::none();
      },
      nb::arg("timeout_s"), nb::sig("def next_request(timeout_s: float) -> PlanRequest | None"),
      "The next planning request; None after timeout_s seconds, or when a control message has arrived or the CUDA "
      "engine asks for something.");

  m.def(
      "epilogues",
      [] {
        std::vector<std::tuple<std::string, int, int, int>> rows;
        for (const Epilogue& each : Epilogues())
          rows.emplace_back(each.name, each.parameters, each.operands, each.states);
        return rows;
      },
      "Of each function of epilogues: its name, and its numbers of parameters, operands and states.");
  nb::class_<PlanBuilder>(m, "PlanBuilder", "A plan in the making; resolve() freezes it.")
      .def(nb::init<>())
      .def(
          "set_identity",
          [](PlanBuilder& b, const std::string& what, uint64_t key, uint32_t check, int half, double timeout_s,
             int process, uint64_t epoch) {
            b.plan->what = what;
            b.plan->key = key;
            b.plan->check = check;
            b.plan->half = static_cast<Half>(half);
            b.plan->timeout_s = timeout_s;
            b.plan->group.process = process;
            b.plan->epoch = epoch;
          },
          nb::arg("what"), nb::arg("key"), nb::arg("check"), nb::arg("half"), nb::arg("timeout_s"), nb::arg("process"),
          nb::arg("epoch"))
      .def(
          "set_label",
          [](PlanBuilder& b, const std::string& label) {
            b.plan->record.label = std::make_shared<const std::string>(label);
          },
          nb::arg("label"), "JSON that `records` returns with each operation of this plan.")
      .def(
          "set_spec",
          [](PlanBuilder& b, const std::string& json) {
            b.plan->record.spec = std::make_shared<const std::string>(json);
          },
          nb::arg("spec"), "JSON that is saved with the operands of an operation of this plan that fails.")
      .def(
          "play",
          [](PlanBuilder& b, const nb::typed<nb::list, nb::object>& operands,
             const nb::typed<nb::list, nb::object>& results, const nb::typed<nb::list, nb::object>& blocks) {
            b.plan->epoch = Running().network().epoch();
            ExecuteOnce(b.Finish(), operands, results, blocks);
          },
          nb::arg("operands"), nb::arg("results"), nb::arg("blocks") = nb::list(),
          "Executes the plan once on its ranks' buffers; all ranks must belong to this process. Raises RuntimeError if "
          "it fails. `blocks` of a ragged collective: for each rank 4 x ranks uint64, in elements.")
      .def("set_data", &PlanBuilder::SetData, nb::arg("dtype"), nb::arg("op"), nb::arg("divisor"),
           nb::arg("block_elements"), nb::arg("exact") = false,
           "`exact`: sums of floats and complex numbers are exact, and rounded once.")
      .def("set_epilogue", &PlanBuilder::SetEpilogue, nb::arg("functions"), nb::arg("result"), nb::arg("further"),
           "What its EPILOGUE steps apply, by names of `epilogues`; the dtypes of the result, the operands and states.")
      .def("set_codes", &PlanBuilder::SetCodes, nb::arg("format"), nb::arg("stochastic"), nb::arg("first_word"),
           "Its messages are codes: the number of their format, how they are rounded, and the counter of their first "
           "random bits.")
      .def("set_shape", &PlanBuilder::SetShape, nb::arg("in_blocks"), nb::arg("out_blocks"), nb::arg("pieces"),
           nb::arg("scratch_chunks"), nb::arg("nlanes"))
      .def("set_protocol", &PlanBuilder::SetProtocol, nb::arg("protocol"), nb::arg("tile_elements"),
           nb::arg("channels"), nb::arg("piece_bytes"))
      .def("add_rank", &PlanBuilder::AddRank, nb::arg("process"), nb::arg("device"), nb::arg("name"))
      .def("add_local", &PlanBuilder::AddLocal, nb::arg("rank"), nb::arg("caller"), nb::arg("steps"),
           nb::arg("lane_begin"), nb::arg("peers"),
           "A local rank's table. `caller` is its rank as the call site counts, lost ranks included.")
      .def(
          "set_latch",
          [](PlanBuilder& b, const std::vector<int>& processes) {
            b.plan->latch = std::make_shared<ProgramLatch>(std::set<int>(processes.begin(), processes.end()));
            return b.plan->latch;
          },
          nb::arg("processes"), "Operations of this plan wait until each of the processes is confirmed.");

  nb::class_<ProgramLatch>(m, "ProgramLatch",
                           "Holds a plan's operations back until other processes have confirmed the program.")
      .def("confirm", [](ProgramLatch& latch, int process) { Running().Confirm(latch, process); }, nb::arg("process"));
}

}  // namespace jaxring
