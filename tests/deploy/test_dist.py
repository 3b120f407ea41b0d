"""The release archive: what is in it, that it runs, and that its checksum is right."""

import subprocess
import tarfile

from conftest import ROOT, clean_environment, run


def test_the_archive_holds_a_binary_that_runs_and_all_that_belongs_to_it(binary, tmp_path):
    archives = [run("scripts/dist", binary, tmp_path / folder).strip() for folder in ("one", "two")]
    contents = [open(archive, "rb").read() for archive in archives]
    assert contents[0] == contents[1], "the same sources and binary give other bytes"
    subprocess.run(["sha256sum", "--check", "--quiet", f"{archives[0]}.sha256"], cwd=tmp_path / "one", check=True)
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.glob("onceproxy-*")

    version = run(root / "onceproxy", "--version").split()[1]
    assert root.name.startswith(f"onceproxy-{version}-")
    for name in ["README.md", "LICENSE", "CHANGELOG.md", "docs/guarantees.md", "examples/celery/tasks.py"]:
        assert (root / name).read_bytes() == (ROOT / name).read_bytes()
    run(root / "onceproxy", "check", "--config", root / "config.toml")

    pages = {page.name for page in (root / "man/man1").iterdir()}
    assert {"onceproxy.1", "onceproxy-serve.1", "onceproxy-records-resolve.1"} <= pages
    assert "ONCEPROXY_CONFIG" in (root / "man/man1/onceproxy.1").read_text()


def test_bash_completes_commands_and_flags(binary, tmp_path):
    script = tmp_path / "onceproxy.bash"
    script.write_text(run(binary, "generate", "completions", "bash"))
    # What bash does when the tab key is pressed behind these words.
    ask = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        _onceproxy onceproxy "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def completed(*words):
        command = ["bash", "-c", ask, "bash", str(script), "onceproxy", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout.split()

    assert completed("ser") == ["serve"]
    assert completed("records", "res") == ["resolve"]
    assert completed("serve", "--ups") == ["--upstream"]
