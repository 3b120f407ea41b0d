"""The manifests: they render, Kubernetes would take them, and they say what the binary knows."""

import copy
import re
import subprocess
import sys
import time
import tomllib
import urllib.parse

import kubernetes_validate
import pytest
import yaml
from conftest import OVERLAYS, ROOT, Workload, clean_environment, free_port, run

# The oldest Kubernetes with native sidecars, and the newest whose schema the checks have.
VERSIONS = ["1.29", "1.37"]
# Schemas of these are not Kubernetes' own.
CUSTOM = {"PodMonitor", "PrometheusRule"}
# What the proxy may take after the drain: cut-off attempts tell the store, their callers hear it (src/app.rs), and the
# container ends.
LAST_WORDS = 5


def seconds(duration):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)", duration).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


def size(text):
    number, unit = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB|Ki|Mi|Gi)", text).groups()
    return int(number) * 1024 ** "BKMG".index(unit[0])


def effective(binary, workload, folder):
    """The settings that the container would run with, as the binary itself prints them."""
    file = workload.settings_file(folder)
    environment = workload.environment() | {"ONCEPROXY_CONFIG": str(file)}
    return tomllib.loads(run(binary, "check", environment=environment))


def test_there_are_overlays():
    assert {"gateway", "gateway-disk", "webhook-ingress", "worker-egress"} <= set(OVERLAYS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [f"overlays/{name}" for name in OVERLAYS] + ["redis", "monitoring"])
def test_kubernetes_takes_what_is_rendered(render, folder, version):
    for document in render(folder):
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)


# What the Prometheus Operator's definitions (monitoring.coreos.com/v1) say of the fields that are used here: those that must
# be there, and the others that may. A field that is not listed is refused: by the operator, or here until somebody looks.
# Compared with the definitions of version 0.93.0, field by field; where these differ, ours are narrower.
POD_MONITOR = {
    "selector!": {"matchLabels": dict, "matchExpressions": [{"key!": str, "operator!": str, "values": [str]}]},
    "podMetricsEndpoints": [
        {"port": str, "path": str, "scheme": ("http", "https"), "interval": "duration", "scrapeTimeout": "duration"}
    ],
    "namespaceSelector": {"any": bool, "matchNames": [str]},
    "jobLabel": str,
    "podTargetLabels": [str],
}
PROMETHEUS_RULE = {
    "groups": [
        {
            "name!": str,
            "interval": "duration",
            "limit": int,
            "rules": [
                {
                    "alert": str,
                    "record": str,
                    "expr!": str,
                    "for": "duration",
                    "keep_firing_for": "duration",
                    "labels": dict,
                    "annotations": dict,
                }
            ],
        }
    ]
}
DURATION = re.compile(r"0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")


def faults(value, wanted, at):
    """What is wrong with a value, by the place at which it stands."""
    if wanted == "duration":
        return [] if isinstance(value, str) and value and DURATION.fullmatch(value) else [f"{at} is no duration: {value}"]
    if isinstance(wanted, tuple):
        return [] if value in wanted else [f"{at} is none of {wanted}: {value}"]
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{at} is no list"]
        return [fault for number, one in enumerate(value) for fault in faults(one, wanted[0], f"{at}[{number}]")]
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{at} is no object"]
        fields = {name.rstrip("!"): kind for name, kind in wanted.items()}
        lacking = [f"{at}.{name[:-1]} is missing" for name in wanted if name.endswith("!") and name[:-1] not in value]
        unknown = [f"{at}.{name} is unknown" for name in value if name not in fields]
        known = [(name, fields[name]) for name in value if name in fields]
        return lacking + unknown + [fault for name, kind in known for fault in faults(value[name], kind, f"{at}.{name}")]
    if wanted is dict:
        is_right = isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)
        return [] if is_right else [f"{at} is no map of texts: {value}"]
    return [] if type(value) is wanted else [f"{at} is no {wanted.__name__}: {value!r}"]


CUSTOM_SPECS = {"PodMonitor": POD_MONITOR, "PrometheusRule": PROMETHEUS_RULE}


def custom_faults(document):
    """What the Prometheus Operator would refuse."""
    found = faults(document["spec"], CUSTOM_SPECS[document["kind"]], "spec")
    if document["apiVersion"] != "monitoring.coreos.com/v1":
        found.append(f"apiVersion is {document['apiVersion']}")
    groups = document["spec"].get("groups", [])
    # Kubernetes keeps the list by this key (x-kubernetes-list-map-keys).
    names = [group.get("name") for group in groups]
    if "" in names or len(set(names)) < len(names):
        found.append(f"groups are not each of a name of its own: {names}")
    for group in groups:
        for rule in group.get("rules", []):
            if ("alert" in rule) == ("record" in rule):
                found.append(f"a rule of {group['name']} is not either an alert or a recording")
            if "record" in rule and {"for", "keep_firing_for", "annotations"} & rule.keys():
                found.append(f"{rule['record']} is recorded and has what alerts have")
    return found


def test_the_prometheus_operator_takes_what_is_rendered(render):
    custom = [document for document in render("monitoring") if document["kind"] in CUSTOM]
    assert {document["kind"] for document in custom} == CUSTOM
    for document in custom:
        assert custom_faults(document) == []


def test_what_the_prometheus_operator_refuses_is_seen(render):
    monitor, rules = (
        next(document for document in render("monitoring") if document["kind"] == kind)
        for kind in ("PodMonitor", "PrometheusRule")
    )
    spoilt = copy.deepcopy(monitor)
    spoilt["spec"]["podMetricsEndpoints"][0] |= {"intervall": "15s", "interval": "15 s", "port": 9090}
    del spoilt["spec"]["selector"]
    assert len(custom_faults(spoilt)) == 4
    spoilt = copy.deepcopy(rules)
    rule = spoilt["spec"]["groups"][0]["rules"][0]
    rule |= {"for": "5 minutes", "record": "a:b", "labels": {"severity": 1}}
    del rule["expr"]
    assert len(custom_faults(spoilt)) == 5
    for name in ["", rules["spec"]["groups"][1]["name"]]:
        spoilt = copy.deepcopy(rules)
        spoilt["spec"]["groups"][0]["name"] = name
        assert len(custom_faults(spoilt)) == 1


def test_the_gateway_has_several_replicas_of_which_one_may_go(render):
    documents = render("overlays/gateway")
    deployment = next(one for one in documents if one["kind"] == "Deployment" and one["metadata"]["name"] == "onceproxy")
    assert deployment["spec"]["replicas"] > 1
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = next(one["spec"] for one in documents if one["kind"] == "PodDisruptionBudget")
    assert budget.get("maxUnavailable") == 1 or 0 < budget["minAvailable"] < deployment["spec"]["replicas"]


def test_names_that_are_referred_to_exist(workload):
    for mount in workload.container["volumeMounts"]:
        claims = workload.document["spec"].get("volumeClaimTemplates", [])
        volumes = [volume["name"] for volume in workload.pod.get("volumes", [])]
        assert mount["name"] in volumes + [claim["metadata"]["name"] for claim in claims]
    workload.environment()
    for ingress in workload.of_kind("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = workload.named("Service", path["backend"]["service"]["name"])
                names = [port["name"] for port in service["spec"]["ports"]]
                assert path["backend"]["service"]["port"]["name"] in names


def test_selectors_find_the_pods(workload):
    workloads = workload.of_kind("Deployment") + workload.of_kind("StatefulSet")
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in workloads]
    for one, of_pod in zip(workloads, labels):
        assert one["spec"]["selector"]["matchLabels"].items() <= of_pod.items()
    for kind, selector in [
        ("Service", lambda spec: spec["selector"]),
        ("PodDisruptionBudget", lambda spec: spec["selector"]["matchLabels"]),
        ("NetworkPolicy", lambda spec: spec["podSelector"]["matchLabels"]),
    ]:
        for document in workload.of_kind(kind):
            wanted = selector(document["spec"])
            found = [one for one in labels if wanted.items() <= one.items()]
            assert len(found) == 1, f"{kind} {document['metadata']['name']} selects {len(found)} workloads"


def test_the_command_and_the_environment_are_the_binarys(binary, workload):
    assert "command" not in workload.container, "the image's ENTRYPOINT is the binary"
    command, *flags = workload.container["args"]
    help_text = run(binary, command, "--help")
    for flag in flags:
        assert flag.split("=")[0] in help_text
    known = set(re.findall(r"ONCEPROXY_[A-Z_]+", run(binary, "--help")))
    for variable in workload.container["env"]:
        assert variable["name"] in known


def test_the_settings_hold_without_a_warning(binary, workload, tmp_path):
    file = workload.settings_file(tmp_path)
    done = subprocess.run(
        [binary, "check"],
        env=clean_environment(workload.environment() | {"ONCEPROXY_CONFIG": str(file)}),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ports_are_those_of_the_settings(binary, workload, tmp_path):
    settings = effective(binary, workload, tmp_path)
    proxy, admin = (address.rpartition(":") for address in (settings["listen"], settings["admin"]["listen"]))
    ports = workload.ports()
    assert ports == {"once-proxy": int(proxy[2]), "once-admin": int(admin[2])}
    # The kubelet and Prometheus come by the pod's address.
    assert admin[0] == "0.0.0.0"
    leads_here = lambda service: service["spec"]["selector"].items() <= workload.labels.items()
    services = [one for one in workload.of_kind("Service") if leads_here(one)]
    for service in services:
        assert [port["targetPort"] for port in service["spec"]["ports"]] == [ports["once-proxy"]]
        assert proxy[0] == "0.0.0.0", "a service leads to a listener on loopback"
    # Without a service nobody but the pod itself has business with the proxy.
    assert services or proxy[0] == "127.0.0.1"
    for policy in workload.of_kind("NetworkPolicy"):
        if policy["spec"]["podSelector"]["matchLabels"].items() <= workload.labels.items():
            let_in = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
            assert let_in == set(ports.values()) if services else let_in == {ports["once-admin"]}


def test_the_proxy_is_let_out_to_its_store_and_upstreams(binary, workload, tmp_path):
    settings = effective(binary, workload, tmp_path)
    policy = next(
        one["spec"]
        for one in workload.of_kind("NetworkPolicy")
        if one["spec"]["podSelector"]["matchLabels"].items() <= workload.labels.items()
    )
    anywhere = {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}
    assert 53 in anywhere
    for route in settings["route"]:
        upstream = urllib.parse.urlsplit(route["upstream"])
        assert upstream.hostname == "127.0.0.1" or {"https": 443, "http": 80}[upstream.scheme] in anywhere
    within = [rule for rule in policy["egress"] if "to" in rule]
    to_pods = [(rule["to"][0]["podSelector"]["matchLabels"], rule["ports"]) for rule in within]
    store = urllib.parse.urlsplit(settings["store"]["url"])
    if store.scheme == "disk":
        assert to_pods == []
        return
    # By name to the service, by its labels to the server, by the policy to its port, and by the server's own in again.
    service = workload.named("Service", store.hostname)["spec"]
    server = workload.named("StatefulSet", store.hostname)["spec"]["template"]
    labels = server["metadata"]["labels"]
    assert service["selector"].items() <= labels.items() and service["ports"][0]["port"] == store.port
    [container] = server["spec"]["containers"]
    served = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert served[service["ports"][0]["targetPort"]] == store.port
    [(wanted, ports)] = to_pods
    assert wanted.items() <= labels.items() and ports == [{"port": store.port}]
    of_server = workload.named("NetworkPolicy", store.hostname)["spec"]
    assert of_server["podSelector"]["matchLabels"].items() <= labels.items()
    [let_in] = of_server["ingress"]
    assert let_in["ports"] == ports
    [expression] = let_in["from"][0]["podSelector"]["matchExpressions"]
    assert expression["key"] in workload.labels and expression["operator"] == "Exists"


def test_a_worker_calls_its_own_proxy(binary, render, tmp_path):
    workload = Workload(render("overlays/worker-egress"))
    url = workload.pod["containers"][0]["env"][0]["value"]
    assert url == f"http://{effective(binary, workload, tmp_path)['listen']}"


def test_the_examples_call_happens_once(binary, start, render, tmp_path):
    """The shell of the example worker and the Python of the example endpoint, with the proxy between them."""
    worker = Workload(render("overlays/worker-egress")).pod["containers"][0]["command"]
    webhooks = Workload(render("overlays/webhook-ingress"))
    script = next(one["data"]["endpoint.py"] for one in webhooks.of_kind("ConfigMap") if "endpoint.py" in one["data"])
    port = free_port()
    upstream = effective(binary, webhooks, tmp_path)["route"][0]["upstream"]
    assert upstream.endswith(":3000") and script.count(" 3000)") == 1
    (tmp_path / "endpoint.py").write_text(script.replace(" 3000)", f" {port})"))
    endpoint = subprocess.Popen([sys.executable, tmp_path / "endpoint.py"], stdout=subprocess.PIPE, text=True)
    settings = {
        "ONCEPROXY_UPSTREAM": f"http://127.0.0.1:{port}",
        "ONCEPROXY_LISTEN": "127.0.0.1:0",
        "ONCEPROXY_ADMIN_LISTEN": "127.0.0.1:0",
        "ONCEPROXY_STORE": "memory:",
    }
    proxy = start(environment=settings)
    try:
        while proxy.ask("proxy", "/is-it-up", "{}")[0] == 502:
            assert endpoint.poll() is None
        url = f"http://{proxy.addresses['proxy']}"
        # Twice the same two jobs, as after a restart of the container.
        for _ in range(2):
            jobs = worker[-1].replace("sleep 10", "[ $job = 2 ] && exit; sleep 0")
            environment = clean_environment({"HOSTNAME": "w-0", "PAYMENTS_URL": url})
            subprocess.run([*worker[:-1], jobs], env=environment, timeout=30, check=True)
        endpoint.terminate()
        handled, _ = endpoint.communicate(timeout=10)
    finally:
        endpoint.kill()
    assert endpoint.returncode == 0
    assert handled.count("handled /v1/payments") == 2


def test_probes_are_answered(binary, workload, start, tmp_path):
    file = workload.settings_file(tmp_path)
    proxy = start(
        environment=workload.environment()
        | {
            "ONCEPROXY_CONFIG": str(file),
            "ONCEPROXY_LISTEN": "127.0.0.1:0",
            "ONCEPROXY_ADMIN_LISTEN": "127.0.0.1:0",
            "ONCEPROXY_STORE": "memory:",
        }
    )
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = workload.container[probe]["httpGet"]
        assert workload.ports()[asked["port"]] == workload.ports()["once-admin"]
        status, body = proxy.get(asked["path"])
        assert status == 200, f"{probe}: {status} {body}"
    # What a probe could be misspelt to, and what strangers could ask for, is not open.
    assert proxy.get("/healthz")[0] == 401
    assert proxy.get("/records")[0] == 401
    # An operator who runs the binary in the container finds the listener and the token in its environment.
    inside = workload.environment() | {
        "ONCEPROXY_CONFIG": str(file),
        "ONCEPROXY_ADMIN_LISTEN": proxy.addresses["admin"],
    }
    run(binary, "health", environment=inside)
    run(binary, "records", "list", "--state", "unknown", environment=inside)


def test_the_grace_period_covers_the_drain(binary, workload, tmp_path):
    settings = effective(binary, workload, tmp_path)
    pre_stops = [
        int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        for container in workload.pod["containers"]
        if "preStop" in container.get("lifecycle", {})
    ]
    drain = seconds(settings["drain_delay"]) + seconds(settings["drain_timeout"])
    needed = max(pre_stops, default=0) + drain + seconds(settings["store"]["timeout"]) + LAST_WORDS
    assert workload.pod["terminationGracePeriodSeconds"] >= needed
    # Nobody who still waits for an answer is cut off.
    for route in settings["route"]:
        assert seconds(settings["drain_timeout"]) >= seconds(route["timeout"])
        if pre_stops:
            assert max(pre_stops) >= seconds(route["timeout"]) + 10


def test_bodies_fit_into_the_memory_limit(binary, workload, tmp_path):
    settings = effective(binary, workload, tmp_path)
    limit = size(workload.container["resources"]["limits"]["memory"])
    # 20 MiB idle, and what a connection and a waiting duplicate cost besides their bodies: about 12 KiB each.
    limits = settings["limits"]
    fixed = size("20MiB") + (limits["connections"] + limits["waiting"]) * size("12KiB")
    assert size(limits["buffered"]) + fixed <= limit
    assert "cpu" not in workload.container["resources"]["limits"], "a throttled proxy renews its leases late"


def test_a_sidecar_is_a_native_one(render):
    for name in ("worker-egress", "webhook-ingress"):
        workload = Workload(render(f"overlays/{name}"))
        assert workload.container in workload.pod["initContainers"]
        assert workload.container["restartPolicy"] == "Always"


def test_every_pod_is_of_the_restricted_profile(workload):
    """The Pod Security Standards' restricted profile, and a root filesystem that nobody writes to."""
    for document in workload.documents:
        pod = document.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        of_pod = pod["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"] + pod.get("initContainers", []):
            context = of_pod | container["securityContext"]
            assert context["runAsNonRoot"] is True and context["runAsUser"] > 0
            assert context["seccompProfile"]["type"] == "RuntimeDefault"
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
            assert "hostPort" not in [key for port in container.get("ports", []) for key in port]
        assert "hostPath" not in [key for volume in pod.get("volumes", []) for key in volume]


def test_a_disk_store_lies_on_a_volume_and_has_one_holder(binary, workload, tmp_path):
    url = effective(binary, workload, tmp_path)["store"]["url"]
    if not url.startswith("disk:"):
        assert url.startswith("redis://onceproxy-redis:")
        assert workload.of_kind("Service"), "the trial Redis is missing"
        return
    assert workload.document["kind"] == "StatefulSet" and workload.document["spec"]["replicas"] == 1
    mounts = [mount["mountPath"] for mount in workload.container["volumeMounts"] if not mount.get("readOnly")]
    assert any(url.removeprefix("disk:").startswith(f"{mount}/") for mount in mounts)
    assert workload.pod["securityContext"]["fsGroup"] == workload.pod["securityContext"]["runAsUser"]
    assert not workload.of_kind("PodDisruptionBudget"), "it would block the draining of the node"


def test_the_trial_redis_keeps_the_promise(start, tmp_path):
    """The settings of the trial Redis on a real server: the proxy is ready on it, so it neither evicts nor is away."""
    port = free_port()
    command = ["redis-server", ROOT / "k8s/redis/redis.conf", "--port", str(port), "--bind", "127.0.0.1"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        proxy = start(
            environment={
                "ONCEPROXY_CONFIG": str(ROOT / "k8s/overlays/gateway/onceproxy.toml"),
                "ONCEPROXY_LISTEN": "127.0.0.1:0",
                "ONCEPROXY_ADMIN_LISTEN": "127.0.0.1:0",
                "ONCEPROXY_STORE": f"redis://127.0.0.1:{port}",
            }
        )
        deadline = time.monotonic() + 15
        while (answer := proxy.get("/readyz"))[0] != 200 and time.monotonic() < deadline:
            assert server.poll() is None, "Redis does not take the settings"
            time.sleep(0.05)
        assert answer == (200, "ready\n")
    finally:
        server.kill()
        server.wait()


def test_pods_are_scraped_where_they_answer(workload, render):
    monitor = next(one for one in render("monitoring") if one["kind"] == "PodMonitor")
    for expression in monitor["spec"]["selector"]["matchExpressions"]:
        assert expression["operator"] == "Exists" and expression["key"] in workload.labels
    assert monitor["spec"]["jobLabel"] in workload.labels
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert endpoint["port"] in workload.ports()
        assert endpoint["path"] == "/metrics"


def test_the_operators_rules_are_the_tested_ones(render):
    rule = next(one for one in render("monitoring") if one["kind"] == "PrometheusRule")
    tested = yaml.safe_load((ROOT / "observability/alerts.yaml").read_text())
    assert rule["spec"] == tested, "run scripts/write-prometheus-rule"
