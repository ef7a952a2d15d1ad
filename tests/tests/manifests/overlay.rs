//! The manifests as `kubectl apply -k` would send them: every overlay, rendered, and what can be asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The overlays, which are the folders in `deploy/kubernetes/overlays`.
pub const NAMES: [&str; 5] = ["local", "production", "production-existing-nats", "production-hpa", "tenant"];
/// The label that says what a process is.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// All that is applied with one overlay.
pub struct Overlay {
    /// Its folder's name.
    pub name: String,
    /// As it is applied.
    pub text: String,
    /// The documents in it.
    pub documents: Vec<Value>,
}

/// A container of a workload.
#[derive(Clone, Copy)]
pub struct Container<'a> {
    overlay: &'a Overlay,
    /// The Deployment, StatefulSet or CronJob.
    pub workload: &'a Value,
    /// The container.
    pub its: &'a Value,
}

/// The folder with the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").to_owned()
}

/// The folder with the manifests.
pub fn manifests() -> PathBuf {
    root().join("deploy/kubernetes")
}

/// All overlays; none, with a word about it, where nothing on this machine renders them.
pub fn overlays() -> Option<&'static [Overlay]> {
    static OVERLAYS: OnceLock<Option<Vec<Overlay>>> = OnceLock::new();
    let all = OVERLAYS.get_or_init(|| {
        let render = |name: &&str| Overlay::render(&manifests().join("overlays").join(name));
        NAMES.iter().map(render).collect()
    });
    if all.is_none() {
        eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    }
    all.as_deref()
}

/// An overlay of that name.
pub fn overlay(name: &str) -> Option<&'static Overlay> {
    overlays().map(|all| all.iter().find(|one| one.name == name).expect("it is one of them"))
}

/// What `kubectl kustomize` or `kustomize build` makes of a folder; `None` if neither is there.
///
/// # Panics
/// It makes nothing of it.
pub fn rendered(folder: &Path) -> Option<String> {
    let run = |program: &str, verb: &str| Command::new(program).arg(verb).arg(folder).output().ok();
    let done = run("kubectl", "kustomize").or_else(|| run("kustomize", "build"))?;
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{} can't be rendered: {why}", folder.display());
    Some(String::from_utf8(done.stdout).expect("manifests are text"))
}

/// The documents of a text.
pub fn documents(text: &str) -> Vec<Value> {
    let read =
        |document| serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}:\n{document}"));
    text.split("\n---\n").map(read).collect()
}

/// A text of a document, by its path.
pub fn at<'a>(value: &'a Value, path: &str) -> &'a str {
    let found = value.pointer(path).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {path} in {value}"))
}

/// A list in a document, by its path; empty where there is none.
pub fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Its kind and name, as kubectl writes them.
pub fn title(document: &Value) -> String {
    format!("{}/{}", at(document, "/kind"), at(document, "/metadata/name"))
}

/// What a workload says of its pods.
fn pod_of(workload: &Value) -> &Value {
    workload.pointer("/spec/jobTemplate/spec/template").unwrap_or(&workload["spec"]["template"])
}

impl Overlay {
    /// Renders a folder.
    pub fn render(folder: &Path) -> Option<Self> {
        let text = rendered(folder)?;
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        Some(Self { name, documents: documents(&text), text })
    }

    /// The documents of a kind.
    pub fn kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.documents.iter().filter(move |document| document["kind"] == kind)
    }

    /// A document by kind and name.
    pub fn named<'a>(&'a self, kind: &'a str, name: &'a str) -> Option<&'a Value> {
        self.kind(kind).find(|document| document["metadata"]["name"] == name)
    }

    /// The namespace that it makes, in which all of it is.
    pub fn namespace(&self) -> &Value {
        let mut all = self.kind("Namespace");
        let namespace = all.next().expect("there is a namespace");
        assert!(all.next().is_none(), "{} has one namespace", self.name);
        namespace
    }

    /// Every container that runs for as long as its workload is there. None begins before others.
    pub fn containers(&self) -> Vec<Container<'_>> {
        let workloads = self.kind("Deployment").chain(self.kind("StatefulSet"));
        workloads
            .flat_map(|workload| {
                assert!(
                    workload.pointer("/spec/template/spec/initContainers").is_none(),
                    "{}",
                    title(workload)
                );
                let all = list(workload, "/spec/template/spec/containers");
                all.iter().map(move |its| Container { overlay: self, workload, its })
            })
            .collect()
    }

    /// Every container that runs now and then and ends, in the order in which they do.
    pub fn jobs(&self) -> Vec<Container<'_>> {
        let in_order = |workload| {
            let kinds = ["initContainers", "containers"].into_iter();
            let all = kinds.flat_map(move |kind| list(pod_of(workload), &format!("/spec/{kind}")));
            all.map(move |its| Container { overlay: self, workload, its })
        };
        self.kind("CronJob").flat_map(in_order).collect()
    }

    /// Every container there is.
    pub fn all(&self) -> Vec<Container<'_>> {
        self.containers().into_iter().chain(self.jobs()).collect()
    }

    /// The containers that run our programs for as long as they are there.
    pub fn processes(&self) -> Vec<Container<'_>> {
        self.containers().into_iter().filter(Container::is_ours).collect()
    }
}

impl<'a> Container<'a> {
    /// What the process is: supervisor, worker, critic, metrics, backup.
    pub fn role(&self) -> &'a str {
        self.labels()[COMPONENT].as_str().unwrap_or("nats")
    }

    /// The labels of its workload's pods.
    pub fn labels(&self) -> &'a Value {
        &pod_of(self.workload)["metadata"]["labels"]
    }

    /// Whether the program in it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.its["name"] == "millrace"
    }

    /// Its workload's name.
    pub fn name(&self) -> &'a str {
        at(self.workload, "/metadata/name")
    }

    /// Its workload's pods.
    pub fn pod(&self) -> &'a Value {
        &pod_of(self.workload)["spec"]
    }

    /// The command line.
    pub fn line(&self) -> Vec<&'a str> {
        let words = list(self.its, "/command").iter().chain(list(self.its, "/args"));
        words.map(|word| word.as_str().expect("arguments are text")).collect()
    }

    /// What stands behind `--name=` in the command line.
    pub fn argument(&self, name: &str) -> Option<&'a str> {
        self.line().into_iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The environment, as far as the manifests hold it, ConfigMaps resolved.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let from = list(self.its, "/envFrom").iter().filter_map(|from| from.pointer("/configMapRef/name"));
        let maps = from.map(|name| {
            let name = name.as_str().expect("a name is text");
            self.overlay.named("ConfigMap", name).unwrap_or_else(|| panic!("there is no ConfigMap {name}"))
        });
        let data = maps.flat_map(|map| map["data"].as_object().expect("a ConfigMap has data"));
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let mut all: BTreeMap<String, String> =
            data.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
        for variable in list(self.its, "/env") {
            all.insert(at(variable, "/name").into(), text(&variable["value"]).unwrap_or_default());
        }
        all
    }

    /// The number of a port of its.
    pub fn port(&self, name: &str) -> Option<u64> {
        list(self.its, "/ports").iter().find(|port| port["name"] == name)?["containerPort"].as_u64()
    }
}

/// The files in a folder and below it, by their paths.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// The titles of all documents that two overlays do not have alike.
pub fn differences(one: &Overlay, other: &Overlay) -> BTreeSet<String> {
    let unlike = |these: &Overlay, those: &Overlay| -> Vec<String> {
        these.documents.iter().filter(|document| !those.documents.contains(document)).map(title).collect()
    };
    unlike(one, other).into_iter().chain(unlike(other, one)).collect()
}
