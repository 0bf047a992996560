"""The cluster for the Flink Kubernetes Operator is that of the manifests next to it."""

import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_kubernetes import (
    FOLDER,
    PODS,
    VERSION,
    VERSIONS,
    container,
    containers_of,
    documents,
    flink_config,
    memory,
    named,
    named_workload,
)

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
