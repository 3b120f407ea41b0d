"""docs/deployment.md: what it tells a newcomer to write renders, is valid, and agrees with the overlays."""

import re

import kubernetes_validate
import pytest
import yaml
from conftest import OVERLAYS, ROOT, Workload, run, tool

GUIDE = (ROOT / "docs/deployment.md").read_text()


def block(language, containing):
    """The fenced block of this language that contains the text; there must be one."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL) if containing in text]
    assert len(found) == 1, f"{len(found)} blocks contain {containing}"
    return found[0]


@pytest.fixture
def newcomer(tmp_path):
    """The folder that the guide describes, beside a clone."""
    (tmp_path / "onceproxy").mkdir()
    (tmp_path / "onceproxy/k8s").symlink_to(ROOT / "k8s")
    folder = tmp_path / "billing"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(block("yaml", "kind: Kustomization"))
    (folder / "deployment.yaml").write_text(block("yaml", "name: billing"))
    (folder / "onceproxy.toml").write_text(block("toml", "[[route]]"))
    (folder / "onceproxy.env").write_text("ONCEPROXY_ADMIN_TOKEN=0123456789abcdef\n")
    return folder


def test_a_newcomers_worker_gets_its_sidecar(newcomer, binary, tmp_path):
    documents = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", newcomer)))
    for document in documents:
        kubernetes_validate.validate(document, "1.29", strict=True)
    workload = Workload(documents)
    assert workload.container["restartPolicy"] == "Always"
    file = workload.settings_file(tmp_path)
    settings = run(binary, "check", "--config", file, environment=workload.environment())
    listen = re.search(r'^listen = "(.*)"', settings, re.MULTILINE)[1]
    assert workload.pod["containers"][0]["env"][0]["value"] == f"http://{listen}"


def test_the_component_leaves_other_deployments_alone(newcomer):
    deployment = newcomer / "deployment.yaml"
    deployment.write_text(deployment.read_text().replace("onceproxy: sidecar", "onceproxy: no"))
    assert "initContainers" not in run(tool("kubectl"), "kustomize", newcomer)


def test_the_paths_and_commands_of_the_guide_exist(binary):
    for path in re.findall(r"`((?:k8s|observability|docs)/[\w./-]+)`", GUIDE):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((\w+\.md)", GUIDE):
        assert (ROOT / "docs" / link).exists(), link
    for overlay in OVERLAYS:
        assert f"`k8s/overlays/{overlay}`" in GUIDE
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", GUIDE)) <= targets
    commands = r"onceproxy:?[\d.]* \\?\s*(serve|check|records list|health)[^`\n]*?(--[\w-]+)"
    assert len(re.findall(commands, GUIDE)) > 3
    for command, flag in re.findall(commands, GUIDE):
        assert flag in run(binary, *command.split(), "--help")
