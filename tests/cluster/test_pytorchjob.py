"""pytorchjob.yaml: the fields that Kubernetes and Kubeflow's operator know, and its pods as local processes."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.jobs import (
    RARELY,
    ROOT,
    SMALL,
    TRIES,
    Start,
    environment,
    errors,
    events,
    kill,
    last_step,
    ranks,
    wait_until,
)
from tests.support import free_port

FILE = ROOT / "examples" / "cluster" / "pytorchjob.yaml"
STEPS = 100_000  # more than the test waits for

# What may be set, and what it is; a * is required. Of pods and volumes, only the fields that the file uses.
_METADATA = {"name*": str, "namespace": str, "labels": dict, "annotations": dict}
_RESOURCES = {"requests": dict, "limits": dict}
_CONTAINER = {
    "name*": str,
    "image*": str,
    "command": [str],
    "args": [str],
    "env": [{"name*": str, "value": str}],
    "resources": _RESOURCES,
    "volumeMounts": [{"name*": str, "mountPath*": str, "readOnly": bool}],
}
_VOLUME = {
    "name*": str,
    "persistentVolumeClaim": {"claimName*": str},
    "emptyDir": {"medium": str, "sizeLimit": str},
}
_POD = {"terminationGracePeriodSeconds": int, "containers*": [_CONTAINER], "volumes": [_VOLUME]}
_REPLICAS = {
    "replicas": int,
    "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
    "template*": {"metadata": _METADATA, "spec*": _POD},
}
PYTORCHJOB = {
    "apiVersion*": {"kubeflow.org/v1"},
    "kind*": {"PyTorchJob"},
    "metadata*": _METADATA,
    "spec*": {
        "nprocPerNode": str,
        "runPolicy": {
            "cleanPodPolicy": {"All", "Running", "None"},
            "backoffLimit": int,
            "activeDeadlineSeconds": int,
            "ttlSecondsAfterFinished": int,
            "suspend": bool,
        },
        "elasticPolicy": {
            "rdzvBackend": {"c10d", "etcd", "etcd-v2"},
            "rdzvId": str,
            "rdzvHost": str,
            "rdzvPort": int,
            "minReplicas": int,
            "maxReplicas": int,
            "maxRestarts": int,
        },
        "pytorchReplicaSpecs*": {"Master": _REPLICAS, "Worker": _REPLICAS},
    },
}
CLAIM = {
    "apiVersion*": {"v1"},
    "kind*": {"PersistentVolumeClaim"},
    "metadata*": _METADATA,
    "spec*": {"accessModes*": [{"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"}], "resources*": _RESOURCES},
}


def problems(value: Any, schema: Any, where: str = "") -> list[str]:
    """The fields that are missing, unknown or of another type."""
    if isinstance(schema, set):
        return [] if value in schema else [f"{where} is {value!r}"]
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where} is {value!r}"]
    if isinstance(schema, list):
        items = value if isinstance(value, list) else [value]
        return [text for i, one in enumerate(items) for text in problems(one, schema[0], f"{where}[{i}]")]
    if not isinstance(value, Mapping):
        return [f"{where} is {value!r}"]
    known = {name.rstrip("*"): kind for name, kind in schema.items()}
    required = {name.rstrip("*") for name in schema if name.endswith("*")}
    found = [f"{where}.{name} is missing" for name in required - value.keys()]
    found += [f"{where}.{name} is unknown" for name in value.keys() - known.keys()]
    shared = value.keys() & known.keys()
    return found + [text for name in shared for text in problems(value[name], known[name], f"{where}.{name}")]


@pytest.fixture(scope="module")
def claim_and_job() -> tuple[dict[str, Any], dict[str, Any]]:
    claim, job = yaml.safe_load_all(FILE.read_text())
    return claim, job


@pytest.fixture(scope="module")
def job(claim_and_job: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return claim_and_job[1]


def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return found


def test_every_field_is_known(claim_and_job: tuple[dict[str, Any], dict[str, Any]]) -> None:
    claim, job = claim_and_job
    assert problems(claim, CLAIM) == []
    assert problems(job, PYTORCHJOB) == []
    wrong = {**job, "spec": {**job["spec"], "nprocPerNode": 1, "elastic": {}}}
    assert sorted(problems(wrong, PYTORCHJOB)) == [".spec.elastic is unknown", ".spec.nprocPerNode is 1"]


def test_parts_fit_together(claim_and_job: tuple[dict[str, Any], dict[str, Any]]) -> None:
    claim, job = claim_and_job
    (container,) = pod(job)["containers"]
    volumes = {volume["name"]: volume for volume in pod(job)["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {*mounts.values()} == {*volumes}
    assert volumes[mounts["/runs"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["args"][-2:] == ["--out", f"/runs/{job['spec']['elasticPolicy']['rdzvId']}"]
    assert container["name"] == "pytorch"  # the operator sets the variables of this one
    saving = int(container["command"][container["command"].index("--shutdown-timeout") + 1])
    assert saving < pod(job)["terminationGracePeriodSeconds"]
    replicas, elastic = job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"], job["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] <= replicas <= elastic["maxReplicas"]


def operator_variables(job: dict[str, Any], endpoint: str) -> dict[str, str]:
    """What the operator adds to the environment of each container of an elastic job."""
    elastic = job["spec"]["elasticPolicy"]
    return {
        "PYTHONUNBUFFERED": "0",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_BACKEND": elastic["rdzvBackend"],
        "PET_RDZV_ID": elastic["rdzvId"],
        "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
        "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
    }


def start_pod(start: Start, job: dict[str, Any], volume: Path, port: int) -> "subprocess.Popen[Any]":
    """A container of the job, as a process that finds the volume at another path."""
    (container,) = pod(job)["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    given |= operator_variables(job, f"127.0.0.1:{port}")
    given |= {"PET_RDZV_CONF": "last_call_timeout=2"}  # how long a pod waits for others, 30 s by default
    arguments = [text.replace("/runs", str(volume)) for text in container["args"]]
    settings = [*SMALL, *RARELY, "--steps", str(STEPS)]
    return start([*container["command"], *arguments, *settings], volume, environment(**given))


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections at a port."""
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    return any(re.search(rf":{port:04X} \S+ 0A ", table) for table in tables)


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="it looks for processes in /proc")
def test_run_continues_without_a_lost_pod_and_with_its_replacement_and_after_an_eviction(
    job: dict[str, Any], tmp_path: Path, start: Start
) -> None:
    port, run = free_port(), tmp_path / "stories"
    pods = [start_pod(start, job, tmp_path, port)]
    wait_until(lambda: listens(port), pods[0])  # the first one is where they meet
    pods.append(start_pod(start, job, tmp_path, port))
    wait_until(lambda: last_step(run) > 20, pods[0])
    kill(pods[1])
    wait_until(lambda: ranks(run) == [("2", "1")], pods[0])
    pods[1] = start_pod(start, job, tmp_path, port)
    wait_until(lambda: ranks(run) == [("2", "1"), ("1", "2")], pods[0])
    joined = last_step(run)
    wait_until(lambda: last_step(run) > joined + 10, pods[0])
    for each in pods:  # evict them all
        os.kill(each.pid, signal.SIGTERM)
    assert all(each.wait(timeout=TRIES) != 0 for each in pods)
    saved = last_step(run)
    assert joined < saved
    assert (run / "checkpoints" / f"{saved:08}").exists()
    pods = [start_pod(start, job, tmp_path, port) for _ in pods]
    wait_until(lambda: last_step(run) > saved + 10, pods[0])
    for each in pods:
        kill(each)
    assert [event["step"] for event in events(run, "step")] == list(range(1, last_step(run) + 1))
    assert [event["step"] for event in events(run, "started")][-1] == saved
    assert errors(tmp_path) == {"lost the connection to another rank: it failed or was killed"}
