// The Python face of the native core. Arrays cross as C-contiguous numpy arrays; everything else is plain numbers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bandwidth.h"
#include "checks.h"
#include "checksum.h"
#include "cpu.h"
#include "executor.h"
#include "kernel_tests.h"
#include "pool_stress.h"
#include "throughput.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes2 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Subscales2 = nb::ndarray<const int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bits2 = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto view(const Array& a) {
  return std::span<const typename Array::Scalar>(a.data(), a.size());
}

template <class T>
nb::object copied(const std::vector<T>& values, std::vector<size_t> shape) {
  T* data = new T[values.size()];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
}

Format parse_format(const std::string& name) {
  if (name == "fp32") return Format::kF32;
  if (name == "bf16") return Format::kBf16;
  throw std::invalid_argument("format '" + name + "': fp32 or bf16");
}

void check_rows(const Matrix& m, size_t inner, size_t first, size_t rows) {
  if (inner != static_cast<size_t>(m.inner()) || first + rows > static_cast<size_t>(m.outputs()))
    throw std::invalid_argument("rows do not fit the matrix");
}

void check_groups(const Matrix& m, const Codes2& codes, const Floats2& scales, const std::optional<Floats2>& minima,
                  size_t first) {
  check_rows(m, codes.shape(1), first, codes.shape(0));
  if (!m.is_quantized()) throw std::invalid_argument("the matrix is not quantized");
  if (m.grouping().minima != minima.has_value()) throw std::invalid_argument("minima are given or not as declared");
  const size_t groups = ceil_div(m.inner(), m.grouping().group);
  for (const Floats2* values : {&scales, minima ? &*minima : &scales})
    if (values->shape(0) != codes.shape(0) || values->shape(1) != groups)
      throw std::invalid_argument("scales or minima do not fit the matrix");
}

// Of a matrix of two levels there is a number per subgroup, of others none.
void check_subgroups(const Matrix& m, size_t rows, const std::optional<Subscales2>& subscales,
                     const std::optional<Codes2>& subminima) {
  const bool two_level = m.grouping().two_level;
  const size_t count = two_level ? m.num_groups() * TwoLevel{m.grouping().bits}.subgroups() : 0;
  const auto fits = [&](const auto& values, bool wanted) {
    return values.has_value() == wanted && (!wanted || (values->shape(0) == rows && values->shape(1) == count));
  };
  if (!fits(subscales, two_level) || !fits(subminima, two_level && m.grouping().minima))
    throw std::invalid_argument("subscales or subminima do not fit the matrix");
}

template <class Array>
const typename Array::Scalar* data_of(const std::optional<Array>& array) {
  return array ? array->data() : nullptr;
}

nb::object bytes_of(const Memory& memory) {
  nb::capsule owner(new std::shared_ptr<void>(memory.shared()),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(memory.as<void>(), {memory.bytes()}, owner));
}

// Puts every section of weights on the bytes given for it: those of a mapped file.
void stand_on(Executor& executor, const std::vector<Bytes>& given) {
  const std::vector<Memory*> sections = executor.sections();
  if (given.size() != sections.size()) throw std::invalid_argument("another number of sections");
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].size() != sections[i]->bytes()) throw std::invalid_argument("a section has another size");
  for (size_t i = 0; i < given.size(); ++i) {
    void* data = const_cast<uint8_t*>(given[i].data());
    *sections[i] = Memory(std::shared_ptr<void>(data, [owner = given[i]](void*) {}), given[i].size());
  }
}

void bind_executor(nb::module_& m) {
  nb::class_<ModelShape>(m, "ModelShape")
      .def(nb::init<>())
      .def_rw("num_layers", &ModelShape::num_layers)
      .def_rw("num_heads", &ModelShape::num_heads)
      .def_rw("num_kv_heads", &ModelShape::num_kv_heads)
      .def_rw("head_dim", &ModelShape::head_dim)
      .def_rw("vocab", &ModelShape::vocab)
      .def_rw("norm_eps", &ModelShape::norm_eps)
      .def_rw("inverse_frequencies", &ModelShape::inverse_frequencies);

  nb::class_<SamplerSetup>(m, "SamplerSetup")
      .def(nb::init<>())
      .def_rw("temperature", &SamplerSetup::temperature)
      .def_rw("top_k", &SamplerSetup::top_k)
      .def_rw("top_p", &SamplerSetup::top_p)
      .def_rw("min_p", &SamplerSetup::min_p)
      .def_rw("repetition_penalty", &SamplerSetup::repetition_penalty)
      .def_rw("presence_penalty", &SamplerSetup::presence_penalty)
      .def_rw("frequency_penalty", &SamplerSetup::frequency_penalty)
      .def_rw("seed", &SamplerSetup::seed)
      .def_rw("choice", &SamplerSetup::choice)
      .def_rw("min_tokens", &SamplerSetup::min_tokens)
      .def_rw("top_logprobs", &SamplerSetup::top_logprobs)
      .def_rw("banned_ids", &SamplerSetup::banned_ids)
      .def_rw("logit_bias", &SamplerSetup::logit_bias);

  nb::class_<Grouping>(m, "Grouping")
      .def(
          "__init__",
          [](Grouping* self, int bits, int zero, int group, bool has_minima, bool half_scales, bool two_level) {
            new (self) Grouping{bits, zero, group, has_minima, half_scales, two_level};
          },
          "bits"_a, "zero"_a, "group"_a, "has_minima"_a, "half_scales"_a, "two_level"_a);

  nb::class_<OpWork>(m, "OpWork")
      .def_ro("kind", &OpWork::kind)
      .def_ro("shape", &OpWork::shape)
      .def_ro("format", &OpWork::format)
      .def_ro("step_bytes", &OpWork::step_bytes)
      .def_ro("row_bytes", &OpWork::row_bytes)
      .def_ro("row_flops", &OpWork::row_flops)
      .def_ro("key_bytes", &OpWork::key_bytes)
      .def_ro("pair_flops", &OpWork::pair_flops)
      .def_ro("window", &OpWork::window)
      .def_ro("per_logit_row", &OpWork::per_logit_row);
  nb::class_<Executor>(m, "Executor")
      .def(
          "__init__",
          [](Executor* self, const ModelShape& shape, const std::string& kv_dtype, int num_pages, int max_rows,
             int num_sampler_slots, int threads, std::optional<int> niceness) {
            new (self) Executor(shape, parse_kv_format(kv_dtype), num_pages, max_rows, num_sampler_slots, threads,
                                niceness, choose_kernels());
          },
          "shape"_a, "kv_dtype"_a, "num_pages"_a, "max_rows"_a, "num_sampler_slots"_a, "threads"_a,
          "niceness"_a.none())
      .def(
          "add_buffer",
          [](Executor& e, int width, const std::string& format, bool per_logit_row) {
            return e.add_buffer(width, parse_format(format), per_logit_row);
          },
          "width"_a, "format"_a, "per_logit_row"_a)
      .def("add_quantized_buffer", &Executor::add_quantized_buffer, "width"_a, "group"_a, "part_sums"_a,
           "per_logit_row"_a, "hadamard"_a, "mixing"_a)
      .def(
          "add_matrix",
          [](Executor& e, int outputs, int inner, const std::string& format) {
            return e.add_matrix(outputs, inner, parse_format(format));
          },
          "outputs"_a, "inner"_a, "format"_a)
      .def("add_quantized_matrix", &Executor::add_quantized_matrix, "outputs"_a, "inner"_a, "grouping"_a)
      .def("add_vector", &Executor::add_vector, "width"_a)
      .def(
          "set_vector",
          [](Executor& e, int vector, Floats values, int first) { e.set_vector(vector, view(values), first); },
          "vector"_a, "values"_a, "first"_a)
      .def(
          "pack",
          [](Executor& e, int matrix, Floats2 values, int first) {
            check_rows(e.matrix(matrix), values.shape(1), first, values.shape(0));
            nb::gil_scoped_release unlocked;
            e.matrix(matrix).pack(values.data(), first, static_cast<int>(values.shape(0)));
          },
          "matrix"_a, "values"_a, "first"_a)
      .def(
          "pack_bf16",
          [](Executor& e, int matrix, Bits2 bits, int first) {
            check_rows(e.matrix(matrix), bits.shape(1), first, bits.shape(0));
            nb::gil_scoped_release unlocked;
            e.matrix(matrix).pack_bf16(bits.data(), first, static_cast<int>(bits.shape(0)));
          },
          "matrix"_a, "bits"_a, "first"_a)
      .def(
          "pack_groups",
          [](Executor& e, int matrix, Codes2 codes, Floats2 scales, std::optional<Floats2> minima,
             std::optional<Subscales2> subscales, std::optional<Codes2> subminima, int first) {
            check_groups(e.matrix(matrix), codes, scales, minima, first);
            check_subgroups(e.matrix(matrix), codes.shape(0), subscales, subminima);
            const GroupedRows rows{codes.data(), scales.data(), data_of(minima), data_of(subscales), data_of(subminima)};
            nb::gil_scoped_release unlocked;
            e.matrix(matrix).pack_groups(rows, first, static_cast<int>(codes.shape(0)));
          },
          "matrix"_a, "codes"_a, "scales"_a, "minima"_a.none(), "subscales"_a.none(), "subminima"_a.none(), "first"_a)
      .def(
          "sections",
          [](Executor& e) {
            nb::list views;
            for (const Memory* section : e.sections()) views.append(bytes_of(*section));
            return views;
          },
          "Views of all packed weights, uint8.")
      .def("stand_on", &stand_on, "sections"_a, "Uses these bytes, of the sizes of `sections()`, in place of its own.")
      .def("add_embed", &Executor::add_embed, "matrix"_a, "out"_a)
      .def("add_norm", &Executor::add_norm, "source"_a, "weight"_a, "outs"_a, "width"_a)
      .def("add_quantize", &Executor::add_quantize, "source"_a, "out"_a)
      .def(
          "add_matmul",
          [](Executor& e, int source, int matrix, int out, int column, int bias, const std::string& epilogue) {
            e.add_matmul(source, matrix, out, column, bias, parse_epilogue(epilogue));
          },
          "source"_a, "matrix"_a, "out"_a, "column"_a, "bias"_a, "epilogue"_a)
      .def("add_rope_store", &Executor::add_rope_store, "layer"_a, "source"_a, "out"_a, "q_norm"_a, "k_norm"_a)
      .def("add_attention", &Executor::add_attention, "layer"_a, "source"_a, "out"_a, "window"_a)
      .def("add_gather", &Executor::add_gather, "source"_a, "out"_a)
      .def("add_logits", &Executor::add_logits, "source"_a, "matrix"_a, "out"_a)
      .def("read_page",
           [](const Executor& e, int page) {
             std::vector<uint8_t> bytes(e.page_bytes());
             e.read_page(page, reinterpret_cast<char*>(bytes.data()));
             return copied(bytes, {bytes.size()});
           },
           "page"_a)
      .def(
          "write_page",
          [](Executor& e, int page, Bytes bytes) {
            if (bytes.size() != e.page_bytes()) throw std::invalid_argument("a page has another size");
            e.write_page(page, reinterpret_cast<const char*>(bytes.data()));
          },
          "page"_a, "bytes"_a)
      .def("copy_page", &Executor::copy_page, "source"_a, "destination"_a)
      .def(
          "open_sampler",
          [](Executor& e, int slot, const SamplerSetup& setup, Ints prompt, Ints output) {
            e.open_sampler(slot, setup, view(prompt), view(output));
          },
          "slot"_a, "setup"_a, "prompt"_a, "output"_a)
      .def(
          "submit",
          [](Executor& e, Ints token_ids, Ints positions, Ints slots, Ints query_start, Ints context_len,
             Ints2 block_tables, Ints logit_rows, Ints sampler_slots, Ints score_ids, Ints score_top,
             bool want_logits) {
            e.submit({view(token_ids), view(positions), view(slots), view(query_start), view(context_len),
                      view(block_tables), static_cast<int>(block_tables.shape(1)), view(logit_rows),
                      view(sampler_slots), view(score_ids), view(score_top), want_logits});
          },
          "token_ids"_a, "positions"_a, "slots"_a, "query_start"_a, "context_len"_a, "block_tables"_a, "logit_rows"_a,
          "sampler_slots"_a, "score_ids"_a, "score_top"_a, "want_logits"_a)
      .def("wait",
           [](Executor& e) {
             const StepResult* r;
             {
               nb::gil_scoped_release unlocked;
               r = &e.wait();
             }
             const size_t rows = r->token_ids.size();
             nb::object logits = nb::none();
             if (r->has_logits) logits = copied(r->logits, {rows, static_cast<size_t>(e.vocab())});
             return nb::make_tuple(copied(r->token_ids, {rows}), copied(r->logprobs, {rows}),
                                   copied(r->top_ids, {rows, kMaxTopLogprobs}),
                                   copied(r->top_logprobs, {rows, kMaxTopLogprobs}), copied(r->finite, {rows}), logits,
                                   r->duration_s);
           })
      .def("profile", &Executor::profile, "on"_a)
      .def_prop_ro("op_seconds", &Executor::op_seconds)
      .def_prop_ro("op_works", &Executor::op_works)
      .def_prop_ro("page_bytes", &Executor::page_bytes)
      .def_prop_ro("isa", &Executor::isa)
      .def_prop_ro("weight_bytes", &Executor::weight_bytes)
      .def_prop_ro("kv_bytes", &Executor::kv_bytes)
      .def_prop_ro("buffer_bytes", &Executor::buffer_bytes);
}

}  // namespace
}  // namespace ridgeline

NB_MODULE(_native, m) {
  m.doc() = "Ridgeline's native core: see native/ for the C++.";
  ridgeline::bind_executor(m);
  ridgeline::bind_kernel_tests(m);
  m.def(
      "checksums",
      [](const std::vector<ridgeline::Bytes>& sections, int threads) {
        std::vector<std::span<const uint8_t>> views;
        for (const auto& section : sections) views.push_back(ridgeline::view(section));
        nb::gil_scoped_release unlocked;
        return ridgeline::checksums(views, threads);
      },
      "sections"_a, "threads"_a, "A 64-bit checksum of each.");
  m.def("isa", [] { return std::string(ridgeline::choose_kernels().name); }, "The ISA path of this process.");
  m.def(
      "isa_paths",
      [] {
        std::vector<std::pair<std::string, std::string>> paths;
        for (const auto& path : ridgeline::isa_paths()) paths.emplace_back(path.name, path.problem);
        return paths;
      },
      "(name, why it cannot run here or an empty string) of every ISA path compiled for this architecture, fastest "
      "first.");
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#else
  m.attr("compiler") = "gcc " __VERSION__;
#endif
  m.def("stress_pool", &ridgeline::stress_pool, "threads"_a, "jobs"_a, "loops"_a, "tasks"_a,
        nb::call_guard<nb::gil_scoped_release>(), "A trial of the thread pool; raises where it did other work than asked.");
  m.def("read_bandwidth", &ridgeline::read_bandwidth, "num_bytes"_a, "threads"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(), "Bytes per second that `threads` threads read from `num_bytes`.");
  m.def(
      "matmul_flops",
      [](const std::string& dtype, int rows, int inner, int outputs, int threads, double seconds) {
        return ridgeline::matmul_throughput(ridgeline::choose_kernels(),
                                            ridgeline::matrix_of_format(dtype, outputs, inner), rows, threads, seconds);
      },
      "dtype"_a, "rows"_a, "inner"_a, "outputs"_a, "threads"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Operations per second (2 per multiply-add) of `rows` rows by a matrix [outputs, inner], by our own kernels.");
}
