"""The Kubernetes manifests are valid and agree with each other, Shardmill and Flink."""

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from apache_beam.options.pipeline_options import FlinkRunnerOptions

from shardmill.pipelines.commands.build import parse_build
from tests.conftest import ROOT
from tests.deploy.test_dataflow_template import BEAM, VERSION, instructions

FOLDER = ROOT / "deploy" / "flink" / "kubernetes"
FLINK = ROOT / "deploy" / "flink"
Document = dict[str, Any]
# The first with sidecars, a newer one, and the newest whose schemas are published.
VERSIONS = ("1.29", "1.33", ".".join(kubernetes_validate.latest_version().split(".")[:2]))
# A strategy for jobs on pods waits longer than one for processes: a killed pool must come back.
OWN_CONFIG = {"restart-strategy.failure-rate.delay"}
PODS = {"flink-jobmanager": "jobmanager", "flink-taskmanager": "taskmanager"}
SHUFFLE = "taskmanager.network.sort-shuffle.min-buffers"


def documents(folder: Path) -> list[Document]:
    """Return the documents that a folder's kustomization lists, in order."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return [
        document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((folder / name).read_text())
    ]


CLUSTER = documents(FOLDER)
JOB = documents(FOLDER / "job")
ALL = [*CLUSTER, *JOB]
IDS = [f"{document['kind']}-{document['metadata']['name']}" for document in ALL]


def of_kind(*kinds: str) -> list[Document]:
    return [document for document in ALL if document["kind"] in kinds]


def named(kind: str, name: str) -> Document:
    (found,) = [each for each in of_kind(kind) if each["metadata"]["name"] == name]
    return found


def workloads() -> list[Document]:
    return of_kind("Deployment", "Job")


def named_workload(name: str) -> Document:
    (found,) = [each for each in workloads() if each["metadata"]["name"] == name]
    return found


def pod_of(workload: Document) -> Document:
    return workload["spec"]["template"]["spec"]


def containers_of(workload: Document) -> list[Document]:
    pod = pod_of(workload)
    return [*pod.get("initContainers", []), *pod["containers"]]


def container(workload: str, name: str) -> Document:
    (found,) = [each for each in containers_of(named_workload(workload)) if each["name"] == name]
    return found


def ports_of(workload: Document) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for each in containers_of(workload)
        for port in each.get("ports", [])
    }


def selected(selector: Document) -> list[Document]:
    """Return the workloads whose pods a selector selects."""
    return [
        each
        for each in workloads()
        if selector["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
    ]


def flink_config() -> dict[str, Any]:
    return yaml.safe_load(named("ConfigMap", "flink-config")["data"]["config.yaml"])


def memory(text: str) -> int:
    """Return the bytes of a size in the notation of Flink or Kubernetes."""
    number, unit = re.fullmatch(r"(\d+)(m|g|Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) << {"m": 20, "mi": 20, "g": 30, "gi": 30}[unit.lower()]


def job_flags() -> dict[str, str]:
    (workload,) = JOB
    arguments = container(workload["metadata"]["name"], "shardmill")["args"]
    return dict(each[2:].split("=", 1) for each in arguments[1:])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", ALL, ids=IDS)
def test_documents_match_the_published_schemas(document, version) -> None:
    assert kubernetes_validate.validate(document, version, strict=True) == version


def test_kustomizations_list_every_file_and_image() -> None:
    assert len(CLUSTER) > 8
    for folder in (FOLDER, FOLDER / "job"):
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
        there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert sorted(listed["resources"]) == sorted(there)
        used = {
            each["image"].partition(":")[0]
            for document in documents(folder)
            if document in workloads()
            for each in containers_of(document)
        }
        assert {image["name"] for image in listed["images"]} == used


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "job"], ids=["cluster", "job"])
def test_kustomize_does_not_change_documents(folder) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    made = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
    )
    keyed = {(each["kind"], each["metadata"]["name"]): each for each in documents(folder)}
    built = list(yaml.safe_load_all(made.stdout))
    assert len(built) == len(keyed)
    for each in built:
        assert each == keyed[each["kind"], each["metadata"]["name"]]


def test_all_documents_are_in_one_namespace() -> None:
    (namespace,) = of_kind("Namespace")
    for document in ALL:
        if document is not namespace:
            assert document["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert len(IDS) == len(set(IDS))


def test_deployments_select_their_own_pods() -> None:
    for document in of_kind("Deployment"):
        assert selected(document["spec"]["selector"]) == [document]
        for spread in pod_of(document).get("topologySpreadConstraints", []):
            assert selected(spread["labelSelector"]) == [document]


def test_services_use_existing_ports() -> None:
    services = of_kind("Service")
    assert services
    for service in services:
        (target,) = selected({"matchLabels": service["spec"]["selector"]})
        ports = ports_of(target)
        assert service["spec"]["ports"]
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]] == ports[port["name"]]


def test_probes_use_existing_ports() -> None:
    for document in of_kind("Deployment"):
        for each in containers_of(document):
            ports = {port["name"] for port in each["ports"]}
            assert {"startupProbe", "livenessProbe"} <= set(each)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = each.get(kind, {})
                for how in ("httpGet", "tcpSocket"):
                    assert how not in probe or probe[how]["port"] in ports


def test_taskmanager_that_waits_for_a_worker_is_restarted(tmp_path) -> None:
    """Beam waits for ever for a worker whose pool died; Flink's log of this makes the probe fail."""
    command = container("flink-taskmanager", "taskmanager")["livenessProbe"]["exec"]["command"]
    log = named("ConfigMap", "flink-config")["data"]["log4j-console.properties"]
    (path,) = re.findall(r"^appender.waiting.fileName = (\S+)$", log, re.MULTILINE)
    assert "appender.waiting.append = false" in log, (
        "a restarted TaskManager starts with an empty file"
    )
    with socket.create_server(("localhost", 0)) as server:
        port = str(ports_of(named_workload("flink-taskmanager"))["rpc"])
        text = command[-1].replace(f"/{port} ", f"/{server.getsockname()[1]} ")
        text = text.replace(path, str(tmp_path / "waiting"))
        assert text.count(str(tmp_path)) == 1

        def is_alive() -> bool:
            return (
                subprocess.run(
                    [*command[:-1], text], check=False, stderr=subprocess.DEVNULL
                ).returncode
                == 0
            )

        assert is_alive()
        (tmp_path / "waiting").touch()
        assert is_alive()
        (tmp_path / "waiting").write_text(
            "Still waiting for startup of environment from localhost\n"
        )
        assert not is_alive()
        (tmp_path / "waiting").write_text("")
    assert not is_alive()


def test_policies_and_budgets_use_existing_pods_and_ports() -> None:
    metrics, egress = (
        named("NetworkPolicy", "flink-metrics"),
        named("NetworkPolicy", "shardmill-egress"),
    )
    taken = []
    for policy in of_kind("NetworkPolicy"):
        if policy in (metrics, egress):
            continue
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        (target,) = selected(policy["spec"]["podSelector"])
        taken.append(target["metadata"]["name"])
        for rule in policy["spec"].get("ingress", []):
            assert min(len(rule["from"]), len(rule["ports"])) > 0, "an empty list allows every pod"
            for source in rule["from"]:
                assert selected(source["podSelector"])
            assert {port["port"] for port in rule["ports"]} <= set(ports_of(target).values())
    assert sorted(taken) == sorted(each["metadata"]["name"] for each in workloads())
    for budget in of_kind("PodDisruptionBudget"):
        assert len(selected(budget["spec"]["selector"])) == 1
    (rule,) = metrics["spec"]["ingress"]
    pods = selected(metrics["spec"]["podSelector"])
    assert [ports_of(pod)["prometheus"] for pod in pods] == [
        port["port"] for port in rule["ports"]
    ] * 2
    for pod in pods:
        annotations = pod["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(ports_of(pod)["prometheus"])
    assert egress["spec"]["policyTypes"] == ["Egress"]
    assert selected(egress["spec"]["podSelector"]) == workloads()
    open_ports = {
        port["port"]
        for each in egress["spec"]["egress"]
        if "to" not in each
        for port in each["ports"]
    }
    assert open_ports == {53, 443}, "names, and storage and the Kubernetes API"


def allowed(source: str, target: str) -> set[str]:
    """Return the ports of the target's pods that pods of the source may reach."""
    found: set[str] = set()
    names = {port: name for name, port in ports_of(named_workload(target)).items()}
    for policy in of_kind("NetworkPolicy"):
        if target not in {
            each["metadata"]["name"] for each in selected(policy["spec"]["podSelector"])
        }:
            continue
        for rule in policy["spec"].get("ingress", []):
            for place in rule["from"]:
                if "podSelector" in place and named_workload(source) in selected(
                    place["podSelector"]
                ):
                    found |= {names[port["port"]] for port in rule["ports"]}
    return found


def test_policies_allow_only_required_connections() -> None:
    manager, worker, job = "flink-jobmanager", "flink-taskmanager", "shardmill-images"
    assert allowed(worker, manager) == {"rpc", "blob"}
    assert allowed(job, manager) == {"rest"}
    assert allowed(worker, worker) == {"data", "rpc", "metrics"}
    assert allowed(manager, worker) >= {"rpc", "metrics"}
    assert allowed(job, worker) == allowed(manager, job) == allowed(worker, job) == set()


def test_references_exist() -> None:
    seen = set()
    for document in workloads():
        pod = pod_of(document)
        if "serviceAccountName" in pod:
            seen.add(named("ServiceAccount", pod["serviceAccountName"])["metadata"]["name"])
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            kind = (set(volume) - {"name"}).pop()
            assert kind in {"configMap", "emptyDir"}
            if kind == "configMap":
                seen.add(named("ConfigMap", volume["configMap"]["name"])["metadata"]["name"])
        mounted = {each["name"] for one in containers_of(document) for each in one["volumeMounts"]}
        assert mounted == set(volumes)
        for one in containers_of(document):
            assert not one.get("envFrom")
            assert all(set(each.get("valueFrom", {})) <= {"fieldRef"} for each in one["env"])
    assert seen == {"shardmill", "flink-config"}


def test_pods_have_minimal_privileges() -> None:
    (namespace,) = of_kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for document in workloads():
        pod = pod_of(document)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in containers_of(document):
            context = one["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {**pod["securityContext"], **context}["runAsUser"] >= 1000
            # Containers with a read-only root have one writable folder.
            paths = {each["mountPath"] for each in one["volumeMounts"] if not each.get("readOnly")}
            assert paths == {"/tmp"}


def test_pods_declare_resources() -> None:
    for document in workloads():
        for one in containers_of(document):
            needs = one["resources"]
            assert set(needs["requests"]) == {"cpu", "memory", "ephemeral-storage"}
            # Kubernetes first evicts pods that use more memory than they requested.
            assert needs["requests"]["memory"] == needs["limits"]["memory"]
        for volume in pod_of(document)["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]
    for workload, name in PODS.items():
        limit = container(workload, name)["resources"]["limits"]["memory"]
        assert memory(flink_config()[f"{name}.memory.process.size"]) <= memory(limit)


def test_flink_listens_on_the_ports_of_its_pods() -> None:
    config = flink_config()
    names = {
        "flink-jobmanager": {
            "rpc": "jobmanager.rpc.port",
            "blob": "blob.server.port",
            "rest": "rest.port",
        },
        "flink-taskmanager": {
            "rpc": "taskmanager.rpc.port",
            "data": "taskmanager.data.port",
            "metrics": "metrics.internal.query-service.port",
        },
    }
    for workload, keys in names.items():
        ports = ports_of(named("Deployment", workload))
        ports.pop("worker-pool", None)
        assert ports.pop("prometheus") == config["metrics.reporter.prom.port"]
        assert ports == {name: config[key] for name, key in keys.items()}
    named("Service", config["jobmanager.rpc.address"])
    assert config["rest.address"] == config["jobmanager.rpc.address"]
    for workload, name in PODS.items():
        one = container(workload, name)
        env = {each["name"]: each.get("value") for each in one["env"]}
        paths = {each["name"]: each["mountPath"] for each in one["volumeMounts"]}
        assert env["FLINK_CONF_DIR"] == paths["config"]
        assert config["io.tmp.dirs"] == env["FLINK_LOG_DIR"] == paths["tmp"]


def test_recovery_settings_equal_those_of_one_machine() -> None:
    text = (FLINK / "cluster.sh").read_text()
    (block,) = re.findall(r"<<YAML\n(.*?)\n\$\{FLINK_CONFIG", text, re.DOTALL)
    local = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith("#"))
    config = flink_config()
    shared = {
        key
        for key in local
        if key.startswith(
            ("restart-strategy", "heartbeat", "slot", "jobmanager.execution", "blob.service")
        )
    } | {"taskmanager.load-balance.mode", "classloader.resolve-order", SHUFFLE}
    assert len(shared) == 12
    for key in shared - OWN_CONFIG:
        assert str(config[key]) == local[key], key
    assert shared > OWN_CONFIG


def test_job_has_valid_flags() -> None:
    (workload,) = JOB
    one = container(workload["metadata"]["name"], "shardmill")
    command, *arguments = one["args"]
    assert (one["command"], command) == (["shardmill"], "images")
    config, beam, answer, _ = parse_build("images", arguments)
    assert [each[:5] for each in config.input] == ["gs://"]
    assert config.output.startswith("gs://")
    assert not answer.debug
    assert {"--runner=FlinkRunner", "--environment_type=EXTERNAL"} < set(beam)


def test_job_matches_the_cluster() -> None:
    flags, config = job_flags(), flink_config()
    manager = named("Service", config["rest.address"])["metadata"]["name"]
    assert flags["flink_master"] == f"http://{manager}:{config['rest.port']}"
    # More than the free slots would be a usage error while a pod is being replaced.
    assert "parallelism" not in flags
    cores = int(container("flink-taskmanager", "worker-pool")["resources"]["requests"]["cpu"])
    assert int(flags["workers"]) == cores  # of all slots: they share one Python worker
    # The pods share no disk, so no files may be staged.
    assert flags["experiments"] == "disable_logging_submission_environment"
    assert not {"setup_file", "requirements_file", "extra_package"} & set(flags)


def test_each_taskmanager_has_a_worker_pool() -> None:
    pool = container("flink-taskmanager", "worker-pool")
    assert pool["restartPolicy"] == "Always"
    assert (pool["command"], pool["args"]) == (["/opt/apache/beam/boot"], ["--worker_pool"])
    (port,) = pool["ports"]
    flags = job_flags()
    assert flags["environment_type"] == "EXTERNAL"
    assert flags["environment_config"] == f"localhost:{port['containerPort']}"
    # The port is not a flag of the pool, but a constant in Beam.
    assert port["containerPort"] == 50000


def test_writers_use_the_account_of_the_bucket() -> None:
    (account,) = of_kind("ServiceAccount")
    (key,) = account["metadata"]["annotations"]
    assert key == "iam.gke.io/gcp-service-account"
    having = {
        each["metadata"]["name"] for each in workloads() if "serviceAccountName" in pod_of(each)
    }
    assert having == {"flink-taskmanager", "shardmill-images"}


def test_job_is_retried_unless_usage_is_wrong() -> None:
    (workload,) = JOB
    spec = workload["spec"]
    assert 0 < spec["backoffLimit"] < 6
    assert spec["ttlSecondsAfterFinished"] > 0
    assert pod_of(workload)["restartPolicy"] == "Never"
    disrupted, usage = spec["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert (usage["action"], usage["onExitCodes"]["values"]) == ("FailJob", [2])
    assert usage["onExitCodes"]["containerName"] == pod_of(workload)["containers"][0]["name"]


def versions_of(pattern: str, path: Path) -> set[str]:
    return set(re.findall(pattern, path.read_text(), re.MULTILINE))


def test_versions_agree() -> None:
    names = ("FLINK", "RUNNER", "JOB_SERVICE")
    arguments = dict(
        rest.split("=", 1)
        for word, rest in instructions(FOLDER / "Dockerfile")
        if word == "ARG" and "=" in rest
    )
    for name in names:
        assert versions_of(rf"^{name}=\${{{name}:-(.+)}}$", FLINK / "install.sh") == {
            arguments[name]
        }
    tags = zip(("flink", "runner", "job.service"), names, strict=True)
    pom = [versions_of(f"<{tag}>(.+?)</{tag}>", FLINK / "pom.xml") for tag, _ in tags]
    minor = arguments["FLINK"].rpartition(".")[0]
    assert pom == [{minor}, {arguments["RUNNER"]}, {arguments["JOB_SERVICE"]}]
    images = {each["image"] for found in workloads() for each in containers_of(found)}
    assert images == {
        f"registry.example.com/shardmill-{target}:{VERSION}"
        for target in ("flink", "worker", "client")
    }
    stages = dict(
        reversed(rest.split(" AS "))
        for word, rest in instructions(FOLDER / "Dockerfile")
        if word == "FROM"
    )
    assert stages["flink"] == "flink:${FLINK}-java17"
    assert stages["client"] == "${WORKER}"
    assert arguments["WORKER"] in images
    page = (ROOT / "docs" / "flink.md").read_text()
    assert f"VERSION={VERSION}\n" in page
    tested = re.search(r"Tested with Flink (\S+) .* runner (\S+),.* Beam (2[\d.]+\d)\. ", page)
    assert tested, page
    assert tested.groups() == (arguments["FLINK"], arguments["RUNNER"], BEAM.rpartition(".")[0])
    for minor in re.findall(r"^\| (\d\.\d+) \| \1\.\d+ \|", page, re.MULTILINE):
        assert minor in FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS


def test_image_has_the_jars_and_the_user_of_the_pods() -> None:
    lines = instructions(FOLDER / "Dockerfile")
    assert any("deploy/flink/pom.xml " in rest for word, rest in lines if word == "COPY")
    worker = instructions(ROOT / "deploy" / "dataflow" / "Dockerfile")
    environment = " ".join(rest for word, rest in worker if word == "ENV")
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in environment, "the root is read-only"
    jars = [rest.split()[1:] for word, rest in lines if word == "COPY" and "--from=jars" in rest]
    (name,) = versions_of(r"^  <artifactId>(.+?)</artifactId>$", FLINK / "pom.xml")
    kinds = versions_of(r"<shadedClassifierName>(.+?)<", FLINK / "pom.xml")
    assert {source for source, _ in jars} == {
        f"/build/target/{name}-1-{kind}.jar" for kind in kinds
    }
    flags = job_flags()
    assert flags["flink_job_server_jar"] in {target for _, target in jars}
    (user,) = [rest for word, rest in lines if word == "USER"]
    pool = container("flink-taskmanager", "worker-pool")["securityContext"]
    assert user == f"{pool['runAsUser']}:{pool['runAsGroup']}"


def test_docs_name_every_file_to_edit() -> None:
    page = (ROOT / "docs" / "flink.md").read_text()
    for path in sorted(FOLDER.rglob("*.yaml")):
        text = path.read_text()
        if re.search(r"YOUR_[A-Z]+|^images:", text, re.MULTILINE):
            assert f"`{path.relative_to(FOLDER)}`" in page, path
    for placeholder in set(re.findall(r"YOUR_[A-Z]+", "".join(map(yaml.safe_dump, ALL)))):
        assert placeholder in page


SCHEMA = json.loads((FOLDER.parents[2] / "tests/deploy/flinkdeployment.schema.json").read_text())
OPERATOR = documents(FOLDER / "operator")
(DEPLOYMENT,) = [each for each in OPERATOR if each["kind"] == "FlinkDeployment"]
SPEC = DEPLOYMENT["spec"]
MANAGERS = {"flink-jobmanager": SPEC["jobManager"], "flink-taskmanager": SPEC["taskManager"]}
# What the operator sets itself, and from ``resource``.
OF_OPERATOR = {
    "jobmanager.rpc.address",
    "rest.address",
    "jobmanager.memory.process.size",
    "taskmanager.memory.process.size",
}
OWN = {"high-availability.type", "high-availability.storageDir", "web.cancel.enable"}


def pod(workload: str) -> dict[str, Any]:
    """Return a pod template as the operator completes it."""
    template = MANAGERS[workload]["podTemplate"]
    (main,) = template["spec"]["containers"]
    assert main["name"] == "flink-main-container", "the operator adds another container otherwise"
    spec = {**template["spec"], "containers": [{**main, "image": SPEC["image"]}]}
    metadata = {**template["metadata"], "name": workload}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_flinkdeployment_matches_the_schema_of_the_operator() -> None:
    jsonschema.validate(DEPLOYMENT, SCHEMA)
    for wrong in ({"jobmanager": {}}, {"flinkVersion": "1.19"}, {"flinkConfiguration": {"a": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**DEPLOYMENT, "spec": {**SPEC, **wrong}}, SCHEMA)


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_and_access_match_the_published_schemas(version) -> None:
    others = [each for each in OPERATOR if each is not DEPLOYMENT]
    assert len(others) == 5
    for document in [*others, *map(pod, MANAGERS)]:
        kubernetes_validate.validate(document, version, strict=True)
        if document in others:
            assert document["metadata"]["namespace"] == DEPLOYMENT["metadata"]["namespace"]


def test_flink_is_configured_as_without_the_operator() -> None:
    config, theirs = flink_config(), SPEC["flinkConfiguration"]
    for key in set(config) - OF_OPERATOR:
        assert yaml.safe_load(theirs[key]) == config[key], key
    assert set(theirs) - set(config) == OWN
    assert not OF_OPERATOR & set(theirs)
    log = named("ConfigMap", "flink-config")["data"]["log4j-console.properties"]
    assert SPEC["logConfiguration"] == {"log4j-console.properties": log}
    for workload, name in PODS.items():
        size = MANAGERS[workload]["resource"]["memory"]
        limit = container(workload, name)["resources"]["limits"]["memory"]
        assert memory(config[f"{name}.memory.process.size"]) <= memory(size) <= memory(limit)


@pytest.mark.parametrize("workload", MANAGERS)
def test_pods_are_those_of_the_cluster_without_the_operator(workload) -> None:
    theirs, ours = pod(workload), named_workload(workload)["spec"]["template"]
    assert theirs["metadata"]["labels"] == ours["metadata"]["labels"], (
        "network policies select them"
    )
    assert theirs["metadata"]["annotations"] == ours["metadata"]["annotations"]
    assert theirs["spec"].get("initContainers") == ours["spec"].get("initContainers")
    assert theirs["spec"].get("topologySpreadConstraints") == ours["spec"].get(
        "topologySpreadConstraints"
    )
    (main,), same = theirs["spec"]["containers"], containers_of(named_workload(workload))[-1]
    contexts = [
        {**spec["securityContext"], **each["securityContext"]}
        for spec, each in ((theirs["spec"], main), (ours["spec"], same))
    ]
    assert contexts[0] == contexts[1]
    if workload == "flink-taskmanager":
        assert main["livenessProbe"] == same["livenessProbe"]
    assert MANAGERS[workload].get("replicas") == named_workload(workload)["spec"]["replicas"]
    assert SPEC["image"] == same["image"]
    assert VERSION in SPEC["image"]


def test_only_flink_gets_a_token_of_the_kubernetes_api() -> None:
    """Workers decode bytes of strangers; Flink stores in ConfigMaps who leads."""
    (role,) = [each for each in OPERATOR if each["kind"] == "Role"]
    assert [rule["resources"] for rule in role["rules"]] == [["configmaps"]]
    for workload in MANAGERS:
        spec = pod(workload)["spec"]
        assert spec["automountServiceAccountToken"] is False
        having = [
            each["name"]
            for each in [*spec.get("initContainers", []), *spec["containers"]]
            if "kubernetes-api" in [mount["name"] for mount in each["volumeMounts"]]
        ]
        assert having == ["flink-main-container"]
    (account,) = [each for each in OPERATOR if each["kind"] == "ServiceAccount"]
    assert account["metadata"]["name"] == SPEC["serviceAccount"]


def test_jobs_find_the_cluster_of_the_operator() -> None:
    """Under the name that they use without it; it lets them be cancelled, and keeps TaskManagers."""
    (service,) = [each for each in OPERATOR if each["kind"] == "Service"]
    assert service["metadata"]["name"] == named("Service", "flink-jobmanager")["metadata"]["name"]
    name, namespace = (DEPLOYMENT["metadata"][key] for key in ("name", "namespace"))
    assert service["spec"]["externalName"] == f"{name}-rest.{namespace}.svc.cluster.local"
    assert SPEC["flinkConfiguration"]["web.cancel.enable"] == "true"
    assert SPEC["mode"] == "standalone"
