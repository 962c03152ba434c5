#include "examples/digits/trainer.h"

#include "examples/digits/session.h"

namespace digits {

Trainer::Trainer(mercury_context* context, mercury_job* job, const Data& data,
                 const Schedule& schedule, const Turns& turns, const Pace& pace)
    : job_(job),
      data_(data),
      schedule_(schedule),
      turns_(turns),
      pace_(pace),
      rank_(job == nullptr ? 0 : static_cast<size_t>(mercury_job_get_rank(job))),
      model_(initial_model(schedule)) {
  memory_.reserve(2 * model_.layer_count());
  for (size_t l = 0; l < model_.layer_count(); ++l) {
    Exchange exchange;
    exchange.weights = tensor(context, l, model_.layer(l).weights.size());
    exchange.bias = tensor(context, l, model_.layer(l).bias.size());
    exchanges_.push_back(exchange);
  }
  if (job_ != nullptr) {
    check(mercury_declare(job_, tensors_.data(), tensors_.size()), "declare tensors");
  }
}

std::span<float> Trainer::tensor(mercury_context* context, size_t layer, size_t numel) {
  if (job_ == nullptr) return memory_.emplace_back(numel);
  void* memory = nullptr;
  check(mercury_alloc(context, numel * sizeof(float), &memory), "allocate");
  mercury_tensor_options options{};
  options.size = sizeof options;
  options.id = static_cast<uint32_t>(tensors_.size());
  options.numel = numel;
  options.dtype = MERCURY_DTYPE_F32;
  options.op = MERCURY_REDUCE_AVERAGE;
  options.priority = static_cast<uint16_t>(layer);  // the first layer is needed first
  options.data = memory;
  tensors_.push_back(options);
  return {static_cast<float*>(memory), numel};
}

void Trainer::train(const Report& report) {
  for (size_t step = 0; step < schedule_.iterations; ++step) iterate(step, report);
  for (size_t l = 0; l < model_.layer_count(); ++l) update(l, schedule_.iterations - 1);
  record_.end();
}

void Trainer::begin(size_t step) {
  if (turns_.begins(step) && step > 0) {
    // What one policy still has under way is not the next one's.
    for (size_t l = 0; l < model_.layer_count(); ++l) update(l, step - 1);
  }
  const bool last = turns_.begins(step + 1) || step + 1 == schedule_.iterations;
  record_.begin_iteration(turns_.policy(step), !turns_.begins(step) && !last);
  if (job_ != nullptr && rank_ == 0 && turns_.begins(step) && turns_.policies.size() > 1) {
    check(mercury_job_set_policy(job_, turns_.policy(step).c_str()), "change the policy");
  }
}

template <class Work>
void Trainer::compute(Record::Kind kind, size_t layer, size_t step, const Work& work) {
  const double begin_s = now_s();
  work();
  pace_.hold(kind, layer, begin_s);
  record_.span(kind, layer, step, begin_s, now_s());
}

// Waits for the last iteration's sums of a layer and applies them.
void Trainer::update(size_t l, size_t step) {
  Exchange& exchange = exchanges_[l];
  if (!exchange.pending) return;
  exchange.pending = false;
  if (job_ != nullptr) {
    const double from_s = now_s();
    for (mercury_handle handle : exchange.handles) {
      check(wait([&](int ms) { return mercury_wait(job_, handle, ms); }), "exchange");
    }
    const double there_s = now_s();
    record_.span(Record::Kind::kWait, l, step, from_s, there_s);
    record_.span(Record::Kind::kExchange, l, exchange.iteration, exchange.begun_s, there_s);
  }
  compute(Record::Kind::kUpdate, l, step,
          [&] { model_.apply(l, exchange.weights, exchange.bias); });
}

void Trainer::push(size_t l, size_t step) {
  Exchange& exchange = exchanges_[l];
  exchange.begun_s = now_s();
  exchange.iteration = step;
  exchange.pending = true;
  if (job_ == nullptr) return;
  for (uint32_t part = 0; part < 2; ++part) {
    check(mercury_push_pull(job_, static_cast<uint32_t>(2 * l) + part, MERCURY_DEFAULT_PRIORITY,
                            &exchange.handles[part]),
          "push");
  }
}

void Trainer::iterate(size_t step, const Report& report) {
  stop_if_interrupted();
  begin(step);
  take_share(data_.train, schedule_, step, rank_, pixels_, labels_);
  model_.set_input(pixels_);
  for (size_t l = 0; l < model_.layer_count(); ++l) {
    update(l, step);
    compute(Record::Kind::kForward, l, step, [&] { model_.forward(l); });
  }
  const float loss = model_.loss(labels_);
  const double right =
      static_cast<double>(model_.right(labels_)) / static_cast<double>(labels_.size());
  for (size_t l = model_.layer_count(); l-- > 0;) {
    Exchange& exchange = exchanges_[l];
    compute(Record::Kind::kBackward, l, step,
            [&] { model_.backward(l, exchange.weights, exchange.bias); });
    push(l, step);
  }
  report(step + 1, loss, right);
}

}  // namespace digits
