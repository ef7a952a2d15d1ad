//! What keeps a process in its place, of which Kubernetes' schemas say nothing: Pod Security, accounts without tokens,
//! what may reach what, what may be taken away at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::overlay::{COMPONENT, Container, Overlay, at, list, overlay, overlays, title};

/// Fields by which a pod would get at the machine it runs on.
const MACHINE: [&str; 4] = ["hostNetwork", "hostPID", "hostIPC", "hostUsers"];
/// The kinds of volumes that `restricted` lets in, as far as they are used.
const VOLUMES: [&str; 5] = ["configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"];

#[test]
fn every_pod_passes_restricted_pod_security_and_its_namespace_enforces_that() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let namespace = overlay.namespace();
        let name = at(namespace, "/metadata/name");
        assert_eq!(name, if overlay.name == "tenant" { "acme" } else { "millrace" });
        for document in overlay.documents.iter().filter(|document| *document != namespace) {
            assert_eq!(at(document, "/metadata/namespace"), name, "{}", title(document));
        }
        for mode in ["enforce", "audit", "warn"] {
            let label = format!("pod-security.kubernetes.io/{mode}");
            assert_eq!(namespace["metadata"]["labels"][&label], "restricted", "{mode}");
        }
        for container in overlay.all() {
            let (name, pod, own) = (container.name(), container.pod(), &container.its["securityContext"]);
            assert!(MACHINE.iter().all(|field| pod[*field].is_null()), "{name} sees its machine");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(pod["securityContext"]["runAsUser"], 65532, "{name}");
            assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            assert_eq!(own["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(own["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(own["capabilities"], json!({"drop": ["ALL"]}), "{name}");
            assert!(own["privileged"].is_null() && own["procMount"].is_null(), "{name}");
            for volume in list(pod, "/volumes") {
                let kinds = volume.as_object().expect("a volume").keys().filter(|key| *key != "name");
                let kinds: Vec<&String> = kinds.collect();
                assert!(kinds.iter().all(|kind| VOLUMES.contains(&kind.as_str())), "{name} has {volume}");
            }
            let ports = list(container.its, "/ports").iter();
            assert!(ports.clone().all(|port| port["hostPort"].is_null()), "{name}");
        }
    }
}

#[test]
fn every_pod_asks_for_what_it_needs_is_held_to_it_and_says_how_it_is() {
    let Some(all) = overlays() else { return };
    for container in all.iter().flat_map(Overlay::all) {
        for what in ["cpu", "memory", "ephemeral-storage"] {
            for bound in ["requests", "limits"] {
                let value = &container.its["resources"][bound][what];
                assert!(value.is_string(), "{} has no {bound} of {what}", container.name());
            }
        }
    }
    for container in all.iter().flat_map(Overlay::containers) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert!(container.its[probe].is_object(), "{} has no {probe}", container.name());
        }
    }
}

#[test]
fn every_workload_has_an_account_of_its_own_without_a_token() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let mut accounts = BTreeSet::new();
        for container in overlay.all() {
            let name = at(container.pod(), "/serviceAccountName");
            let of = title(container.workload);
            assert!(accounts.insert(name) || of == "CronJob/backup", "{name} is used twice");
            assert_eq!(container.pod()["automountServiceAccountToken"], false, "{}", container.name());
            let account = overlay.named("ServiceAccount", name).expect("it is there");
            assert_eq!(account["automountServiceAccountToken"], false, "{name}");
        }
        assert!(["Role", "ClusterRole", "RoleBinding"].iter().all(|kind| overlay.kind(kind).count() == 0));
    }
}

/// Whether a selector of labels is one of these pods.
fn selects(selector: &Value, labels: &Value) -> bool {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let among = list(selector, "/matchExpressions").iter().all(|one| {
        assert_eq!(one["operator"], "In");
        list(one, "/values").contains(&labels[at(one, "/key")])
    });
    among && pairs.into_iter().all(|(name, value)| labels[name.as_str()] == *value)
}

#[test]
fn a_budget_and_a_spread_hold_for_each_workload_of_which_there_may_be_several_and_for_no_other() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        for container in overlay.containers() {
            let labels = container.labels();
            let budgets: Vec<&Value> = overlay
                .kind("PodDisruptionBudget")
                .filter(|budget| selects(&budget["spec"]["selector"], labels))
                .collect();
            let spreads = list(container.pod(), "/topologySpreadConstraints");
            if container.role() == "metrics" {
                assert!(budgets.is_empty(), "one that holds nothing may go");
                continue;
            }
            let names: Vec<String> = budgets.iter().map(|budget| title(budget)).collect();
            assert_eq!(names, [format!("PodDisruptionBudget/{}", container.name())], "{}", overlay.name);
            let budget = &budgets[0]["spec"];
            assert_eq!(budget["maxUnavailable"], 1);
            // Servers that are not ready may hold the only copy of something; ours hold nothing, and while NATS is away
            // none of them is ready.
            let may_go = if container.role() == "nats" { Value::Null } else { json!("AlwaysAllow") };
            assert_eq!(budget["unhealthyPodEvictionPolicy"], may_go, "{}", container.name());
            let zone = "topology.kubernetes.io/zone";
            assert!(spreads.iter().any(|spread| spread["topologyKey"] == zone), "{}", container.name());
            assert!(spreads.iter().all(|spread| selects(&spread["labelSelector"], labels)));
            // A node without the label of a zone would otherwise take none of them.
            assert!(spreads.iter().all(|spread| spread["whenUnsatisfiable"] == "ScheduleAnyway"));
            assert!(selects(&container.workload["spec"]["selector"], labels));
        }
    }
}

/// A way that the policies leave open: for whom, to or from where, at which ports.
fn ways<'a>(overlay: &'a Overlay, labels: &'a Value, direction: &'a str) -> Vec<(&'a Value, Vec<&'a Value>)> {
    let (rules, peers) =
        if direction == "Egress" { ("/spec/egress", "/to") } else { ("/spec/ingress", "/from") };
    let of_pod =
        overlay.kind("NetworkPolicy").filter(|policy| selects(&policy["spec"]["podSelector"], labels));
    let for_it = of_pod.filter(|policy| list(policy, "/spec/policyTypes").contains(&direction.into()));
    let all = for_it.flat_map(|policy| list(policy, rules));
    all.flat_map(|rule| {
        let ports: Vec<&Value> = list(rule, "/ports").iter().map(|port| &port["port"]).collect();
        assert!(!ports.is_empty() && !list(rule, peers).is_empty(), "a rule for everybody: {rule}");
        list(rule, peers).iter().map(move |peer| (peer, ports.clone()))
    })
    .collect()
}

#[test]
fn nothing_comes_in_or_goes_out_but_what_is_listed() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let nobody = overlay.named("NetworkPolicy", "nobody").expect("there is a default");
        assert_eq!(nobody["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
        for container in overlay.all() {
            let labels = container.labels();
            let comes = ways(overlay, labels, "Ingress");
            let goes = ways(overlay, labels, "Egress");
            let role = labels[COMPONENT].as_str().unwrap_or("nats");
            let outside = goes.iter().filter(|(peer, ports)| {
                !peer["ipBlock"].is_null() && !ports.iter().all(|port| **port == json!(53))
            });
            let may_leave = matches!(role, "worker" | "critic");
            assert_eq!(outside.clone().count(), if may_leave { 2 } else { 0 }, "{role}");
            for (peer, ports) in outside {
                assert_eq!(ports, &[&json!(443)]);
                assert!(list(peer, "/ipBlock/except").len() >= 4, "private addresses are within: {peer}");
            }
            let nats = goes.iter().filter(|(_, ports)| ports.contains(&&json!(4222))).count();
            assert_eq!(nats, usize::from(role != "nats"), "{role} reaches NATS");
            let named = |port: &str| {
                let all = comes.iter().filter(|(_, ports)| ports.contains(&&json!(port)));
                all.map(|(peer, _)| *peer).collect::<Vec<_>>()
            };
            if role == "nats" {
                let label = "kubernetes.io/metadata.name";
                let of = |name: &str| json!({"namespaceSelector": {"matchLabels": {label: name}}});
                assert_eq!(named("monitor"), [&of("keda"), &of("monitoring")]);
                assert_eq!((named("client").len(), named("routes").len()), (1, 1));
            } else {
                assert_eq!(comes.len(), 1, "only metrics are read: {comes:?}");
                assert_eq!(named("http").len(), 1);
            }
            if role == "backup" {
                assert!(container.its["ports"].is_null(), "nobody reaches what listens nowhere");
                continue;
            }
            for port in comes.iter().flat_map(|(_, ports)| ports) {
                assert!(
                    container.port(port.as_str().expect("ports by name")).is_some(),
                    "there is no {port}"
                );
            }
        }
    }
}

/// Whether a peer of a policy is these pods of this namespace.
fn is_peer(peer: &Value, namespace: &Value, pods: &Value) -> bool {
    let name = &namespace["metadata"]["name"];
    let mut labels = namespace["metadata"]["labels"].clone();
    labels["kubernetes.io/metadata.name"] = name.clone();
    !peer["namespaceSelector"].is_null()
        && selects(&peer["namespaceSelector"], &labels)
        && selects(&peer["podSelector"], pods)
}

#[test]
fn a_tenant_reaches_the_nats_of_another_namespace_and_is_let_in_there() {
    let (Some(tenant), Some(cluster)) = (overlay("tenant"), overlay("production")) else { return };
    let pods = |container: &Container<'_>| container.labels().clone();
    let nats = cluster.containers().into_iter().find(|one| one.role() == "nats").expect("there is one");
    let nats = pods(&nats);
    let comes = ways(cluster, &nats, "Ingress");
    for container in tenant.processes() {
        let own = pods(&container);
        let goes = ways(tenant, &own, "Egress");
        let out = goes
            .iter()
            .any(|(peer, ports)| ports.contains(&&json!(4222)) && is_peer(peer, cluster.namespace(), &nats));
        let lets_in = |namespace: &Value| {
            comes
                .iter()
                .any(|(peer, ports)| ports.contains(&&json!("client")) && is_peer(peer, namespace, &own))
        };
        assert!(out, "{} does not get out", container.name());
        assert!(lets_in(tenant.namespace()), "{} is not let in", container.name());
        assert!(lets_in(cluster.namespace()), "those beside NATS are let in");
        assert!(!lets_in(&json!({"metadata": {"name": "other", "labels": {}}})), "nobody else is");
        let url = &container.environment()["MILLRACE_NATS_URL"];
        assert_eq!(url, "nats://nats.millrace.svc.cluster.local:4222");
    }
}

#[test]
fn what_watches_all_tenants_is_there_once() {
    let (Some(tenant), Some(cluster)) = (overlay("tenant"), overlay("production")) else { return };
    let dashboards = |overlay: &Overlay| {
        let all = overlay.kind("ConfigMap");
        all.filter(|one| !one["metadata"]["labels"]["grafana_dashboard"].is_null()).count()
    };
    for (overlay, expected) in [(cluster, (1, 1, 1)), (tenant, (0, 0, 1))] {
        let count = |kind: &str| overlay.documents.iter().filter(|one| one["kind"] == kind).count();
        let found = (count("PrometheusRule"), dashboards(overlay), count("PodMonitor"));
        assert_eq!(found, expected, "{}", overlay.name);
    }
}
