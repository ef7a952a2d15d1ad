//! Policies that the schemas of Kubernetes do not cover: Pod Security, service accounts without tokens, network
//! policies and disruption budgets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::overlay::{
    COMPONENT, Overlay, WorkloadContainer, document_title, find_overlay, list_at, render_all_overlays,
    string_at,
};

/// Fields that give a pod access to its node.
const MACHINE: [&str; 4] = ["hostNetwork", "hostPID", "hostIPC", "hostUsers"];
/// The used kinds of volumes that `restricted` allows.
const VOLUMES: [&str; 5] = ["configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"];

#[test]
fn pods_pass_restricted_pod_security() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let namespace = overlay.overlay_namespace();
        let name = string_at(namespace, "/metadata/name");
        assert_eq!(name, if overlay.name == "tenant" { "acme" } else { "millrace" });
        for document in overlay.documents.iter().filter(|document| *document != namespace) {
            assert_eq!(string_at(document, "/metadata/namespace"), name, "{}", document_title(document));
        }
        for mode in ["enforce", "audit", "warn"] {
            let label = format!("pod-security.kubernetes.io/{mode}");
            assert_eq!(namespace["metadata"]["labels"][&label], "restricted", "{mode}");
        }
        for container in overlay.all_containers() {
            let (name, pod, own) =
                (container.workload_name(), container.pod_template(), &container.its["securityContext"]);
            assert!(MACHINE.iter().all(|field| pod[*field].is_null()), "{name} has access to its node");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(pod["securityContext"]["runAsUser"], 65532, "{name}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            assert_eq!(own["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(own["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(own["capabilities"], json!({"drop": ["ALL"]}), "{name}");
            assert!(own["privileged"].is_null() && own["procMount"].is_null(), "{name}");
            for volume in list_at(pod, "/volumes") {
                let kinds = volume.as_object().expect("a volume").keys().filter(|key| *key != "name");
                let kinds: Vec<&String> = kinds.collect();
                assert!(kinds.iter().all(|kind| VOLUMES.contains(&kind.as_str())), "{name} has {volume}");
            }
            let ports = list_at(container.its, "/ports").iter();
            assert!(ports.clone().all(|port| port["hostPort"].is_null()), "{name}");
        }
    }
}

#[test]
fn containers_have_requests_limits_and_probes() {
    let Some(all) = render_all_overlays() else { return };
    for container in all.iter().flat_map(Overlay::all_containers) {
        for what in ["cpu", "memory", "ephemeral-storage"] {
            for bound in ["requests", "limits"] {
                let value = &container.its["resources"][bound][what];
                assert!(value.is_string(), "{} has no {bound} of {what}", container.workload_name());
            }
        }
    }
    for container in all.iter().flat_map(Overlay::long_running_containers) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert!(container.its[probe].is_object(), "{} has no {probe}", container.workload_name());
        }
    }
}

#[test]
fn workloads_have_own_service_accounts_without_tokens() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let mut accounts = BTreeSet::new();
        for container in overlay.all_containers() {
            let name = string_at(container.pod_template(), "/serviceAccountName");
            let of = document_title(container.workload);
            assert!(accounts.insert(name) || of == "CronJob/backup", "{name} is used twice");
            assert_eq!(
                container.pod_template()["automountServiceAccountToken"],
                false,
                "{}",
                container.workload_name()
            );
            let account = overlay.find_document("ServiceAccount", name).expect("it is there");
            assert_eq!(account["automountServiceAccountToken"], false, "{name}");
        }
        assert!(
            ["Role", "ClusterRole", "RoleBinding"]
                .iter()
                .all(|kind| overlay.documents_of_kind(kind).count() == 0)
        );
    }
}

/// `true` if a label selector matches these pods.
fn is_selector_match(selector: &Value, labels: &Value) -> bool {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let among = list_at(selector, "/matchExpressions").iter().all(|one| {
        assert_eq!(one["operator"], "In");
        list_at(one, "/values").contains(&labels[string_at(one, "/key")])
    });
    among && pairs.into_iter().all(|(name, value)| labels[name.as_str()] == *value)
}

#[test]
fn replicated_workloads_have_budgets_and_spread() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        for container in overlay.long_running_containers() {
            let labels = container.pod_labels();
            let budgets: Vec<&Value> = overlay
                .documents_of_kind("PodDisruptionBudget")
                .filter(|budget| is_selector_match(&budget["spec"]["selector"], labels))
                .collect();
            let spreads = list_at(container.pod_template(), "/topologySpreadConstraints");
            if container.process_role() == "metrics" {
                assert!(budgets.is_empty(), "a workload without state needs no budget");
                continue;
            }
            let names: Vec<String> = budgets.iter().map(|budget| document_title(budget)).collect();
            assert_eq!(
                names,
                [format!("PodDisruptionBudget/{}", container.workload_name())],
                "{}",
                overlay.name
            );
            let budget = &budgets[0]["spec"];
            assert_eq!(budget["maxUnavailable"], 1);
            // A server that is not ready may have the only copy of data. Millrace processes have no data, and while
            // NATS is down none of them is ready.
            let may_go = if container.process_role() == "nats" { Value::Null } else { json!("AlwaysAllow") };
            assert_eq!(budget["unhealthyPodEvictionPolicy"], may_go, "{}", container.workload_name());
            let zone = "topology.kubernetes.io/zone";
            assert!(
                spreads.iter().any(|spread| spread["topologyKey"] == zone),
                "{}",
                container.workload_name()
            );
            assert!(spreads.iter().all(|spread| is_selector_match(&spread["labelSelector"], labels)));
            // Otherwise a node without a zone label could run none of them.
            assert!(spreads.iter().all(|spread| spread["whenUnsatisfiable"] == "ScheduleAnyway"));
            assert!(is_selector_match(&container.workload["spec"]["selector"], labels));
        }
    }
}

/// The connections that the policies allow for pods: peers and ports.
fn allowed_connections<'a>(
    overlay: &'a Overlay,
    labels: &'a Value,
    direction: &'a str,
) -> Vec<(&'a Value, Vec<&'a Value>)> {
    let (rules, peers) =
        if direction == "Egress" { ("/spec/egress", "/to") } else { ("/spec/ingress", "/from") };
    let of_pod = overlay
        .documents_of_kind("NetworkPolicy")
        .filter(|policy| is_selector_match(&policy["spec"]["podSelector"], labels));
    let for_it = of_pod.filter(|policy| list_at(policy, "/spec/policyTypes").contains(&direction.into()));
    let all = for_it.flat_map(|policy| list_at(policy, rules));
    all.flat_map(|rule| {
        let ports: Vec<&Value> = list_at(rule, "/ports").iter().map(|port| &port["port"]).collect();
        assert!(
            !ports.is_empty() && !list_at(rule, peers).is_empty(),
            "a rule without peers or ports: {rule}"
        );
        list_at(rule, peers).iter().map(move |peer| (peer, ports.clone()))
    })
    .collect()
}

#[test]
fn network_policies_allow_listed_connections_only() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let nobody = overlay.find_document("NetworkPolicy", "nobody").expect("there is a default");
        assert_eq!(nobody["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
        for container in overlay.all_containers() {
            let labels = container.pod_labels();
            let ingress = allowed_connections(overlay, labels, "Ingress");
            let egress = allowed_connections(overlay, labels, "Egress");
            let role = labels[COMPONENT].as_str().unwrap_or("nats");
            let outside = egress.iter().filter(|(peer, ports)| {
                !peer["ipBlock"].is_null() && !ports.iter().all(|port| **port == json!(53))
            });
            let may_leave = matches!(role, "worker" | "critic" | "gateway");
            assert_eq!(outside.clone().count(), if may_leave { 2 } else { 0 }, "{role}");
            for (peer, ports) in outside {
                assert_eq!(ports, &[&json!(443)]);
                assert!(list_at(peer, "/ipBlock/except").len() >= 4, "it includes private addresses: {peer}");
            }
            let nats = egress.iter().filter(|(_, ports)| ports.contains(&&json!(4222))).count();
            assert_eq!(nats, usize::from(role != "nats"), "{role} reaches NATS");
            let named = |port: &str| {
                let all = ingress.iter().filter(|(_, ports)| ports.contains(&&json!(port)));
                all.map(|(peer, _)| *peer).collect::<Vec<_>>()
            };
            if role == "nats" {
                let label = "kubernetes.io/metadata.name";
                let of = |name: &str| json!({"namespaceSelector": {"matchLabels": {label: name}}});
                assert_eq!(named("monitor"), [&of("keda"), &of("monitoring")]);
                assert_eq!((named("client").len(), named("routes").len()), (1, 1));
            } else {
                let has_api = role == "gateway";
                assert_eq!(ingress.len(), if has_api { 2 } else { 1 }, "{role}: {ingress:?}");
                assert_eq!((named("http").len(), named("api").len()), (1, usize::from(has_api)));
            }
            if role == "backup" {
                assert!(container.its["ports"].is_null(), "it has no port and no allowed peer");
                continue;
            }
            for port in ingress.iter().flat_map(|(_, ports)| ports) {
                assert!(
                    container.port_number(port.as_str().expect("ports by name")).is_some(),
                    "there is no {port}"
                );
            }
        }
    }
}

/// `true` if a policy's peer matches these pods in this namespace.
fn is_peer_match(peer: &Value, namespace: &Value, pods: &Value) -> bool {
    let name = &namespace["metadata"]["name"];
    let mut labels = namespace["metadata"]["labels"].clone();
    labels["kubernetes.io/metadata.name"] = name.clone();
    !peer["namespaceSelector"].is_null()
        && is_selector_match(&peer["namespaceSelector"], &labels)
        && is_selector_match(&peer["podSelector"], pods)
}

#[test]
fn tenant_can_reach_nats_in_another_namespace() {
    let (Some(tenant), Some(cluster)) = (find_overlay("tenant"), find_overlay("production")) else { return };
    let pods = |container: &WorkloadContainer<'_>| container.pod_labels().clone();
    let nats = cluster
        .long_running_containers()
        .into_iter()
        .find(|one| one.process_role() == "nats")
        .expect("there is one");
    let nats = pods(&nats);
    let ingress = allowed_connections(cluster, &nats, "Ingress");
    for container in tenant.millrace_containers() {
        let own = pods(&container);
        let egress = allowed_connections(tenant, &own, "Egress");
        let out = egress.iter().any(|(peer, ports)| {
            ports.contains(&&json!(4222)) && is_peer_match(peer, cluster.overlay_namespace(), &nats)
        });
        let lets_in = |namespace: &Value| {
            ingress.iter().any(|(peer, ports)| {
                ports.contains(&&json!("client")) && is_peer_match(peer, namespace, &own)
            })
        };
        assert!(out, "{} cannot connect out", container.workload_name());
        assert!(lets_in(tenant.overlay_namespace()), "{} is not allowed in", container.workload_name());
        assert!(lets_in(cluster.overlay_namespace()), "processes in NATS's own namespace are allowed in");
        assert!(!lets_in(&json!({"metadata": {"name": "other", "labels": {}}})), "no other namespace is");
        let url = &container.resolved_environment()["MILLRACE_NATS_URL"];
        assert_eq!(url, "nats://nats.millrace.svc.cluster.local:4222");
    }
}

#[test]
fn monitoring_of_all_tenants_is_deployed_once() {
    let (Some(tenant), Some(cluster)) = (find_overlay("tenant"), find_overlay("production")) else { return };
    let dashboards = |overlay: &Overlay| {
        let all = overlay.documents_of_kind("ConfigMap");
        all.filter(|one| !one["metadata"]["labels"]["grafana_dashboard"].is_null()).count()
    };
    for (overlay, expected) in [(cluster, (1, 1, 1)), (tenant, (0, 0, 1))] {
        let count = |kind: &str| overlay.documents.iter().filter(|one| one["kind"] == kind).count();
        let counts = (count("PrometheusRule"), dashboards(overlay), count("PodMonitor"));
        assert_eq!(counts, expected, "{}", overlay.name);
    }
}
