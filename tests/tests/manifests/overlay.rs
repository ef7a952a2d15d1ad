//! The rendered manifests of every overlay, as `kubectl apply -k` would send them, and queries on them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The overlays: the folders in `deploy/kubernetes/overlays`.
pub const NAMES: [&str; 5] = ["local", "production", "production-existing-nats", "production-hpa", "tenant"];
/// The label with the role of a process.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// The documents of one overlay.
pub struct Overlay {
    /// The name of its folder.
    pub name: String,
    /// The rendered text.
    pub text: String,
    /// The documents in the text.
    pub documents: Vec<Value>,
}

/// A container of a workload.
#[derive(Clone, Copy)]
pub struct WorkloadContainer<'a> {
    overlay: &'a Overlay,
    /// The Deployment, StatefulSet or CronJob.
    pub workload: &'a Value,
    /// The container.
    pub its: &'a Value,
}

/// The folder with the workspace.
pub fn workspace_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").to_owned()
}

/// The folder with the manifests.
pub fn manifests_folder() -> PathBuf {
    workspace_folder().join("deploy/kubernetes")
}

/// All overlays; `None`, with a message, if no renderer is installed.
pub fn render_all_overlays() -> Option<&'static [Overlay]> {
    static OVERLAYS: OnceLock<Option<Vec<Overlay>>> = OnceLock::new();
    let all = OVERLAYS.get_or_init(|| {
        let render = |name: &&str| Overlay::render(&manifests_folder().join("overlays").join(name));
        NAMES.iter().map(render).collect()
    });
    if all.is_none() {
        eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    }
    all.as_deref()
}

/// The overlay of that name.
pub fn find_overlay(name: &str) -> Option<&'static Overlay> {
    render_all_overlays().map(|all| all.iter().find(|one| one.name == name).expect("it is one of them"))
}

/// The output of `kubectl kustomize` or `kustomize build` for a folder; `None` if neither is installed.
///
/// # Panics
/// The folder can't be rendered.
pub fn render_to_text(folder: &Path) -> Option<String> {
    let run = |program: &str, verb: &str| Command::new(program).arg(verb).arg(folder).output().ok();
    let output = run("kubectl", "kustomize").or_else(|| run("kustomize", "build"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} can't be rendered: {why}", folder.display());
    Some(String::from_utf8(output.stdout).expect("manifests are text"))
}

/// The documents of a text.
pub fn parse_documents(text: &str) -> Vec<Value> {
    let read =
        |document| serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}:\n{document}"));
    text.split("\n---\n").map(read).collect()
}

/// The string at a path in a document.
pub fn string_at<'a>(value: &'a Value, path: &str) -> &'a str {
    let string = value.pointer(path).and_then(Value::as_str);
    string.unwrap_or_else(|| panic!("no text at {path} in {value}"))
}

/// The list at a path in a document; empty if there is none.
pub fn list_at<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The document's kind and name in kubectl's format.
pub fn document_title(document: &Value) -> String {
    format!("{}/{}", string_at(document, "/kind"), string_at(document, "/metadata/name"))
}

/// The pod template of a workload.
fn pod_template_of(workload: &Value) -> &Value {
    workload.pointer("/spec/jobTemplate/spec/template").unwrap_or(&workload["spec"]["template"])
}

impl Overlay {
    /// Renders a folder.
    pub fn render(folder: &Path) -> Option<Self> {
        let text = render_to_text(folder)?;
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        Some(Self { name, documents: parse_documents(&text), text })
    }

    /// The documents of a kind.
    pub fn documents_of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.documents.iter().filter(move |document| document["kind"] == kind)
    }

    /// A document by kind and name.
    pub fn find_document<'a>(&'a self, kind: &'a str, name: &'a str) -> Option<&'a Value> {
        self.documents_of_kind(kind).find(|document| document["metadata"]["name"] == name)
    }

    /// The namespace that it creates for all its documents.
    pub fn overlay_namespace(&self) -> &Value {
        let mut all = self.documents_of_kind("Namespace");
        let namespace = all.next().expect("there is a namespace");
        assert!(all.next().is_none(), "{} has one namespace", self.name);
        namespace
    }

    /// The long-running containers.
    pub fn long_running_containers(&self) -> Vec<WorkloadContainer<'_>> {
        let workloads = self.documents_of_kind("Deployment").chain(self.documents_of_kind("StatefulSet"));
        workloads
            .flat_map(|workload| {
                assert!(
                    workload.pointer("/spec/template/spec/initContainers").is_none(),
                    "{}",
                    document_title(workload)
                );
                let all = list_at(workload, "/spec/template/spec/containers");
                all.iter().map(move |its| WorkloadContainer { overlay: self, workload, its })
            })
            .collect()
    }

    /// The containers of jobs, in the order in which they run.
    pub fn job_containers(&self) -> Vec<WorkloadContainer<'_>> {
        let in_order = |workload| {
            let kinds = ["initContainers", "containers"].into_iter();
            let all =
                kinds.flat_map(move |kind| list_at(pod_template_of(workload), &format!("/spec/{kind}")));
            all.map(move |its| WorkloadContainer { overlay: self, workload, its })
        };
        self.documents_of_kind("CronJob").flat_map(in_order).collect()
    }

    /// All containers.
    pub fn all_containers(&self) -> Vec<WorkloadContainer<'_>> {
        self.long_running_containers().into_iter().chain(self.job_containers()).collect()
    }

    /// The long-running containers of Millrace programs.
    pub fn millrace_containers(&self) -> Vec<WorkloadContainer<'_>> {
        self.long_running_containers().into_iter().filter(WorkloadContainer::is_millrace_program).collect()
    }
}

impl<'a> WorkloadContainer<'a> {
    /// The role of the process: supervisor, worker, critic, metrics, backup.
    pub fn process_role(&self) -> &'a str {
        self.pod_labels()[COMPONENT].as_str().unwrap_or("nats")
    }

    /// The labels of its workload's pods.
    pub fn pod_labels(&self) -> &'a Value {
        &pod_template_of(self.workload)["metadata"]["labels"]
    }

    /// `true` if it runs a Millrace program.
    pub fn is_millrace_program(&self) -> bool {
        self.its["name"] == "millrace"
    }

    /// The name of its workload.
    pub fn workload_name(&self) -> &'a str {
        string_at(self.workload, "/metadata/name")
    }

    /// The pod template of its workload.
    pub fn pod_template(&self) -> &'a Value {
        &pod_template_of(self.workload)["spec"]
    }

    /// The command line.
    pub fn command_line(&self) -> Vec<&'a str> {
        let words = list_at(self.its, "/command").iter().chain(list_at(self.its, "/args"));
        words.map(|word| word.as_str().expect("arguments are text")).collect()
    }

    /// The value of `--name=` in the command line.
    pub fn argument_value(&self, name: &str) -> Option<&'a str> {
        self.command_line().into_iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The environment in the manifests, with ConfigMaps resolved.
    pub fn resolved_environment(&self) -> BTreeMap<String, String> {
        let from = list_at(self.its, "/envFrom").iter().filter_map(|from| from.pointer("/configMapRef/name"));
        let maps = from.map(|name| {
            let name = name.as_str().expect("a name is text");
            self.overlay
                .find_document("ConfigMap", name)
                .unwrap_or_else(|| panic!("there is no ConfigMap {name}"))
        });
        let data = maps.flat_map(|map| map["data"].as_object().expect("a ConfigMap has data"));
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let mut all: BTreeMap<String, String> =
            data.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
        for variable in list_at(self.its, "/env") {
            all.insert(string_at(variable, "/name").into(), text(&variable["value"]).unwrap_or_default());
        }
        all
    }

    /// The number of a named port.
    pub fn port_number(&self, name: &str) -> Option<u64> {
        list_at(self.its, "/ports").iter().find(|port| port["name"] == name)?["containerPort"].as_u64()
    }
}

/// Copies a folder with its subfolders.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// The titles of the documents that differ between two overlays.
pub fn differing_documents(one: &Overlay, other: &Overlay) -> BTreeSet<String> {
    let unlike = |these: &Overlay, those: &Overlay| -> Vec<String> {
        these
            .documents
            .iter()
            .filter(|document| !those.documents.contains(document))
            .map(document_title)
            .collect()
    };
    unlike(one, other).into_iter().chain(unlike(other, one)).collect()
}
