"""Ranks of torch.distributed (gloo, on the CPU) against one process with all the data.

`on_ranks` runs a function on every rank and returns what it returned there. Ranks are forked from a server that has imported
torch once; a rank that hangs or fails makes the test fail, and nothing is left running.
"""

import contextlib
import copy
import dataclasses
import math
import multiprocessing
import os
import pickle
import time
import traceback
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.testing import assert_allclose
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checks import repeated
from widemargin import monitor as room
from widemargin.monitor import MarginMonitor, find_homogeneous, model, ranks, tally
from widemargin.monitor.monitor import FLUSH
from widemargin.types import InputError

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"),
]

PRELOADED = [
    "pytest",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "widemargin.monitor",
]
LONGEST = 120  # seconds, then the ranks hang
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


def on_ranks(world, folder, work, *args):
    """What `work(rank, world, *args)` returns on each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    files = [folder / f"rank{k}" for k in range(world)]
    started = [
        context.Process(target=_rank, args=(k, world, str(folder / "meet"), str(files[k]), work, args), daemon=True)
        for k in range(world)
    ]
    for one in started:
        one.start()
    end = time.monotonic() + LONGEST
    try:
        while any(one.is_alive() for one in started) and time.monotonic() < end:
            started[0].join(0.05)
            if any(one.exitcode for one in started):
                end = min(end, time.monotonic() + 3)  # the others wait for a rank that is no more
    finally:
        for one in started:
            if one.is_alive():
                one.kill()
            one.join()
    found = [pickle.loads(file.read_bytes()) if file.exists() else (False, "killed: it hung") for file in files]
    failed = [f"rank {k}: {text}" for k, (fine, text) in enumerate(found) if not fine]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)
    return [value for _, value in found]


def _rank(rank, world, meet, file, work, args):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    if os.uname().sysname == "Linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=world, timeout=timedelta(seconds=LONGEST)
    )
    try:
        result = True, work(rank, world, *args)
    except BaseException:
        result = False, traceback.format_exc()
    with open(f"{file}.part", "wb") as out:
        pickle.dump(result, out)
    os.replace(f"{file}.part", file)
    os._exit(0 if result[0] else 1)  # no waiting for the other ranks, which may have failed


def net(seed=0, kind="mlp"):
    torch.manual_seed(seed)
    if kind == "mlp":
        parts = [
            nn.Linear(6, 9, bias=False),
            nn.ReLU(),
            nn.Linear(9, 7, bias=False),
            nn.ReLU(),
            nn.Linear(7, 3, bias=False),
        ]
    elif kind == "norm":
        parts = [nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)]
    else:
        parts = [nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3, bias=False)]
    return nn.Sequential(*parts).double()


def examples(count=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (count,), generator=generator)
    y[2::7] = -100  # ignored
    return x, y


def part(data, rank, world):
    """Unequal parts, the first the smallest."""
    cuts = [round(len(data[0]) * (k / world) ** 1.5) for k in range(world + 1)]
    return tuple(one[cuts[rank] : cuts[rank + 1]] for one in data)


def batches(data, size=4):
    return list(zip(data[0].split(size), data[1].split(size))) if len(data[0]) else []


def assert_same(record, other):
    """All numbers of two records agree; positions are not kept by ranks."""
    assert (record.step, record.name, record.n, record.degree, record.whole, record.exact, record.at_minimum) == (
        (other.step, other.name, other.n, other.degree, other.whole, other.exact, other.at_minimum)
    )
    mine, theirs = record.scalars(everything=True), other.scalars(everything=True)
    assert list(mine) == list(theirs)
    assert_allclose(list(mine.values()), list(theirs.values()), **CLOSE)
    assert [row["class"] for row in record.classes] == [row["class"] for row in other.classes]
    for row, same in zip(record.classes, other.classes):
        assert_allclose(list(row.values()), list(same.values()), **CLOSE)


def train(network, data, world=1, whole=None, steps=25, watched=None, kind="auto", micro=1, **options):
    """Gradient descent on the mean loss of all ranks' examples, watched; then what `measure` says of these examples."""
    watch = MarginMonitor(network if watched is None else watched, kind, **options)
    total = int((whole[1] != -100).sum())
    x, y = data
    for _ in range(steps):
        parts = list(zip(x.chunk(micro), y.chunk(micro)))
        network.zero_grad()
        for j, (a, b) in enumerate(parts):
            last = j == len(parts) - 1
            quiet = network.no_sync() if world > 1 and not last else contextlib.nullcontext()
            with quiet:
                logits = network(a)
                loss = world * nn.functional.cross_entropy(logits, b, reduction="sum") / total  # ranks are averaged
                watch.step(logits=logits, targets=b, loss=loss if micro == 1 else None, accumulate=not last)
                loss.backward()
        with torch.no_grad():
            for p in network.parameters():
                p -= 0.3 * p.grad
    record = watch.measure(batches(data), name="train")
    watch.close()
    return watch.records, record, watch.homogeneous


# ---------------------------------------------------------------- DistributedDataParallel


def ddp(rank, world, micro, counted):
    whole = examples()
    made = {"calls": 0}

    def counting(old):
        def call(*args, **options):
            made["calls"] += 1
            return old(*args, **options)

        return call

    for name in ("all_gather", "all_gather_object", "all_reduce", "broadcast", "broadcast_object_list"):
        setattr(dist, name, counting(getattr(dist, name)))
    network = DistributedDataParallel(net())
    if not counted:
        return train(network, part(whole, rank, world), world, whole, micro=micro)
    watch = MarginMonitor(network, log=lambda scalars, step: None)
    x, y = part(whole, rank, world)
    calls = []
    for _ in range(2 * FLUSH + 5):
        logits = network(x)
        before = made["calls"]
        watch.step(logits=logits, targets=y)
        calls.append(made["calls"] - before)
        logits.sum().backward()
        assert len(watch.records) == FLUSH * (len(calls) // FLUSH)  # reading them sends nothing
        assert made["calls"] - before == calls[-1]
    watch.close()
    return calls, made["calls"], len(watch.records)


@repeated("world, micro", [(2, 1), (3, 1), (2, 2)], 1, 2)
def test_ddp_gives_the_records_of_one_process(tmp_path, world, micro):
    whole = examples()
    found = on_ranks(world, tmp_path, ddp, micro, False)
    steps, record, homogeneous = train(net(), whole, whole=whole)
    assert homogeneous.degree == 3 and len(homogeneous.names) == 3
    assert record.n == 17 and len(record.classes) == 3
    for mine, measured, names in found:
        assert names == found[0][2] and names.names == homogeneous.names and names.degree == 3
        assert len(mine) == 26
        for one, other in zip(mine, steps):
            if micro > 1 and not other.whole:
                other = dataclasses.replace(other, extra={})
            assert_same(one, other)
        assert_same(measured, record)
        assert measured.hardest == ()


def test_steps_send_nothing_between_flushes(tmp_path):
    for calls, _, records in on_ranks(2, tmp_path, ddp, 1, True):
        assert calls[0] > 0  # the homogeneous parameters are agreed on
        assert [k for k, count in enumerate(calls) if count and k] == [FLUSH - 1, 2 * FLUSH - 1]
        assert calls[FLUSH - 1] == calls[2 * FLUSH - 1] == 1
        assert records == 2 * FLUSH + 5


def few(rank, world):
    """The last rank has no examples, the others different numbers of batches; statistics of BatchNorm differ before."""
    torch.manual_seed(rank)
    network = DistributedDataParallel(net(kind="batchnorm"))
    for _ in range(3):
        network(torch.randn(5, 6).double() + rank).sum().backward()
    before = network.module[1].running_mean.clone()
    x, y = examples()
    mine = [(x[:13], y[:13]), (x[13:], y[13:]), (x[:0], y[:0])][rank]
    watch = MarginMonitor(network)
    record = watch.measure(batches(mine))
    given = [MarginMonitor(network, ["3.weight"], degree=d).measure(batches(mine)) for d in (1, None)]
    return before, record, given, network.module.state_dict(), network.module.training


def test_measure_with_unequal_parts_and_rank_0s_statistics(tmp_path):
    found = on_ranks(3, tmp_path, few)
    assert not torch.equal(found[0][0], found[1][0])  # or there would be nothing to send
    network = net(kind="batchnorm")
    network.load_state_dict(found[0][3])
    record = MarginMonitor(network).measure(batches(examples()))
    head = MarginMonitor(network, ["3.weight"]).measure(batches(examples()))
    assert record.degree == 2
    for _, mine, given, state, training in found:
        assert_same(mine, record)
        for one in given:
            assert_same(one, head)
        assert training
        torch.testing.assert_close(state, found[0][3], rtol=0, atol=0)


def sampled(rank, world):
    tally.SAMPLE = 2_000
    sizes = []
    old = ranks.everyone
    ranks.everyone = lambda value: (
        sizes.append(value.sample.shape[1]) if hasattr(value, "sample") else None,
        old(value),
    )[1]
    values = torch.arange(20_000, dtype=torch.float64)
    mine = values[:15_000] if rank == 0 else values[15_000:]
    network = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(network.weight)
    watch = MarginMonitor(network, ["weight"], "bce", degree=1, levels=(0.0, 0.1, 0.5, 0.9))
    record = watch.measure([(mine[:, None], torch.ones(len(mine)))])
    return record, sizes


def test_quantiles_of_a_sample_over_ranks(tmp_path):
    (record, one), (_, other) = on_ranks(2, tmp_path, sampled)
    assert not record.exact and record.n == 20_000 and record.margin == 0
    for level, value in record.quantiles.items():
        assert abs(value / 20_000 - level) < 4 * math.sqrt(0.25 / 2_000)
    assert_allclose(
        [one[0], other[0]], [1_500, 500], atol=4 * math.sqrt(2_000)
    )  # sent: as many as one rank alone keeps


# ---------------------------------------------------------------- files, loggers


def writing(rank, world, folder):
    logged = []
    data = part(examples(), rank, world)
    network = DistributedDataParallel(net())
    train(network, data, world, examples(), steps=3, out=folder, log=lambda scalars, step: logged.append(step))
    try:
        MarginMonitor(network, out=folder)
    except InputError as error:
        return logged, str(error)
    return logged, ""


def test_rank_0_writes_and_all_hear_when_it_cannot(tmp_path):
    folder = tmp_path / "run"
    (first, said), *others = on_ranks(2, tmp_path / "ranks", writing, str(folder))
    assert first == [1, 2, 3, 3]
    assert room.load(folder).num_rows == 4
    assert "already holds" in said and said.endswith("(rank 0)")
    for logged, same in others:
        assert logged == [] and same == said


# ---------------------------------------------------------------- bad input on one rank


def sentence(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def failing(rank, world, sharded):
    network = net() if not sharded else shard(net())
    x, y = examples()
    odd = rank == 1

    def loader():
        yield x, y
        if odd:
            raise ValueError("the disk is gone")
        yield x, y
        yield x, y

    said = {}
    good = MarginMonitor(network, list(dict(network.named_parameters())), degree=3)
    wrong = torch.where((y >= 0) & (torch.arange(len(y)) < 11), 7, y) if odd else y
    broken = x * (math.nan if odd else 1)
    said["label"] = sentence(lambda: good.measure([(x, wrong), (x, y)]))
    said["nan"] = sentence(lambda: good.measure([(broken, y), (x, y)]))
    said["shape"] = sentence(lambda: good.measure([(x, y[:5] if odd else y), (x, y), (x, y)]))
    said["loader"] = sentence(lambda: good.measure(loader()))
    said["empty"] = sentence(lambda: good.measure([]))
    if not sharded:  # else a rank that does not come to its forward pass leaves the others waiting in theirs
        said["kind"] = sentence(lambda: good.measure([(x, y), "text" if odd else (x, y), (x, y)]))
        said["auto"] = sentence(lambda: MarginMonitor(network).measure([(x, y), "text"][rank:]))
        for step in range(1, 4):
            good.step(logits=network(x), targets=wrong if step == 2 else y)
        said["step"] = sentence(good.flush)
        good.step(logits=network(broken), targets=y)
        said["step nan"] = sentence(good.close)
        said["name"] = sentence(lambda: MarginMonitor(network, ["0.weight", "none" if odd else "2.weight"]))
        said["options"] = sentence(lambda: MarginMonitor(network, every=2 if odd else 1))
        said["pipeline"] = sentence(lambda: MarginMonitor(nn.Sequential(nn.Linear(2, 2 + rank))))
        own = room.Homogeneous(("4.weight",), 1, notes=(f"seen on rank {rank}",))  # found on different examples
        said["evidence"] = sentence(lambda: MarginMonitor(network, own))
        said["find"] = sentence(lambda: MarginMonitor(network).find((x * 0, y)))
    ok = good.measure([(x, y)])  # all of them are still in step
    return said, ok.n, [record.step for record in good.records if not record.whole]


@pytest.mark.parametrize("sharded", [False, True])
def test_bad_input_on_one_rank_is_said_by_all(tmp_path, sharded):
    (first, n, kept), (second, *_) = on_ranks(2, tmp_path, failing, sharded)
    assert n == 34
    want = {
        "label": "9 labels are out of range",
        "nan": "17 examples have NaN",
        "shape": "do not belong together",
        "empty": "no batch to measure",
    }
    if not sharded:
        want |= {
            "kind": "a batch must be a pair",
            "auto": "a batch must be a pair",
            "step": "step 2: 9 labels are out of range",
            "step nan": "step 4: 17 examples have NaN",
            "name": "no parameter 'none'",
            "options": "every of the monitor on rank 1 differs",
            "pipeline": "parameters of the monitor on rank 1 differs",
            "find": "logits of the probe batch are all 0",
        }
        assert kept == [1, 3]
        assert first["evidence"] == second["evidence"] == ("", "")
    for what, text in want.items():
        assert first[what][0] == "InputError" and text in first[what][1], (what, first[what])
        assert second[what] == first[what]
    assert second["loader"] == ("ValueError", "the disk is gone")
    assert first["loader"] == ("RuntimeError", "rank 1 failed: ValueError: the disk is gone")


def leaving(rank, world):
    network = net()
    x, y = examples()
    watch = MarginMonitor(network, ["4.weight"], degree=1)
    try:
        with watch:
            watch.step(logits=network(x), targets=y)
            if rank == 1:
                raise KeyError("elsewhere")
            watch.step(logits=network(x), targets=y)
            raise KeyError("here")
    except KeyError as error:
        return str(error), len(watch.records)


def test_an_exception_leaves_the_monitor_without_waiting(tmp_path):
    assert on_ranks(2, tmp_path, leaving) == [("'here'", 0), ("'elsewhere'", 0)]


def ended(rank, world):
    """Training that ends its group first and its monitor then, as scripts do whose monitor is closed at exit."""
    network = net()
    whole = examples()
    spread = DistributedDataParallel(network)
    watch = MarginMonitor(spread, optimizer=torch.optim.Adam(network.parameters()))
    x, y = part(whole, rank, world)
    for _ in range(3):
        watch.step(logits=spread(x), targets=y)
    dist.destroy_process_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what each rank has alone
        watch.close()
    alone = MarginMonitor(network, ["0.weight"], degree=1, optimizer=torch.optim.Adam(network.parameters()))
    return [record.step for record in watch.records], [r.extra["own_norm"] for r in watch.records], alone.measure(whole)


def test_a_group_that_is_gone_when_the_monitor_is_closed(tmp_path):
    for steps, norms, record in on_ranks(2, tmp_path, ended):
        assert steps == [1, 2, 3]
        assert_allclose(norms, record.extra["own_norm"])


# ---------------------------------------------------------------- sharded parameters


def shard(network, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if mesh is None else mesh
    fully_shard(network[2], mesh=mesh)  # the others belong to the root, which FSDP2 keeps whole after a forward pass
    return fully_shard(network, mesh=mesh)


def fsdp(rank, world, shape, kind):
    from torch.distributed.device_mesh import init_device_mesh

    whole = examples()
    data = part(whole, rank, world)
    network = shard(net(kind=kind), init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :]))
    found = find_homogeneous(network, data)
    with torch.no_grad():
        network(data[0])  # leaves the root whole
    watch = MarginMonitor(network, levels=(0.0, 0.3, 1.0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    total = int((whole[1] != -100).sum())
    for _ in range(4):
        optimizer.zero_grad()
        logits = network(data[0])
        loss = world * nn.functional.cross_entropy(logits, data[1], reduction="sum") / total
        watch.step(logits=logits, targets=data[1], loss=loss)
        loss.backward()
        watch.measure(batches(data, 3), "before")  # between gradient and step, as many batches as there are
        optimizer.step()
    none = watch.measure(batches(whole) if rank == 0 else [], "first")
    watch.close()
    state = {name: p.full_tensor() for name, p in network.named_parameters()}
    return found, watch.records, none, state


@repeated("shape, kind", [((2,), "mlp"), ((2,), "norm"), ((2, 2), "mlp")], 1, 2)
def test_fsdp2_gives_the_records_of_one_process(tmp_path, shape, kind):
    found = on_ranks(math.prod(shape), tmp_path, fsdp, shape, kind)
    x, y = examples()
    network = net(kind=kind)
    homogeneous = find_homogeneous(network, (x, y))
    watch = MarginMonitor(network, levels=(0.0, 0.3, 1.0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
    for _ in range(4):
        optimizer.zero_grad()
        logits = network(x)
        loss = nn.functional.cross_entropy(logits, y)
        watch.step(logits=logits, targets=y, loss=loss)
        loss.backward()
        watch.measure((x, y), "before")
        optimizer.step()
    whole = watch.measure((x, y), "first")
    assert whole.degree == {"mlp": 3, "norm": 2}[kind]
    for names, records, record, state in found:
        assert names == found[0][0]
        assert (names.names, names.degree) == (homogeneous.names, homogeneous.degree)
        assert_same(record, whole)
        assert len(records) == len(watch.records)
        for one, other in zip(records, watch.records):
            assert_same(one, other)
        torch.testing.assert_close(state, dict(network.named_parameters()), rtol=1e-12, atol=1e-13)


def own_norms(rank, world, kind, way):
    """A few steps of an optimiser, watched in its own norm and late; `way` is how the model is spread."""
    torch.manual_seed(0)
    whole = examples()
    data = part(whole, rank, world)
    network = net(kind="mlp")
    if way == "ddp":
        network = DistributedDataParallel(network)
    elif way == "fsdp":
        network = shard(network)
    groups = [{"params": [p], "lr": 1e-3 / (k + 1)} for k, p in enumerate(network.parameters())]
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](groups)
    watch = MarginMonitor(network, optimizer=optimizer, late=torch.bfloat16)
    total = int((whole[1] != -100).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most gradients are lost in bfloat16
        for _ in range(6):
            optimizer.zero_grad()
            logits = 200 * network(data[0])
            loss = world * nn.functional.cross_entropy(logits, data[1], reduction="sum") / total
            watch.step(logits=logits, targets=data[1])
            loss.backward()
            optimizer.step()
        watch.measure(batches(data), "train")
        watch.close()
    return watch.records, str(watch.geometry), watch.half_lost


@pytest.mark.slow
@repeated("kind", ["sgd", "adam"], 1)
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_the_optimisers_norm_and_late_training_over_ranks(tmp_path, kind, way):
    records, geometry, half = own_norms(0, 1, kind, "alone")
    assert 0 < records[-2].extra["lost"] <= 1 and records[-2].psi_own == records[-2].psi_own
    for mine, words, lost in on_ranks(2, tmp_path, own_norms, kind, way):
        assert words.split(" (")[0] == geometry.split(" (")[0] and lost == half and len(mine) == len(records) == 7
        for one, other in zip(mine, records):
            assert one.extra.keys() == other.extra.keys() >= {"own_norm", "own_error"}
            for name, value in other.extra.items():
                assert_allclose(one.extra[name], value, rtol=1e-7, atol=1e-12, err_msg=name)


def spectral_shards(rank, world):
    network = shard(net())
    watch = MarginMonitor(network, norm="spectral")
    return sentence(lambda: watch.measure(batches(examples())))


@pytest.mark.slow
def test_spectral_norms_of_shards_are_refused(tmp_path):
    for _, said in on_ranks(2, tmp_path, spectral_shards):
        assert "the spectral norm of a matrix that ranks hold in parts is not computed" in said


def tensor_parallel(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False), nn.LeakyReLU(0.5)
    ).double()
    want = network[0].weight.square().sum().sqrt().item(), network[2].weight.square().sum().sqrt().item()
    whole = examples()
    single = copy.deepcopy(network)
    network = parallelize_module(network, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if world > 2:
        network = fully_shard(network, mesh=mesh["data"])
    refused = sentence(lambda: MarginMonitor(network))
    data = part(whole, rank // 2, world // 2)
    watch = MarginMonitor(network, group=mesh["data"].get_group())
    logits = network(data[0])
    watch.step(logits=logits, targets=data[1])
    record = watch.measure(batches(data))
    watch.flush()
    return refused, record, watch.records[0], watch.homogeneous, want, single


@repeated("world", [2, 4], 0)
def test_tensor_parallel_parameters_with_the_group_of_the_data(tmp_path, world):
    for refused, record, step, homogeneous, want, single in on_ranks(world, tmp_path, tensor_parallel):
        assert refused[0] == "InputError" and "tensor-parallel" in refused[1]
        assert homogeneous.degree == 2 and homogeneous.names == ("0.weight", "2.weight")
        assert_allclose(list(record.blocks.values()), want, **CLOSE)
        watch = MarginMonitor(single)
        x, y = examples()
        watch.step(logits=single(x), targets=y)
        assert_same(step, watch.records[0])
        assert_same(record, MarginMonitor(single).measure((x, y), step=1))


# ---------------------------------------------------------------- one rank


def alone(rank, world):
    whole = examples()
    ready = [train(net(), whole, whole=whole), train(DistributedDataParallel(net()), whole, whole=whole)]
    sharded = shard(net())
    watch = MarginMonitor(sharded)
    first = MarginMonitor(net()).measure(whole), watch.measure(whole)
    inner = net()
    wrapped = {
        "DDP": DistributedDataParallel(inner),
        "compile(DDP)": torch.compile(DistributedDataParallel(inner), backend="eager"),
        "DDP(compile)": DistributedDataParallel(torch.compile(inner, backend="eager")),
    }
    names = {
        what: (list(MarginMonitor(one).named), model.unwrap(one) is inner, type(model.bare(one)).__name__)
        for what, one in wrapped.items()
    }
    measured = [MarginMonitor(one).measure(whole) for one in wrapped.values()]
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flat = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    refused = sentence(lambda: MarginMonitor(nn.Sequential(flat)))
    return ready, first, names, measured, refused


def test_a_world_of_one_and_wrapped_models(tmp_path):
    ((ready, (plain, sharded), names, measured, refused),) = on_ranks(1, tmp_path, alone)
    whole = examples()
    steps, record, homogeneous = train(net(), whole, whole=whole)
    for mine, one, found in ready:
        assert found.names == homogeneous.names
        assert_same(one, record)
        for step, other in zip(mine, steps):
            assert_same(step, other)
        assert one.hardest == record.hardest != ()
    assert_same(sharded, plain)
    for one in measured:
        assert_same(one, plain)
    for what, (parameters, same, kind) in names.items():
        assert parameters == ["0.weight", "2.weight", "4.weight"] and same
        assert kind == ("OptimizedModule" if what == "DDP(compile)" else "Sequential")
    assert refused[0] == "InputError" and "FSDP1" in refused[1] and "fully_shard" in refused[1]


def test_shares_of_the_norm_sum_to_the_whole():
    """Without processes: of what every one of 3 ranks holds, each counts a third."""
    values = [torch.randn(5, 4).double(), torch.randn(7).double()]
    want = sum(float(np.square(v.numpy()).sum()) for v in values)
    quick = sum(float(norm) ** 2 / copies for norm, copies in zip(*model.norms(values, 3)[:2]))
    assert_allclose([3 * float(model.squares(values, 3)), 3 * quick], want, rtol=1e-13)
