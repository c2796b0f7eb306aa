#include "plugins/tensorflow/questions.h"

#include <algorithm>
#include <vector>

#include "plugins/tensorflow/engine_link.h"
#include "plugins/tensorflow/handles.h"

namespace farandole::tensorflow {

namespace {

using Question = int32_t (*)(const EngineLink::Use&, uint32_t group);

// `*kernel` is the number of a process set.
template <Question kQuestion>
void answer(void* kernel, TF_OpKernelContext* context) {
  const Status status;
  try {
    const EngineLink::Use use(EngineLink::of_process());
    use.engine();
    const int32_t answer = kQuestion(use, *static_cast<const uint32_t*>(kernel));
    const Tensor output(TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof(answer), status.get()));
    status.check();
    *static_cast<int32_t*>(TF_TensorData(output.get())) = answer;
  } catch (const OpError& error) {
    status.set(error.code(), error.what());
    TF_OpKernelContext_Failure(context, status.get());
  }
}

void* make(TF_OpKernelConstruction* construction) {
  int64_t group = 0;
  const Status status;
  TF_OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &group, status.get());
  if (TF_GetCode(status.get()) != TF_OK) {
    TF_OpKernelConstruction_Failure(construction, status.get());
  }
  return new uint32_t(static_cast<uint32_t>(group));
}

void forget(void* kernel) { delete static_cast<uint32_t*>(kernel); }

void infer_number(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

template <Question kQuestion>
void add(const char* name) {
  TF_OpDefinitionBuilder* const builder = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(builder, "process_set_id: int = 0");
  TF_OpDefinitionBuilderAddOutput(builder, "number: int32");
  // The answer changes from one world to the next, so it is not a constant.
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, &infer_number);
  const Status status;
  TF_RegisterOpDefinition(builder, status.get());
  status.check();
  TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", &make, &answer<kQuestion>, &forget), status.get());
  status.check();
}

int32_t size(const EngineLink::Use& use, uint32_t group) { return static_cast<int32_t>(use.ranks_of(group).size()); }
int32_t rank(const EngineLink::Use& use, uint32_t) { return use.place().rank; }
int32_t local_size(const EngineLink::Use& use, uint32_t) { return use.place().local_size; }
int32_t local_rank(const EngineLink::Use& use, uint32_t) { return use.place().local_rank; }
int32_t included(const EngineLink::Use& use, uint32_t group) {
  const std::vector<int32_t> ranks = use.ranks_of(group);
  return std::find(ranks.begin(), ranks.end(), use.place().rank) != ranks.end() ? 1 : 0;
}

}  // namespace

void register_questions() {
  add<size>("FarandoleSize");
  add<rank>("FarandoleRank");
  add<local_size>("FarandoleLocalSize");
  add<local_rank>("FarandoleLocalRank");
  add<included>("FarandoleProcessSetIncluded");
}

}  // namespace farandole::tensorflow
