"""What ScheduledOptimizer refuses, and with which words; and how it ends.

usage: torch_refusals_test.py PACKAGE_FOLDER LIBRARY
"""
import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
import unittest
import unittest.mock
from concurrent.futures import Future

from torch_lab import FOREVER_S, ONE_AT_A_TIME, PACKAGE, WORKERS, Cluster, ScheduledOptimizer, batches, each_alone, loss_of, net, on_threads, sgd

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mercurystack import JobFailedError, MercuryError, _agreement
from mercurystack._staging import Leaving


class OfClosures(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)

    def step(self, closure):
        closure()


class OfAllTogether(torch.optim.SGD):
    """Its rate hangs on the norm of all gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["norm"] = 0.0

    def step(self, closure=None):
        for group in self.param_groups:
            group["norm"] = float(sum(one.grad.norm() for one in group["params"]))


class OfANorm(torch.optim.SGD):
    """Its rate hangs on the norm of all gradients, too, which it keeps to itself."""

    def __init__(self, parameters):
        self.all = [one for one in parameters if one.requires_grad]
        super().__init__(self.all, lr=0.1)

    def step(self, closure=None):
        float(sum(one.grad.norm() for one in self.all))


def frozen(module):
    module.weight.requires_grad_(False)
    return module


class Refusals(unittest.TestCase):
    """Each names the parameter, and leaves the job as it was."""

    def setUp(self):
        self.cluster = Cluster(1)
        self.addCleanup(self.cluster.close)
        self.context, self.job = self.cluster.contexts[1], self.cluster.workers[0]

    def wrapped(self, model, optimizer=None, **options):
        return ScheduledOptimizer(optimizer or sgd(model.parameters()), model, self.context, self.job, **options)

    def test_what_cannot_be_had(self):
        model = net()
        for make in (torch.optim.LBFGS, torch.optim.SparseAdam, OfClosures):
            with self.assertRaisesRegex(ValueError, f"{make.__name__} .*cannot update parameters one by one"):
                self.wrapped(model, make(list(model.parameters())))
        with self.assertRaisesRegex(ValueError, "got DataParallel around it"):
            self.wrapped(nn.DataParallel(model))
        with self.assertRaisesRegex(ValueError, "1.weight: its gradient is sparse"):
            self.wrapped(nn.Sequential(nn.ReLU(), nn.Embedding(3, 3, sparse=True)))
        with self.assertRaisesRegex(ValueError, "wire_dtype: expected torch.float16 or torch.bfloat16, got torch.int8"):
            self.wrapped(model, wire_dtype=torch.int8)
        for number in (-1, 1 << 28):
            with self.assertRaisesRegex(ValueError, f"first_number: expected 0 to 268435455, got {number}"):
                self.wrapped(model, first_number=number)
        with self.assertRaisesRegex(ValueError, "expected 1 or more, got 0"):
            self.wrapped(model, backward_passes_per_step=0)
        with self.assertRaisesRegex(ValueError, "shape .3,. is the optimizer's and not the model's"):
            self.wrapped(model, sgd([*model.parameters(), nn.Parameter(torch.ones(3))]))
        model.scale = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        with self.assertRaisesRegex(ValueError, "scale: expected floating point on the CPU or on a GPU of CUDA's, got torch.complex64"):
            self.wrapped(model)

    def test_misuse_between_two_steps(self):
        model = net()
        optimizer = self.wrapped(model)
        batch = batches(1, 0)[0]
        loss_of(model, batch).backward()
        with self.assertRaisesRegex(RuntimeError, "its gradient was computed again before step"):
            loss_of(model, batch).backward()
        with self.assertRaisesRegex(RuntimeError, "its gradient is on its way"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(ValueError, "closure"):
            optimizer.step(lambda: None)
        with self.assertRaisesRegex(RuntimeError, "cannot be added"):
            optimizer.add_param_group({"params": []})
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "scale: it was used without a call of the module"):
            (model.scale * 2).sum().backward()

    def test_a_parameter_that_is_thawed(self):
        model = net()
        self.wrapped(model)
        model.frozen.requires_grad_(True)
        with self.assertRaisesRegex(RuntimeError, "frozen.weight: it was frozen when"):
            loss_of(model, batches(1, 0)[0])

    def test_a_gradient_that_is_sparse_after_all(self):
        model = net()
        self.wrapped(model)
        with self.assertRaisesRegex(RuntimeError, "words.weight: its gradient is sparse"):
            nn.functional.embedding(torch.tensor([1]), model.words.weight, sparse=True).sum().backward()

    def test_a_module_in_two_reentrant_checkpoints(self):
        """Each of them is a backward pass of its own."""
        model = nn.Linear(4, 4)
        self.wrapped(model)
        values = torch.ones(4, requires_grad=True)
        twice = checkpoint(model, checkpoint(model, values, use_reentrant=True), use_reentrant=True)
        with self.assertRaisesRegex(RuntimeError, "(weight|bias): its gradient was computed again .*use_reentrant=False"):
            twice.sum().backward()

    def test_an_optimizer_that_needs_all_gradients_together(self):
        model = net()
        optimizer = self.wrapped(model, OfAllTogether(model.parameters()))
        loss_of(model, batches(1, 0)[0]).backward()
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "OfAllTogether changes 'norm' of its groups"):
            optimizer.flush()

    def test_an_optimizer_that_reads_gradients_that_are_on_their_way(self):
        """In a step for others."""
        model = net()
        optimizer = self.wrapped(model, OfANorm(model.parameters()))
        loss_of(model, batches(1, 0)[0]).backward()
        optimizer.step()
        with each_alone():
            with self.assertRaisesRegex(RuntimeError, r"OfANorm has read the gradient of \S+ in its step for other parameters: it needs all"):
                loss_of(model, batches(1, 0)[0])

    def test_a_gradient_that_is_put_in_anothers_place(self):
        """It may be on its way, whether its own is or not."""
        for sends in (False, True):
            with self.subTest(sends=sends):
                model = net()
                optimizer = self.wrapped(model, first_number=100 * sends)
                loss_of(model, batches(1, 0)[0], with_side=sends).backward()
                model.side.weight.grad = model.first.weight.grad
                for _ in range(2):
                    with self.assertRaisesRegex(RuntimeError, r"^side.weight: another parameter's gradient is in its place, .* clone\(\)"):
                        optimizer.step()
                        optimizer.flush()

    def test_parameters_that_are_added_to_the_optimizer(self):
        model = net()
        inner = sgd(model.parameters())
        optimizer = self.wrapped(model, inner)
        model.added = nn.Linear(8, 8)
        inner.add_param_group({"params": list(model.added.parameters())})
        loss_of(model, batches(1, 0)[0]).backward()
        with self.assertRaisesRegex(RuntimeError, "^added.weight was added to the optimizer, .*another with another first_number"):
            optimizer.step()
        del inner.param_groups[1:]
        first = inner.param_groups[0]["params"][0]
        model.last = nn.Linear(8, 20, bias=False)
        inner.param_groups[0]["params"][0] = model.last.weight
        with self.assertRaisesRegex(RuntimeError, "^last.weight was added to the optimizer, or put in another's place"):
            optimizer.step()
        inner.param_groups[0]["params"][0] = first
        del inner.param_groups[0]["params"][-2:]
        with self.assertRaisesRegex(RuntimeError, "^the optimizer has lost 2 of its parameters"):
            optimizer.step()

    def test_who_is_closed(self):
        model = net()
        optimizer = self.wrapped(model)
        optimizer.close()
        optimizer.close()
        loss_of(model, batches(1, 0)[0]).backward()
        with self.assertRaisesRegex(RuntimeError, "the ScheduledOptimizer is closed"):
            optimizer.step()

    def test_a_type_that_changes_and_a_job_that_is_closed_meanwhile(self):
        model = net()
        optimizer = self.wrapped(model)
        model.double()
        with self.assertRaisesRegex(RuntimeError, "^[a-z.]+: it was torch.float32 .* and is torch.float64"):
            loss_of(model, batches(1, 0)[0]).backward()
            optimizer.step()
        model, second = net(), None
        second = self.wrapped(model, first_number=100)
        loss = loss_of(model, batches(1, 0)[0])
        self.job.close()
        with self.assertRaisesRegex(ValueError, "^the gradient of [a-z.]+: the job is closed"):
            loss.backward()
        del second

    def test_values_that_are_changed_when_the_step_is_due(self):
        model = net()
        optimizer = self.wrapped(model)
        loss_of(model, batches(1, 0)[0]).backward()
        optimizer.step()
        with torch.no_grad():
            model.first.bias.clamp_(-0.01, 0.01)
        with self.assertRaisesRegex(RuntimeError, r"first.bias: it was changed between step\(\) and the forward pass"):
            loss_of(model, batches(1, 0)[0])

    def test_a_model_whose_type_changes(self):
        model = nn.Sequential(nn.Linear(3, 3))
        optimizer = self.wrapped(model)
        model.double()
        with self.assertRaisesRegex(RuntimeError, "0.(weight|bias): it was torch.float32 of shape .*, and is torch.float64"):
            model(torch.ones(3, dtype=torch.float64)).sum().backward()  # where PyTorch 2 tells of it
            optimizer.step()

    def test_two_for_the_same_parameters(self):
        model = net()
        optimizer = self.wrapped(model)
        with self.assertRaisesRegex(ValueError, "scale: another ScheduledOptimizer has it"):
            self.wrapped(model, sgd([model.scale]), first_number=100)
        with self.assertRaisesRegex(ValueError, "got a ScheduledOptimizer"):
            self.wrapped(model, optimizer, first_number=100)

    def test_a_second_one_says_what_numbers_it_needs(self):
        self.wrapped(net()).close()
        other = net()
        with self.assertRaisesRegex(MercuryError, "another optimizer of this job, open or closed, has first_number=0"):
            self.wrapped(other)
        self.wrapped(other, first_number=100).close()

    def test_a_model_behind_the_end_of_its_job_says_which_step_is_missing(self):
        cluster = Cluster(1)
        model = net()
        optimizer = ScheduledOptimizer(sgd(model.parameters()), model, cluster.contexts[1], cluster.workers[0])
        loss_of(model, batches(1, 0)[0]).backward()
        optimizer.step()
        cluster.close()
        for use in (lambda: loss_of(model, batches(1, 0)[0]), model.state_dict, optimizer.close):
            with self.assertRaisesRegex(ValueError, r"\w: its job was closed before its last step was taken: close the optimizer first"):
                use()

    def test_a_block_of_the_job_that_ends_in_order_takes_the_last_step(self):
        cluster = Cluster(1)
        self.addCleanup(cluster.close)
        model, batch = net(), batches(1, 0)[0]
        start = model.scale.detach().clone()
        with cluster.workers[0]:
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, cluster.contexts[1], cluster.workers[0])
            loss_of(model, batch).backward()
            optimizer.step()
            self.assertTrue(torch.equal(model.scale, start))
        self.assertFalse(torch.equal(model.scale, start))
        model.state_dict()
        optimizer.close()

    def test_a_block_of_the_job_ends_it_whatever_its_last_step_does(self):
        for failure, told in ((KeyError("the step's"), ()), (KeyboardInterrupt(), KeyboardInterrupt)):
            cluster = Cluster(1)
            self.addCleanup(cluster.close)
            model = net()
            inner = sgd(model.parameters())
            job = cluster.workers[0]
            with self.assertRaises(told) if told else contextlib.nullcontext(), job:
                optimizer = ScheduledOptimizer(inner, model, cluster.contexts[1], job)
                loss_of(model, batches(1, 0)[0]).backward()
                optimizer.step()
                raising = unittest.mock.patch.object(torch.optim.SGD, "step", unittest.mock.Mock(side_effect=failure))
                raising.start()
                self.addCleanup(raising.stop)
            raising.stop()
            with self.assertRaises(ValueError):
                job.stats()  # it is closed
            with self.assertRaisesRegex(RuntimeError, "was cut off by"):
                model.state_dict()

    def test_a_job_that_is_closed_within_its_block(self):
        cluster = Cluster(1)
        self.addCleanup(cluster.close)
        model = net()
        with cluster.workers[0]:
            optimizer = ScheduledOptimizer(sgd(model.parameters()), model, cluster.contexts[1], cluster.workers[0])
            loss_of(model, batches(1, 0)[0]).backward()
            optimizer.step()
            cluster.workers[0].close()

    def test_arguments_that_nobody_takes(self):
        """Nothing has begun: the training goes on."""
        model = net()
        optimizer = self.wrapped(model)
        loss_of(model, batches(1, 0)[0]).backward()
        for call in (optimizer.step, optimizer.zero_grad):
            with self.assertRaises(TypeError):
                call(foo=1)
        optimizer.step()
        optimizer.close()

    def test_arguments_in_another_order(self):
        model = net()
        for arguments, told in (((model, sgd(model.parameters()), self.context, self.job), "optimizer: expected a torch Optimizer, got Net"),
                                ((sgd(model.parameters()), model.parameters(), self.context, self.job), "model: expected a torch Module, got generator"),
                                ((sgd(model.parameters()), model, self.job, self.context), "context: expected a mercurystack Context, got Job")):
            with self.assertRaisesRegex(TypeError, told):
                ScheduledOptimizer(*arguments)

    def test_errors_of_its_own_where_the_packages_path_is_not_a_plain_one(self):
        """They cut nothing off. step() refuses a closure before it asks anything else of the optimizer, so a stub is enough of one."""
        program = """
import sys, types
sys.path.insert(0, sys.argv[1])
from mercurystack.torch import ScheduledOptimizer
stub = types.SimpleNamespace(_torn=None, _is_due=False, _parameters=[])
try:
    ScheduledOptimizer.step(stub, lambda: 0)
except ValueError:
    print(stub._torn)
"""
        folder = os.path.join(PACKAGE, os.pardir, os.path.basename(PACKAGE))
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, folder], check=True, stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout, "None\n")

    def test_what_failed_on_the_thread_that_sends_is_raised_as_of_here(self):
        future = Future()
        future.set_exception(MercuryError(5, "the job has failed"))
        files = []
        try:
            Leaving(future).wait()
        except MercuryError as failure:
            files = [os.path.basename(frame.filename) for frame in traceback.extract_tb(failure.__traceback__)]
        self.assertEqual(files, [os.path.basename(__file__), "_staging.py"])

    def test_closing_leaves_the_model_as_it_was(self):
        model, batch = net(), batches(1, 0)[0]
        with self.wrapped(model) as optimizer:
            loss_of(model, batch).backward()
            before = model.scale.detach().clone()
            optimizer.step()
        self.assertFalse(torch.equal(model.scale, before))
        optimizer.close()
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._state_dict_hooks, module._load_state_dict_pre_hooks):
                self.assertFalse(hooks)
        self.assertTrue(all(parameter.grad is None and not parameter._backward_hooks for parameter in model.parameters()))
        plain = sgd(model.parameters())
        for _ in range(2):
            loss_of(model, batch).backward()
            plain.step()
        self.assertEqual(self.job.stats().operations, self.operations_of_one_step(model))
        with self.wrapped(model, first_number=100) as optimizer:  # and another one may have it
            loss_of(model, batch).backward()
            optimizer.step()

    def operations_of_one_step(self, model):
        gradients = sum(parameter.requires_grad for parameter in model.parameters())
        return gradients + 3  # the comparison of the optimizers' terms, that of models, and the first values

    def test_an_exception_out_of_it_does_not_wait(self):
        """For sums that never come, as the others do not push."""
        cluster = Cluster(WORKERS)
        self.addCleanup(cluster.close)
        models = [net() for _ in range(WORKERS)]
        optimizers = on_threads(lambda rank: ScheduledOptimizer(sgd(models[rank].parameters()), models[rank],
                                                                cluster.contexts[rank + 1], cluster.workers[rank]))
        with self.assertRaises(IndexError), optimizers[0]:
            loss_of(models[0], batches(1, 0)[0]).backward()
            optimizers[0].step()
            raise IndexError
        self.assertFalse(models[0]._forward_pre_hooks)

    def test_state_of_the_optimizer_and_of_the_model(self):
        model, batch = net(), batches(1, 0)[0]
        optimizer = self.wrapped(model)
        loss_of(model, batch).backward()
        before = model.scale.detach().clone()
        optimizer.step()
        self.assertTrue(torch.equal(model.scale, before))  # not yet
        saved = model.state_dict()
        self.assertFalse(torch.equal(saved["scale"], before))
        state = optimizer.state_dict()
        self.assertEqual(state["param_groups"][0]["lr"], 0.1)
        self.assertIn("momentum_buffer", state["state"][0])
        optimizer.load_state_dict(state)
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.flush()
        self.assertFalse(torch.equal(model.scale, before))

    def told_in_a_child(self, work):
        """What work() raises in a forked process."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(FOREVER_S)
            try:
                work()
            except Exception as failure:  # of any kind, to be told
                os.write(write, f"{type(failure).__name__} {failure}".encode())
            finally:
                os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8") as pipe:
            told = pipe.read()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        return told

    def test_training_in_a_forked_process(self):
        """It has no part in the job, whether it pushes or waits, and its parent goes on."""
        model, batch = net(), batches(1, 0)[0]
        optimizer = self.wrapped(model)
        expected = "^MercuryError .* the gradient of .*[a-z]: the parent attached, not this process"
        self.assertRegex(self.told_in_a_child(lambda: loss_of(model, batch).backward()), expected)
        loss_of(model, batch).backward()
        optimizer.step()
        self.assertRegex(self.told_in_a_child(lambda: loss_of(model, batch)), expected)
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.close()


class Disagreement(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(WORKERS)
        self.addCleanup(self.cluster.close)

    def test_models_that_differ_are_refused_by_name_on_every_worker(self):
        class Other(torch.optim.SGD):
            pass
        pairs = [  # what worker 0 has, what worker 1 has, and what both are told
            (lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 5), r"worker 0's weight is torch.float32 of shape \[4, 4\], trained, "
             r"worker 1's weight is torch.float32 of shape \[5, 4\], trained"),
            (lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4, bias=False), "worker 0's bias is .*, worker 1's model has nothing more"),
            (lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4).double(), "weight is torch.float32 .*weight is torch.float64"),
            (lambda: nn.Linear(4, 4), lambda: frozen(nn.Linear(4, 4)), r"trained, worker 1's weight is torch.float32 of shape \[4, 4\]$"),
            (lambda: nn.Sequential(nn.Linear(2, 2)), lambda: nn.ModuleList([nn.ReLU(), nn.Linear(2, 2)]), "0.weight .*1.weight"),
        ]
        for place, (first, second, expected) in enumerate(pairs):
            with self.subTest(expected):
                for failure in on_threads(lambda rank: self.failure_of((first, second)[rank](), rank, 100 * place)):
                    self.assertRegex(failure, "the workers' models differ: .*" + expected)

    def test_a_checkpoint_that_was_loaded_on_one_worker_alone(self):
        def make(rank):
            model = nn.Linear(4, 4)
            optimizer = sgd(model.parameters())
            if rank == 0:
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
            try:
                ScheduledOptimizer(optimizer, model, self.cluster.contexts[rank + 1], self.cluster.workers[rank])
            except ValueError as failure:
                return str(failure)
            return "none"
        for failure in on_threads(make):
            self.assertRegex(failure, r"worker 0's optimizer is SGD, .* with a state of 2 values \([0-9a-f]{8}\), worker 1's optimizer is SGD, .* "
                             "without a state")

    def test_states_of_optimizers_that_are_none(self):
        """Nothing differs: an entry that is empty, and one that no parameter has."""
        def make(rank):
            model = nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if rank == 0:
                optimizer.state["all"] = 1
                optimizer.state[model.weight]["momentum_buffer"] = None
            return ScheduledOptimizer(optimizer, model, self.cluster.contexts[rank + 1], self.cluster.workers[rank])
        on_threads(make)

    def make(self, model, rank, **terms):
        return ScheduledOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, self.cluster.contexts[rank + 1], self.cluster.workers[rank],
                                  **terms)

    def failure_of(self, model, rank, number, **terms):
        try:
            self.make(model, rank, first_number=number, **terms)
        except (ValueError, MercuryError) as failure:
            return str(failure)
        return "none"

    def test_terms_that_differ(self):
        """Neither of them is hung, and the job has not suffered."""
        first, second = on_threads(lambda rank: self.failure_of(nn.Linear(4, 4), rank, 100 * rank))
        told = r"different ScheduledOptimizers: worker {}'s has first_number={}, broadcast=True, worker {}'s first_number={}, broadcast=True"
        self.assertRegex(first, told.format(0, 0, 1, 100))
        self.assertRegex(second, told.format(1, 100, 0, 0))
        told = on_threads(lambda rank: self.failure_of(nn.Linear(4, 4), rank, 200, broadcast=rank == 0))
        self.assertRegex(told[0], "worker 0's has first_number=200, broadcast=True, worker 1's first_number=200, broadcast=False")
        self.assertEqual(told[1], "none")
        self.assertEqual(on_threads(lambda rank: self.failure_of(nn.Linear(4, 4), rank, 300)), ["none"] * 2)

    def test_who_waits_for_another_says_for_what_and_is_told_what_it_waited_for(self):
        lines, told = queue.Queue(), []
        handler = logging.Handler()
        handler.emit = lambda record: lines.put(record.getMessage())
        logger = logging.getLogger("mercurystack")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        with unittest.mock.patch.object(_agreement, "FIRST_TOLD_S", 0.1):
            waiting = threading.Thread(target=lambda: told.append(self.failure_of(nn.Linear(4, 4), 0, 0)))
            waiting.start()
            self.assertRegex(lines.get(timeout=FOREVER_S), "worker 0 of 2 waits for the others in the comparison of first_number= and broadcast=, ")
            self.cluster.workers[1].close()
            waiting.join()
        self.assertRegex(told[0], r"the comparison of first_number= and broadcast=: worker 1 of 2 .*left the job")
        self.assertNotRegex(told[0], "tensor [0-9]")

    def test_buffers_of_all_kinds_are_worker_0s(self):
        def model_of(rank):
            model = nn.Linear(2, 2)
            model.register_buffer("expanded", torch.full((1, 3), float(rank)).expand(2, 3))
            model.register_buffer("conjugate", torch.conj(torch.full((3,), complex(rank, 1))))
            model.register_buffer("negative", torch._neg_view(torch.full((3,), rank + 1.)))
            model.register_buffer("turned", torch.full((2, 3), float(rank)).t())
            model.register_buffer("bools", torch.full((3,), rank == 0))
            model.register_buffer("one", torch.tensor(rank))
            return model
        models = [model_of(rank) for rank in range(WORKERS)]
        on_threads(lambda rank: self.make(models[rank], rank))
        for model in models:
            for (name, value), expected in zip(model.named_buffers(), model_of(0).buffers()):
                self.assertTrue(torch.equal(value.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg()), (name, value))

    def test_a_buffer_that_cannot_be_broadcast(self):
        kinds = {"torch.sparse_coo on cpu": lambda: torch.eye(3).to_sparse(), "torch.qint8": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)}
        for place, (kind, make) in enumerate(kinds.items()):
            model = nn.Linear(2, 2)
            model.register_buffer("odd", make())
            for told in on_threads(lambda rank: self.failure_of(model, rank, 100 * place)):
                self.assertRegex(told, f"^odd: worker 0's goes to all, which has to be dense.* it is of .*{kind}.* broadcast=False")

    def test_without_comparing_them_servers_refuse_by_the_parameters_name(self):
        failures = []

        def make(rank):
            with ONE_AT_A_TIME:
                model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 + rank))
            try:
                ScheduledOptimizer(sgd(model.parameters()), model, self.cluster.contexts[rank + 1], self.cluster.workers[rank],
                                   broadcast=False)
            except MercuryError as failure:
                failures.append(str(failure))

        on_threads(make)
        self.assertEqual(len(failures), 1, failures)  # the second to come
        self.assertRegex(failures[0], r"the gradient of 1\.(weight|bias)")

    def test_a_worker_that_is_lost_fails_the_others_by_the_parameters_name(self):
        def work(rank):
            model = net()
            return model, ScheduledOptimizer(sgd(model.parameters()), model, self.cluster.contexts[rank + 1],
                                             self.cluster.workers[rank], broadcast=False)
        (model, optimizer), _ = work(0), work(1)
        batch = batches(1, 0)[0]
        loss_of(model, batch).backward()
        optimizer.step()
        self.cluster.workers[1].close()
        with self.assertRaisesRegex(JobFailedError, "the gradient of scale: .*worker 1 of 2"):
            loss_of(model, batch)


if __name__ == "__main__":
    unittest.main()
