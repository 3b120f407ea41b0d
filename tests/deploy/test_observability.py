"""Alert rules and dashboard: their expressions parse, and name metrics, labels and words that a real proxy shows."""

import contextlib
import json
import re
import time

import promql_parser
import pytest
import yaml
from conftest import ROOT, Running, clean_environment, free_port, run, tool

ALERTS = ROOT / "observability/alerts.yaml"
# Labels that the scraper adds.
OF_THE_SCRAPER = {"namespace", "job", "instance"}


def alert_expressions():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def dashboard():
    return json.loads((ROOT / "observability/grafana-dashboard.json").read_text())


def dashboard_expressions():
    found = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            inner = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            found[f"variable {variable['name']}"] = f"sum by ({inner[2]}) ({inner[1]})"
            assert variable["query"]["query"] == variable["definition"]
    return {where: plain(expression) for where, expression in found.items()}


def plain(expression):
    """The expression with Grafana's variables replaced by something that parses."""
    return re.sub(r'"\$\w+"', '".*"', expression.replace("$__rate_interval", "5m"))


@pytest.fixture(scope="module")
def metrics(binary):
    """Every sample that proxies show, as name → label → values: one that works, and one whose store is away.

    A family shows up with its first sample: store errors need an error, and the count of open records needs a sweep.
    """
    found = {}
    with proxy(binary, "memory:") as working:
        await_sample(working, "onceproxy_records_open{")
        read_samples(working, found)
    with proxy(binary, f"redis://127.0.0.1:{free_port()}") as refusing:
        status, _ = refusing.ask("proxy", "/payments/x", body="{}", **{"Idempotency-Key": "k"})
        assert status == 503
        await_sample(refusing, "onceproxy_store_errors_total{")
        read_samples(refusing, found)
    assert len(found) > 20
    return found


@contextlib.contextmanager
def proxy(binary, store):
    file = ROOT / "k8s/overlays/gateway/onceproxy.toml"
    listeners = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    running = Running([binary, "serve", "--config", file, *listeners, "--store", store], env=clean_environment())
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def await_sample(running, start):
    deadline = time.monotonic() + 20
    while start not in running.get("/metrics")[1]:
        assert time.monotonic() < deadline, f"no sample begins with {start}"
        time.sleep(0.05)


def read_samples(running, found):
    status, text = running.get("/metrics")
    assert status == 200
    for name, inner in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        labels = found.setdefault(name, {})
        for label, value in re.findall(r'(\w+)="([^"]*)"', inner):
            labels.setdefault(label, set()).add(value)


def walk(expression):
    """The expression and everything in it. The parser's nodes differ in the names of their children."""
    yield expression
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        child = getattr(expression, name, None)
        if child is not None and not isinstance(child, (str, int, float)):
            yield from walk(child)
    for argument in getattr(expression, "args", None) or []:
        yield from walk(argument)


def selectors(expression):
    return [node for node in walk(promql_parser.parse(expression)) if isinstance(node, promql_parser.VectorSelector)]


def grouped_labels(expression):
    return {label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r",\s*", labels)}


EXPRESSIONS = alert_expressions() | dashboard_expressions()


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_expressions_name_what_the_proxy_shows(where, metrics):
    expression = EXPRESSIONS[where]
    found = selectors(expression)
    # The walk above misses nothing: every metric in the text was met as a selector.
    assert sorted(re.findall(r"\bonceproxy_\w+", expression)) == sorted(selector.name for selector in found) != []
    for selector in found:
        assert selector.name in metrics, f"the proxy has no metric {selector.name}"
        labels = metrics[selector.name]
        for matcher in selector.matchers.matchers:
            if matcher.name in OF_THE_SCRAPER:
                continue
            assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
            words = [] if matcher.value == ".*" else matcher.value.split("|")
            assert set(words) <= labels[matcher.name], f"{matcher.name} is never one of {words}"
        unknown = grouped_labels(expression) - OF_THE_SCRAPER - labels.keys()
        assert not unknown, f"{selector.name} has no {unknown} to group by"


def test_every_metric_is_on_the_dashboard(metrics):
    shown = " ".join(dashboard_expressions().values())
    families = {re.sub(r"_(bucket|sum|count)$", "_bucket", name) for name in metrics}
    assert [name for name in sorted(families) if name not in shown] == []


def test_the_rules_are_valid_and_do_what_they_say():
    run(tool("promtool"), "check", "rules", ALERTS)
    run(tool("promtool"), "test", "rules", "alerts_test.yaml", directory=ALERTS.parent)


def test_every_rule_is_tested_and_tells_what_to_do():
    tests = (ALERTS.parent / "alerts_test.yaml").read_text()
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    # The last test asks for whatever fires, and names it in what it expects.
    for rule in rules:
        assert rule["alert"] in tests
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_prometheus_takes_the_dashboards_expressions(tmp_path):
    rules = [
        {"record": f"dashboard:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions().values())
    ]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", file)


def test_the_dashboard_lies_on_the_grid():
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
