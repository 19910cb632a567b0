"""`minicnn train` on several processes; that they compute the same is tried under MPI, in tests/distribution."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from minicnn import machine
from minicnn.cli import processes
from minicnn.distribution import ModelParallel
from support.command_line import done, error_of, minicnn

SMALL = ("--samples", "100", "--epochs", "1", "--batch-size", "50")


def test_one_process_takes_all_shards_and_says_so() -> None:
    result = done("train", "lenet5", *SMALL, "--distribute", "data", "--shards", "4", "--out", "out")
    assert "4 shards on 1 rank(s)" in result.stdout
    assert json.loads(Path("out/run.json").read_text())["distribution"] == {"shards": 4, "processes": 1}


def test_kernels_are_split_on_demand() -> None:
    for kind, axes in (("model", {2, 4}), ("hybrid", {2})):
        made = processes.distribution(kind, 4, 300.0)
        assert isinstance(made, ModelParallel)
        assert {count for _, count in made.layout} == axes


def test_processes_need_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = error_of(minicnn("train", "lenet5", "--processes", "2"), 1)
    assert error.startswith("--processes starts processes by mpiexec, which talk through mpi4py: pip install")


def test_what_is_started_is_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Done:
        returncode = 3

    def run(command: list[str], **settings: Any) -> Done:
        started.append(command)
        return Done()

    monkeypatch.setattr(processes.subprocess, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: "mpiexec")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for given in (
        ["train", "lenet5", "--processes", "4", "--lr", "1"],
        ["train", "lenet5", "--processes=4", "--lr", "1"],
    ):
        assert processes.start(4, given) == 3
    for command in started:
        assert command[1:3] == ["-n", "4"]
        assert command[4:] == ["-P", "-m", "minicnn", "train", "lenet5", "--lr", "1", "--distribute", "data"]
    processes.start(2, ["train", "lenet5", "--processes", "2", "--distribute", "hybrid"])
    assert started[-1][4:] == ["-P", "-m", "minicnn", "train", "lenet5", "--distribute", "hybrid"]


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 12)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        environ = {name: "4", "OMP_NUM_THREADS": "5"}
        machine.share_cores(environ)
        assert environ == {name: "4", "OMP_NUM_THREADS": "5", "MINICNN_THREADS": "3"}
    alone: dict[str, str] = {}
    machine.share_cores(alone)
    assert not alone
    monkeypatch.setattr(os, "cpu_count", lambda: 48)  # bound to 12 of them already
    bound = {"MPI_LOCALNRANKS": "4"}
    machine.share_cores(bound)
    assert bound["MINICNN_THREADS"] == "12"
