"""The schema for editors against files that the binary takes or refuses."""

import json
import subprocess
import tomllib

import jsonschema
import pytest
from conftest import ROOT

SCHEMA = json.loads((ROOT / "config.schema.json").read_text())
TAKEN = [
    ROOT / "config.toml",
    *(path for folder in ("tests/config/valid", "k8s", "examples") for path in ROOT.glob(f"{folder}/**/*.toml")),
]
ROUTE = '[[route]]\nname = "r"\nupstream = "http://u"\n'


def faults(text):
    return [fault.message for fault in jsonschema.Draft7Validator(SCHEMA).iter_errors(tomllib.loads(text))]


def test_it_is_a_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert len(TAKEN) > 9


@pytest.mark.parametrize("path", TAKEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_it_takes_what_the_binary_takes(path):
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        'lissten = "127.0.0.1:80"\n' + ROUTE,
        "drain_timeout = 25\n" + ROUTE,
        'threads = "many"\n' + ROUTE,
        "[limits]\nconnections = 0\n" + ROUTE,
        '[limits]\nbuffered = "512MB"\n' + ROUTE,
        '[log]\nlevel = "loud"\n' + ROUTE,
        ROUTE + 'preset = "payments"\n',
        ROUTE + 'key_preset = "git-hub"\n',
        ROUTE + 'key = "header:Idempotency-Key"\n',
        ROUTE + 'fingerprint.body = "xml"\n',
        ROUTE + 'retention = "never"\n',
        ROUTE + 'key_required = "yes"\n',
        '[[route]]\nname = "r"\n',
        '[route]\nname = "r"\nupstream = "http://u"\n',
    ],
)
def test_it_refuses_what_the_binary_refuses(text, binary, tmp_path):
    file = tmp_path / "onceproxy.toml"
    file.write_text(text)
    assert subprocess.run([binary, "check", "--config", file], capture_output=True).returncode == 2
    assert faults(text) != []
