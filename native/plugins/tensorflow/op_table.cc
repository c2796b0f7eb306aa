#include "plugins/tensorflow/op_table.h"

#include <cctype>
#include <string>

#include "plugins/tensorflow/call.h"
#include "plugins/tensorflow/errors.h"
#include "plugins/tensorflow/handles.h"
#include "plugins/tensorflow/questions.h"

namespace farandole::tensorflow {

namespace {

constexpr const char* kReducible = "{half, bfloat16, float, double, uint8, int8, int16, int32, int64, bool}";
// Any type: element_type_of() decides which ones can be sent.
constexpr const char* kMovable = "type";

using enum Attribute;

// The op of a kind of request, for one tensor or for several that travel together.
OpRow row_of(uint32_t kind, bool grouped) {
  const farandole_kind_row& described = *farandole_kind_row_of(kind);
  const bool reduces = (described.has & FARANDOLE_HAS_REDUCTION) != 0;
  const std::string name = described.name;
  OpRow row;
  row.name = std::string("Farandole") + (grouped ? "Grouped" : "") +
             static_cast<char>(std::toupper(static_cast<unsigned char>(name[0]))) + name.substr(1);
  row.operation = (grouped ? "grouped_" : "") + name;
  row.kind = kind;
  row.grouped = grouped;
  row.types = reduces ? kReducible : kMovable;
  row.attributes = {grouped ? kTypes : kType};
  switch (described.rows) {
    case FARANDOLE_ROWS_SAME:
      row.flow = reduces ? Flow::kReduce : Flow::kCopy;
      row.outputs = Outputs::kSame;
      break;
    case FARANDOLE_ROWS_SHARED:
      row.flow = Flow::kOwnRows;
      row.outputs = Outputs::kRows;
      break;
    default:
      row.flow = Flow::kRows;
      row.outputs = Outputs::kRowsAndCounts;
  }
  if (described.rows == FARANDOLE_ROWS_EXCHANGED) {
    row.attributes.push_back(kSplits);
  }
  row.attributes.insert(row.attributes.end(), {kName, kProcessSet});
  if (reduces) {
    row.attributes.push_back(kReduction);
  }
  if ((described.has & FARANDOLE_HAS_ROOT) != 0) {
    row.attributes.push_back(kRoot);
  }
  return row;
}

std::vector<OpRow> make_rows() {
  std::vector<OpRow> rows = {
      {"FarandoleBarrier", "barrier", FARANDOLE_BARRIER, Flow::kNothing, false, "", {kName, kProcessSet}},
      {"FarandoleJoin", "join", FARANDOLE_JOIN, Flow::kNothing, false, "", {}}};
  for (uint32_t kind = 0; kind < FARANDOLE_KINDS; ++kind) {
    const farandole_kind_row& described = *farandole_kind_row_of(kind);
    if ((described.has & FARANDOLE_HAS_TENSOR) == 0 || (described.has & FARANDOLE_HAS_PEER) != 0) {
      continue;
    }
    rows.push_back(row_of(kind, false));
    if (described.rows != FARANDOLE_ROWS_EXCHANGED) {  // the targets of rows are a separate input
      rows.push_back(row_of(kind, true));
    }
  }
  return rows;
}

const std::vector<OpRow>& rows() {
  static const auto* const rows = new std::vector<OpRow>(make_rows());
  return *rows;
}

// --- shapes

// The rows of an input, whose number is not known yet.
Shape unknown_rows(TF_ShapeInferenceContext* context, TF_ShapeHandle* input, const Status& status) {
  Shape result(TF_NewShapeHandle());
  Shape inner(TF_NewShapeHandle());
  const Shape first(TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  TF_ShapeInferenceContextSubshape(context, input, 1, TF_ShapeInferenceContextRank(context, input), inner.get(),
                                   status.get());
  status.check();
  TF_ShapeInferenceContextConcatenateShapes(context, first.get(), inner.get(), result.get(), status.get());
  status.check();
  return result;
}

void infer_same(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(TF_NewShapeHandle());
  for (int i = 0; i < TF_ShapeInferenceContextNumInputs(context); ++i) {
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void infer_rows(const OpRow& row, TF_ShapeInferenceContext* context, TF_Status* told) {
  TF_ShapeInferenceContextSetUnknownShape(context, told);
  try {
    const Status status;
    const Shape input(TF_NewShapeHandle());
    for (int i = 0; i < TF_ShapeInferenceContextNumInputs(context); ++i) {
      TF_ShapeInferenceContextGetInput(context, i, input.get(), status.get());
      status.check();
      if (!TF_ShapeInferenceContextRankKnown(context, input.get())) {
        continue;
      }
      if (TF_ShapeInferenceContextRank(context, input.get()) == 0) {
        throw without_rows(row);
      }
      const Shape rows = unknown_rows(context, input.get(), status);
      TF_ShapeInferenceContextSetOutput(context, i, rows.get(), status.get());
      status.check();
    }
  } catch (const OpError& error) {
    TF_SetStatus(told, error.code(), error.what());
  }
}

void infer_number(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

template <size_t kRow>
void infer(TF_ShapeInferenceContext* context, TF_Status* status) {
  const OpRow& row = rows()[kRow];
  switch (row.outputs) {
    case Outputs::kSame:
      return infer_same(context, status);
    case Outputs::kRows:
      return infer_rows(row, context, status);
    case Outputs::kRowsAndCounts:
      return TF_ShapeInferenceContextSetUnknownShape(context, status);
    case Outputs::kNumber:
      return infer_number(context, status);
  }
}

// --- registration

// TensorFlow makes kernels and infers shapes by functions without a context, so each row has its own functions.
struct RowFunctions {
  void* (*make)(TF_OpKernelConstruction*);
  void (*infer)(TF_ShapeInferenceContext*, TF_Status*);
};

template <size_t kRow>
void* make(TF_OpKernelConstruction* construction) {
  return make_kernel(&rows()[kRow], construction);
}

template <size_t... kRows>
std::vector<RowFunctions> functions(std::index_sequence<kRows...>) {
  return {{&make<kRows>, &infer<kRows>}...};
}

constexpr size_t kMostRows = 2 * FARANDOLE_KINDS + 2;

void add_attribute(TF_OpDefinitionBuilder* builder, const OpRow& row, Attribute attribute) {
  const auto add = [builder](const std::string& spec) { TF_OpDefinitionBuilderAddAttr(builder, spec.c_str()); };
  switch (attribute) {
    case kType:
      add("T: " + std::string(row.types));
      break;
    case kTypes:
      add("T: list(" + std::string(row.types) + ") >= 1");
      break;
    case kSplits:
      add("has_splits: int >= 0 = 0");
      break;
    case kName:
      add("tensor_name: string = ''");
      add("ignore_name_scope: int = 0");
      break;
    case kProcessSet:
      add("process_set_id: int = 0");
      break;
    case kReduction:
      add("reduce_op: int");
      add("prescale: string = '1'");
      add("postscale: string = '1'");
      break;
    case kRoot:
      add("root_rank: int");
      break;
  }
}

void add_inputs_and_outputs(TF_OpDefinitionBuilder* builder, const OpRow& row) {
  if (row.flow == Flow::kNothing) {
    TF_OpDefinitionBuilderAddOutput(builder, "number: int32");
    return;
  }
  TF_OpDefinitionBuilderAddInput(builder, row.grouped ? "tensors: T" : "tensor: T");
  if (row.kind == FARANDOLE_ALLTOALL) {
    TF_OpDefinitionBuilderAddInput(builder, "splits: has_splits * int32");
  }
  TF_OpDefinitionBuilderAddOutput(builder, row.grouped ? "results: T" : "result: T");
  if (row.outputs == Outputs::kRowsAndCounts) {
    TF_OpDefinitionBuilderAddOutput(builder, row.kind == FARANDOLE_ALLTOALL ? "counts: int32" : "counts: int64");
  }
}

void define(const OpRow& row, void (*infer)(TF_ShapeInferenceContext*, TF_Status*)) {
  TF_OpDefinitionBuilder* const builder = TF_NewOpDefinitionBuilder(row.name.c_str());
  for (const Attribute attribute : row.attributes) {
    add_attribute(builder, row, attribute);
  }
  add_inputs_and_outputs(builder, row);
  // An op that other ranks wait for must not be merged with an equal one, or folded into a constant.
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer);
  const Status status;
  TF_RegisterOpDefinition(builder, status.get());  // takes the builder
  status.check();
}

}  // namespace

std::span<const OpRow> op_table() { return rows(); }

void register_ops() {
  const auto of_rows = functions(std::make_index_sequence<kMostRows>());
  for (size_t i = 0; i < rows().size(); ++i) {
    const OpRow& row = rows()[i];
    define(row, of_rows[i].infer);
    const Status status;
    TF_RegisterKernelBuilder(
        row.name.c_str(),
        TF_NewAsyncKernelBuilder(row.name.c_str(), "CPU", of_rows[i].make, &Call::run, &delete_kernel), status.get());
    status.check();
  }
  register_questions();
}

}  // namespace farandole::tensorflow
