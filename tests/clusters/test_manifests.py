"""The manifests and images of examples/clusters/: what can be checked without a cluster and without Docker."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess

import pytest
import yaml

from jaxring.cli import _parser
from tests import ROOT

FOLDER = ROOT / "examples" / "clusters"
VERSION = "1.31"
# The job's template within each kind. Kubernetes knows that; the kinds around it are of JobSet and of Kubeflow.
API = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def jobs(name):
    """The batch jobs that controllers make of a manifest."""
    for document in documents(name):
        assert document["apiVersion"] == API[document["kind"]]
        spec = document["spec"]
        for replicated in spec.get(
            "replicatedJobs", spec.get("template", {}).get("spec", {}).get("replicatedJobs", [])
        ):
            template = replicated["template"]
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": template["spec"]}


def pod(name):
    (job,) = jobs(name)
    return job["spec"]["template"]["spec"]


MANIFESTS = ["jobset.yaml", "jobset-rdma.yaml", "trainjob.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_the_job(name):
    import kubernetes_validate  # by `make ci-tools`

    (job,) = jobs(name)
    kubernetes_validate.validate(job, VERSION, strict=True)
    job["spec"]["template"]["spec"]["containers"][0]["unknown"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSION, strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_shared_memory_and_rdma(name):
    spec = pod(name)
    (worker,) = spec["containers"]
    (mount,) = worker["volumeMounts"]
    (volume,) = spec["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/dev/shm")
    assert volume["emptyDir"]["medium"] == "Memory"
    rdma = {"name": "JAXRING_NET", "value": "IB"} in worker["env"]
    assert rdma == (name != "jobset.yaml")
    assert worker["resources"]["limits"].get("rdma/hca") == ("1" if rdma else None)
    assert worker.get("securityContext") == ({"capabilities": {"add": ["IPC_LOCK"]}} if rdma else None)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_command_is_one(name):
    for document in documents(name):
        if document["kind"] == "JobSet":
            (replicated,) = document["spec"]["replicatedJobs"]
            job = replicated["template"]["spec"]
            assert job["completions"] == job["parallelism"] == 2
            command = pod(name)["containers"][0]["command"]
            assert command[:2] == ["sh", "-c"]
            words = shlex.split(command[2].replace('"$JOB_COMPLETION_INDEX"', "1").removeprefix("exec "))
            arguments = _parser().parse_args(words[1:])
            first = f"{document['metadata']['name']}-{replicated['name']}-0-0.{document['metadata']['name']}"
            assert arguments.coordinator.startswith(f"{first}:")
            assert arguments.nnodes == job["completions"]
            assert (ROOT / arguments.script).is_file()
    if name == "trainjob.yaml":
        runtime, job = documents(name)
        assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        assert (ROOT / pod(name)["containers"][0]["command"][1]).is_file()


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_s_steps_can_be_read(name):
    lines = re.sub(r"^#.*\n", "", (FOLDER / name).read_text(), flags=re.M).replace("\\\n", " ").splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line.strip()]
    # Images to begin from can be given in place of the public ones, as by a mirror's address.
    given = [rest.partition("=")[0] for _, rest in itertools.takewhile(lambda step: step[0] == "ARG", steps)]
    # Whole addresses: podman and buildah complete a name only where the system's configuration says how.
    defaults = [rest.partition("=")[2] for instruction, rest in steps if rest.partition("=")[0] in given]
    assert all("." in address.partition("/")[0] for address in defaults)
    bases = [rest.partition(" ")[0].removeprefix("$") for instruction, rest in steps if instruction == "FROM"]
    assert sorted(set(bases)) == sorted(given)
    for instruction, rest in steps:
        assert instruction in ("FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "CMD")
        if instruction == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        elif instruction == "COPY" and not rest.startswith("--from="):
            assert (ROOT / rest.split()[0]).exists()
        elif instruction == "CMD":
            command = yaml.safe_load(rest)
            assert (ROOT / command[-1]).is_file()
            if command[0] == "jaxring":
                _parser().parse_args(command[1:])
