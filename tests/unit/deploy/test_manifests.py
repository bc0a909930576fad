"""The Kubernetes manifests and the image recipe: valid, and of one piece."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import pipeline
from pipeline.cli.main import cli
from pipeline.config.load import load_config
from tests.support.paths import ROOT
from tools.image_steps import DOCKERFILE, instructions

MANIFESTS = ROOT / "deploy" / "kubernetes"
FILES = sorted(MANIFESTS.glob("*.yaml"))
VERSION = kubernetes_validate.latest_version()
JOB_SECONDS = 60  # a job ends within them after a signal


def documents() -> list[dict[str, Any]]:
    return [document for path in FILES for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each object that has pods, with their specification."""
    for document in documents():
        if document["kind"] == "Deployment":
            yield document, document["spec"]["template"]["spec"]
        elif document["kind"] == "CronJob":
            yield document, document["spec"]["jobTemplate"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_manifest_with_a_mistake_is_refused() -> None:
    deployment = next(document for document in documents() if document["kind"] == "Deployment")
    deployment["spec"]["replcas"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSION, strict=True)


def test_what_pods_refer_to_exists() -> None:
    """The Secret is made by a command of the guide."""
    names = {(document["kind"], document["metadata"]["name"]) for document in documents()}
    for _, pod in pods():
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            elif "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        [secret] = pod["containers"][0]["envFrom"]
        guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
        assert f"kubectl create secret generic {secret['secretRef']['name']} " in guide


def test_only_one_pod_of_a_job_runs() -> None:
    deployed = {}
    for document, pod in pods():
        if document["kind"] == "Deployment":
            assert document["spec"]["replicas"] == 1
            assert document["spec"]["strategy"] == {"type": "Recreate"}
            assert pod["terminationGracePeriodSeconds"] > JOB_SECONDS
            selector = document["spec"]["selector"]["matchLabels"]
            assert selector == document["spec"]["template"]["metadata"]["labels"]
            deployed[pod["containers"][0]["args"][0]] = selector
        else:
            assert document["spec"]["concurrencyPolicy"] == "Forbid"
    assert set(deployed) == {"ingest", "apply"}
    assert deployed["ingest"] != deployed["apply"]


def test_commands_of_pods_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, pod in pods():
        environ = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        monkeypatch.setenv("PGDELTA_CONFIG", environ["PGDELTA_CONFIG"])
        command, *arguments = pod["containers"][0]["args"]
        context = cli.commands[command].make_context(command, arguments)
        assert context.params["config"] == "/etc/pgdelta/pipeline.yaml"


def test_probes_use_the_port_of_the_metrics() -> None:
    for document, pod in pods():
        container = pod["containers"][0]
        if document["kind"] == "Deployment":
            port = int(container["args"][container["args"].index("--metrics") + 1].rpartition(":")[2])
            assert container["ports"] == [{"name": "metrics", "containerPort": port}]
            for probe in ("startupProbe", "livenessProbe"):
                assert container[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}
            assert document["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port)


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    text = next(document for document in documents() if document["kind"] == "ConfigMap")["data"]
    (tmp_path / "pipeline.yaml").write_text(text["pipeline.yaml"])
    config = load_config(tmp_path / "pipeline.yaml", {})
    assert "password" not in config.source.conninfo
    for _, pod in pods():
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert config.storage.root == mounts["lake"]


def test_the_image_is_the_one_that_pods_run() -> None:
    steps = list(instructions(DOCKERFILE.read_text(encoding="utf-8")))
    user = next(rest for word, rest in steps if word == "USER")
    for _, pod in pods():
        security = pod["securityContext"]
        assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
        assert security["runAsNonRoot"]
        assert pod["containers"][0]["image"] == f"pgdelta:{pipeline.__version__}"
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    sources = [source for word, rest in steps if word == "COPY" for source in rest.split()[:-1]]
    assert sorted(sources) == sorted(line[1:] for line in ignored if line.startswith("!"))
    assert all((ROOT / source).exists() for source in sources)
    assert not re.search(r"amd64|arm64|x86|aarch", " ".join(rest for _, rest in steps))  # it is for each
    known = {word for word, _ in steps}
    assert known == {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}
