"""The Kubernetes job of jobs/ has only fields that Kubeflow Trainer and Kubernetes know, of the right types, and its
command is one of distsms. No cluster is started.
"""

from __future__ import annotations

import copy
import re

import pytest

from distsms import cli
from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.serial

# The fields of the job, in our words: "name!" must be there, a tuple lists all values, a list of one schema is a
# list of such. Sources: CRDs trainjobs and trainingruntimes of kubeflow/trainer, manifests/base/crds, as of v2.2
# (2026), with JobSet v1alpha2 in them; the names that its plugin for MPI looks for; and core/v1 of Kubernetes.
TEXTS, LABEL, NAME = [str], {str: str}, re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9.]+(m|[KMGTPE]i?)?")
QUANTITIES = {"cpu": QUANTITY, "memory": QUANTITY}
CONTAINER = {
    "name!": NAME,
    "image!": str,
    "command": TEXTS,
    "args": TEXTS,
    "securityContext": {"runAsUser": int, "runAsGroup": int},
    "readinessProbe": {"tcpSocket": {"port!": int}, "initialDelaySeconds": int},
    "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
    "volumeMounts": [{"name!": NAME, "mountPath!": str}],
}
POD = {
    "restartPolicy": ("Never", "OnFailure"),
    "terminationGracePeriodSeconds": int,
    "securityContext": {"fsGroup": int},
    "volumes": [{"name!": NAME, "persistentVolumeClaim": {"claimName!": NAME}}],
    "containers!": [CONTAINER],
}
JOB = {
    "name!": NAME,
    "dependsOn": [{"name!": NAME, "status!": ("Ready", "Complete")}],
    "template!": {"metadata": {"labels": LABEL}, "spec!": {"backoffLimit": int, "template!": {"spec!": POD}}},
}
JOB_SET = {
    "network": {"publishNotReadyAddresses": bool},
    "successPolicy": {"operator!": ("All", "Any"), "targetReplicatedJobs": TEXTS},
    "failurePolicy": {"maxRestarts": int},
    "replicatedJobs": [JOB],
}
MPI = {"numProcPerNode": int, "mpiImplementation": ("OpenMPI",), "sshAuthMountPath": str, "runLauncherAsNode": bool}
HEAD = {"apiVersion!": ("trainer.kubeflow.org/v1alpha1",), "metadata!": {"name!": NAME}}
RUNTIME = HEAD | {
    "kind!": ("TrainingRuntime", "ClusterTrainingRuntime"),
    "spec!": {"mlPolicy": {"numNodes": int, "mpi": MPI}, "template": {"spec": JOB_SET}},
}
TRAIN_JOB = HEAD | {
    "kind!": ("TrainJob",),
    "spec!": {
        "runtimeRef!": {"name!": NAME, "apiGroup": str, "kind": str},
        "trainer": {"image": str, "command": TEXTS, "args": TEXTS, "numNodes": int, "numProcPerNode": int},
    },
}


def faults(value, schema, where=""):
    """Return what is wrong with a value."""
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{where}: {value!r} is none of {schema}"]
    if isinstance(schema, re.Pattern):
        return [] if isinstance(value, str) and schema.fullmatch(value) else [f"{where}: {value!r}"]
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: no list"]
        return [fault for k, item in enumerate(value) for fault in faults(item, schema[0], f"{where}[{k}]")]
    if not isinstance(value, dict):
        return [f"{where}: no object"]
    if str in schema:
        return [fault for name, item in value.items() for fault in faults(item, schema[str], f"{where}.{name}")]
    fields = {name.rstrip("!"): part for name, part in schema.items()}
    lacking = [f"{where}: {name[:-1]} is missing" for name in schema if name[-1] == "!" and name[:-1] not in value]
    unknown = [f"{where}.{name}: there is no such field" for name in value if name not in fields]
    known = [(name, item) for name, item in value.items() if name in fields]
    return lacking + unknown + [one for name, item in known for one in faults(item, fields[name], f"{where}.{name}")]


@pytest.fixture
def documents():
    with (ROOT / "jobs" / "kubeflow.yaml").open() as file:
        return [copy.deepcopy(document) for document in yaml.safe_load_all(file)]


def test_the_job_fits_the_schema(documents):
    runtime, job = documents
    assert faults(runtime, RUNTIME) == [] and faults(job, TRAIN_JOB) == []


@pytest.mark.parametrize(
    "part, place, value, fault",
    [
        (0, "spec.mlPolicy.mpi.mpiImplementation", "MPICH", "none of"),
        (0, "spec.mlPolicy.mpi.slots", 8, "no such field"),
        (0, "spec.template.spec.failurePolicy.maxRestarts", "10", "no int"),
        (0, "spec.template.spec.replicatedJobs.1.name", None, "name is missing"),
        (1, "spec.runtimeRef", None, "runtimeRef is missing"),
        (1, "spec.trainer.command", "mpirun", "no list"),
        (1, "metadata.name", "Credit_1", "Credit_1"),
    ],
)
def test_what_does_not_fit_the_schema_is_noticed(documents, part, place, value, fault):
    *way, last = place.split(".")
    target = documents[part]
    for name in way:
        target = target[int(name) if isinstance(target, list) else name]
    if value is None:
        del target[last]
    else:
        target[last] = value
    (told,) = faults(documents[part], (RUNTIME, TRAIN_JOB)[part])
    assert fault in told


def test_the_names_are_those_that_the_plugin_for_mpi_looks_for(documents):
    runtime, job = documents
    jobs = {each["name"]: each["template"] for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    assert jobs.keys() == {"node", "launcher"}
    for each in jobs.values():
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert container["name"] == "node"  # in the launcher's pod, too: there it gets keys and host file
    step = "trainer.kubeflow.org/trainjob-ancestor-step"
    assert jobs["launcher"]["metadata"]["labels"] == {step: "trainer"} and "metadata" not in jobs["node"]
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    policy, trainer = runtime["spec"]["mlPolicy"], job["spec"]["trainer"]
    assert (policy["numNodes"], policy["mpi"]["numProcPerNode"]) == (trainer["numNodes"], trainer["numProcPerNode"])
    assert f"-oHostKey={policy['mpi']['sshAuthMountPath']}/id_rsa" in container["args"]


def test_its_command_is_one_of_distsms(documents):
    program, *words = documents[1]["spec"]["trainer"]["args"]
    args = cli.parse(words)
    assert program.endswith("/distsms") and args.command == "train" and args.resume and args.checkpoint
    assert f"ENV PATH={program.removesuffix('/distsms')}:" in (ROOT / "docker" / "Dockerfile").read_text()
