//! Validates the manifests against the schemas of Kubernetes, KEDA and the Prometheus operator, which come in packages,
//! and with checkov.

use std::io::Write;
use std::process::{Command, Stdio};

use millrace_tests::node::install_npm_packages;
use millrace_tests::python::install_python_packages;

use super::overlay::render_all_overlays;

/// The oldest supported Kubernetes, and the newest in the package.
const KUBERNETES: [&str; 2] = ["1.29", "1.37"];
const VALIDATE: &str = "kubernetes-validate==1.37.0";
const CHECKOV: &str = "checkov==3.3.30";
const MODELS: [&str; 2] = ["@kubernetes-models/keda@2.0.0", "@kubernetes-models/prometheus-operator@6.0.0"];

/// Prints a line for each mistake. Kinds that are not part of Kubernetes are left to the other script.
const CORE: &str = r#"
import sys, yaml, kubernetes_validate as k
foreign = {"ScaledObject", "PodMonitor", "PrometheusRule"}
for document in yaml.safe_load_all(sys.stdin):
    name = f"{document['kind']}/{document['metadata']['name']}"
    for version in sys.argv[1:]:
        try:
            if document["kind"] not in foreign:
                k.validate(document, version, strict=True)
        except k.ValidationError as error:
            print(f"{name} ({version}): {'.'.join(map(str, error.path))}: {error.message}")
        except k.SchemaNotFoundError:
            print(f"{name} ({version}): there is no such kind")
"#;

/// Prints a line for each mistake in the other kinds. The models ignore unknown fields, so the fields are read from the
/// type declarations next to them.
const FOREIGN: &str = r#"
import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as monitoring from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const modules = resolve("node_modules");
const homes = {
  ScaledObject: [keda, `${modules}/@kubernetes-models/keda/keda.sh/v1alpha1`],
  PodMonitor: [monitoring, `${modules}/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1`],
  PrometheusRule: [monitoring, `${modules}/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1`],
};

function unknown(value, file, path) {
  const text = readFileSync(file, "utf8");
  const body = text.match(/export interface [^{]*\{\n([\s\S]*?)\n\}/)?.[1];
  if (!body) return [];
  const imports = {};
  for (const [, names, from] of text.matchAll(/import \{([^}]*)\} from "([^"]*)"/g))
    for (const name of names.split(",")) imports[name.trim()] = from;
  const found = [];
  for (const [key, inner] of Object.entries(value)) {
    if (!path && ["apiVersion", "kind", "metadata"].includes(key)) continue;
    const type = body.match(new RegExp(`^    "${key}"\\??: (.*)$`, "m"))?.[1];
    if (!type) { found.push(`${path}/${key}: there is no such field`); continue; }
    const name = Object.keys(imports).find((name) => new RegExp(`\\b${name}\\b`).test(type));
    if (!name) continue;
    const from = imports[name].replace(/\.js$/, "");
    const next = (from.startsWith(".") ? resolve(dirname(file), from) : `${modules}/${from}`) + ".d.ts";
    for (const one of Array.isArray(inner) ? inner : [inner])
      if (one && typeof one === "object") found.push(...unknown(one, next, `${path}/${key}`));
  }
  return found;
}

for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  const name = `${document.kind}/${document.metadata.name}`;
  const [models, folder] = homes[document.kind];
  const Model = models[document.kind];
  if (document.apiVersion !== Model.apiVersion) console.log(`${name}: it is ${Model.apiVersion}`);
  try { new Model(document).validate(); } catch (error) { console.log(`${name}: ${error.message}`); }
  for (const mistake of unknown(document, `${folder}/${document.kind}.d.ts`, "")) console.log(`${name}: ${mistake}`);
}
"#;

fn run_with_input(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was installed");
    child.stdin.take().expect("stdin is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("a child can be waited for");
    assert!(output.status.success(), "{command:?} exited with {}", output.status);
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn overlays_match_the_kubernetes_schemas() {
    let Some(all) = render_all_overlays() else { return };
    let python = match install_python_packages(&[VALIDATE]) {
        Ok(python) => python,
        Err(why) => return eprintln!("passed over: {why}"),
    };
    for overlay in all {
        let mistakes =
            run_with_input(Command::new(&python).args(["-c", CORE]).args(KUBERNETES), &overlay.text);
        assert_eq!(mistakes, "", "{}", overlay.name);
    }
}

#[test]
fn overlays_match_the_keda_and_prometheus_operator_schemas() {
    let Some(all) = render_all_overlays() else { return };
    let folder = match install_npm_packages(&MODELS) {
        Ok(folder) => folder,
        Err(why) => return eprintln!("passed over: {why}"),
    };
    let script = folder.join("check.mjs");
    std::fs::write(&script, FOREIGN).expect("the cache folder");
    for overlay in all {
        let kinds = ["ScaledObject", "PodMonitor", "PrometheusRule"];
        let foreign: Vec<_> = kinds.iter().flat_map(|kind| overlay.documents_of_kind(kind)).collect();
        let documents = serde_json::to_string(&foreign).expect("documents have a form in JSON");
        let mistakes = run_with_input(Command::new("node").arg(&script).current_dir(&folder), &documents);
        assert_eq!(mistakes, "", "{}", overlay.name);
    }
}

#[test]
#[ignore = "installs 400 MB; run it after changing the manifests"]
fn checkov_finds_only_justified_exceptions() {
    let Some(all) = render_all_overlays() else { return };
    let python = install_python_packages(&[CHECKOV]).expect("checkov can be installed");
    for overlay in all {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
        std::fs::write(file.path(), &overlay.text).expect("a temporary file");
        let mut checkov = Command::new(python.with_file_name("checkov"));
        checkov.args(["--skip-download", "--framework", "kubernetes", "--compact", "--file"]);
        let output = checkov.arg(file.path()).output().expect("it was installed");
        let findings = String::from_utf8_lossy(&output.stdout);
        let passed = findings.split("Passed checks: ").nth(1).and_then(|rest| rest.split(',').next());
        let passed: usize = passed.and_then(|number| number.parse().ok()).expect("it counts");
        assert!(passed > 500 && output.status.success(), "{}:\n{findings}", overlay.name);
    }
}
