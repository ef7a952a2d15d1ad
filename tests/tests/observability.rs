//! Consistency of the dashboards and alerts in `deploy/observability`: they use existing metrics, every alert is tested
//! and has a section in `deploy/README.md`, and Prometheus accepts all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_runtime::ops::metrics::names::{ALL, MetricKind};
use millrace_tests::pages::extract_code;
use serde_json::{Value, json};

/// Metrics of other programs with the labels used here: Prometheus itself, kube-state-metrics and the kubelet.
const FOREIGN: [(&str, &[&str]); 5] = [
    ("ALERTS", &["alertname", "alertstate"]),
    ("kube_statefulset_replicas", &["statefulset"]),
    ("kube_statefulset_status_replicas_ready", &["statefulset"]),
    ("kubelet_volume_stats_available_bytes", &["persistentvolumeclaim"]),
    ("kubelet_volume_stats_capacity_bytes", &["persistentvolumeclaim"]),
];
/// The labels that Prometheus adds to everything it scrapes.
const TARGET: [&str; 2] = ["namespace", "instance"];
/// Grafana's variables for time ranges and selections in dashboards.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "5m"), ("$__range", "6h"), ("$namespace", ".*")];

fn deploy_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").join("deploy")
}

fn read_deploy_file(path: &str) -> String {
    fs::read_to_string(deploy_folder().join(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

fn read_yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read_deploy_file(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

fn text_field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn list_field<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// The dashboards, by file name.
fn read_dashboards() -> BTreeMap<String, Value> {
    let files = fs::read_dir(deploy_folder().join("observability/grafana")).expect("there are dashboards");
    files
        .map(|file| {
            file.expect("a folder that can be read").file_name().into_string().expect("a name in letters")
        })
        .filter(|name| name.ends_with(".json"))
        .map(|name| {
            let content = read_deploy_file(&format!("observability/grafana/{name}"));
            let board = serde_json::from_str(&content).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, board)
        })
        .collect()
}

/// The panels of a dashboard, without rows.
fn dashboard_panels(board: &Value) -> impl Iterator<Item = &Value> {
    list_field(board, "panels").iter().filter(|panel| text_field(panel, "type") != "row")
}

/// Every alert of the rules.
fn read_alerts() -> Vec<Value> {
    let rules = read_yaml("observability/prometheus/alerts.yaml");
    list_field(&rules, "groups").iter().flat_map(|group| list_field(group, "rules")).cloned().collect()
}

fn alert_names() -> BTreeSet<String> {
    read_alerts().iter().map(|alert| text_field(alert, "alert").to_owned()).collect()
}

/// A PromQL expression and its location.
struct LocatedExpression {
    at: String,
    expr: String,
    /// Templates with labels that are filled from its result.
    labels_shown: BTreeSet<String>,
}

/// The expressions of all dashboards, rules and tests of rules.
fn collect_expressions() -> Vec<LocatedExpression> {
    let mut all = Vec::new();
    for (file, board) in read_dashboards() {
        for panel in dashboard_panels(&board) {
            for target in list_field(panel, "targets") {
                let at = format!("{file}, {}", text_field(panel, "title"));
                let labels_shown = texts_between(text_field(target, "legendFormat"), "{{", "}}");
                all.push(LocatedExpression {
                    at,
                    expr: replace_variables(text_field(target, "expr")),
                    labels_shown,
                });
            }
        }
        for annotation in list_field(&board["annotations"], "list") {
            let at = format!("{file}, {}", text_field(annotation, "name"));
            all.push(LocatedExpression {
                at,
                expr: replace_variables(text_field(annotation, "expr")),
                labels_shown: BTreeSet::new(),
            });
        }
        for variable in list_field(&board["templating"], "list") {
            if let Some(asked) = variable["query"]["query"].as_str() {
                let expr =
                    asked.trim_start_matches("label_values(").split(',').next().expect("a part").to_owned();
                let at = format!("{file}, the variable {}", text_field(variable, "name"));
                all.push(LocatedExpression { at, expr, labels_shown: BTreeSet::new() });
            }
        }
    }
    for alert in read_alerts() {
        let words = format!(
            "{} {}",
            text_field(&alert["annotations"], "summary"),
            text_field(&alert["annotations"], "description")
        );
        let used = texts_between(&words, "{{", "}}").into_iter();
        let labels_shown = used.filter_map(|one| Some(one.strip_prefix("$labels.")?.to_owned())).collect();
        all.push(LocatedExpression {
            at: text_field(&alert, "alert").into(),
            expr: text_field(&alert, "expr").into(),
            labels_shown,
        });
    }
    for test in list_field(&read_yaml("observability/prometheus/alerts.test.yaml"), "tests") {
        let expressions = list_field(test, "promql_expr_test").iter().map(|one| text_field(one, "expr"));
        let series = list_field(test, "input_series").iter().map(|one| text_field(one, "series"));
        for expr in expressions.chain(series) {
            let at = format!("the test {}", text_field(test, "name"));
            all.push(LocatedExpression { at, expr: expr.into(), labels_shown: BTreeSet::new() });
        }
    }
    all
}

fn replace_variables(expr: &str) -> String {
    VARIABLES.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value))
}

/// The trimmed texts between two delimiters.
fn texts_between(text: &str, open: &str, close: &str) -> BTreeSet<String> {
    text.split(open)
        .skip(1)
        .filter_map(|rest| rest.split(close).next())
        .map(|one| one.trim().to_owned())
        .collect()
}

/// The metrics of an expression, each with the labels that are selected, and the labels by which it is grouped.
#[derive(Debug, Default, PartialEq)]
struct ExpressionNames {
    metrics: Vec<(String, Vec<String>)>,
    grouped: Vec<String>,
}

/// Parses the names of an expression. It knows as much of PromQL as that needs: words, quoted texts and their context.
fn parse_expression_names(expr: &str) -> ExpressionNames {
    const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];
    let tokens = tokenize_expression(expr);
    let mut names = ExpressionNames::default();
    let mut at = 0;
    while at < tokens.len() {
        let (word, next) = (tokens[at].as_str(), tokens.get(at + 1).map(String::as_str));
        at += 1;
        if !word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_') {
            continue;
        }
        if GROUPING.contains(&word) {
            let until = at + tokens[at..].iter().position(|token| token == ")").expect("a list has an end");
            names.grouped.extend(select_words(&tokens[at..until]));
            at = until;
        } else if next == Some("{") {
            let until =
                at + tokens[at..].iter().position(|token| token == "}").expect("a selector has an end");
            names.metrics.push((word.into(), select_words(&tokens[at..until])));
            at = until;
        } else if next != Some("(")
            && !OPERATORS.contains(&word)
            && !GROUPING.contains(&next.unwrap_or_default())
        {
            names.metrics.push((word.into(), Vec::new()));
        }
    }
    names
}

/// Words, numbers with units, and single characters, without quoted texts and bracketed ranges.
fn tokenize_expression(expr: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expr.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_:.".contains(letter);
        let length = match first {
            '"' => rest[1..].find('"').expect("a text has an end") + 2,
            '[' => rest.find(']').expect("a range has an end") + 1,
            letter if is_word(letter) => rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()),
            other => other.len_utf8(),
        };
        if !matches!(first, '"' | '[') {
            tokens.push(rest[..length].to_owned());
        }
        rest = rest[length..].trim_start();
    }
    tokens
}

fn select_words(tokens: &[String]) -> Vec<String> {
    let is_word =
        |token: &&String| token.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    tokens.iter().filter(is_word).cloned().collect()
}

/// The labels of every existing metric, without those of targets.
fn metric_labels() -> BTreeMap<String, BTreeSet<String>> {
    let own = |labels: &[&str]| labels.iter().map(|&label| label.to_owned()).collect::<BTreeSet<_>>();
    let mut metrics: BTreeMap<_, _> =
        FOREIGN.iter().map(|&(name, labels)| (name.to_owned(), own(labels))).collect();
    for metric in ALL {
        let labels = own(metric.labels);
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => drop(metrics.insert(metric.name.to_owned(), labels)),
            MetricKind::Histogram(_) => {
                let bucket = labels.iter().cloned().chain(["le".to_owned()]).collect();
                metrics.insert(format!("{}_bucket", metric.name), bucket);
            }
        }
    }
    metrics
}

#[test]
fn metrics_and_labels_of_an_expression_are_extracted() {
    let of = |pairs: &[(&str, &[&str])], grouped: &[&str]| ExpressionNames {
        metrics: pairs
            .iter()
            .map(|(name, labels)| ((*name).to_owned(), labels.iter().map(|&one| one.to_owned()).collect()))
            .collect(),
        grouped: grouped.iter().map(|&one| one.to_owned()).collect(),
    };
    assert_eq!(parse_expression_names("a"), of(&[("a", &[])], &[]));
    assert_eq!(
        parse_expression_names("sum by (x, y) (rate(a_total{z=\"b{c\",w=~\"d\"}[5m])) > 1e3"),
        of(&[("a_total", &["z", "w"])], &["x", "y"])
    );
    assert_eq!(
        parse_expression_names("max by (x) (a) > 0 unless on (y) max(b offset 5m) / (c > 2)"),
        of(&[("a", &[]), ("b", &[]), ("c", &[])], &["x", "y"])
    );
}

#[test]
fn dashboards_and_rules_use_existing_metrics_and_labels() {
    let labels_by_metric = metric_labels();
    for LocatedExpression { at, expr, labels_shown } in collect_expressions() {
        let ExpressionNames { metrics, grouped } = parse_expression_names(&expr);
        assert!(!metrics.is_empty(), "{at}: no metric in {expr}");
        let mut there: BTreeSet<&str> = TARGET.into();
        for (metric, asked) in &metrics {
            let labels =
                labels_by_metric.get(metric).unwrap_or_else(|| panic!("{at}: there is no metric {metric}"));
            for label in asked {
                let is_there = labels.contains(label) || TARGET.contains(&label.as_str());
                assert!(is_there, "{at}: {metric} has no label {label}");
            }
            there.extend(labels.iter().map(String::as_str));
        }
        // In tests of rules, ALERTS has the labels by which the alert was grouped.
        let is_of_alerts = metrics.iter().any(|(metric, _)| metric == "ALERTS");
        for label in grouped.iter().filter(|_| !is_of_alerts) {
            assert!(there.contains(label.as_str()), "{at}: no metric in it has a label {label}");
        }
        for label in &labels_shown {
            let is_left = grouped.contains(label) || metrics.iter().all(|(_, asked)| asked.contains(label));
            assert!(is_left, "{at}: {label} is shown but is not grouped by");
        }
    }
}

#[test]
fn every_metric_is_used_in_a_dashboard_or_rule() {
    let looked_at: BTreeSet<String> = collect_expressions()
        .iter()
        .flat_map(|query| parse_expression_names(&query.expr).metrics)
        .map(|(name, _)| name)
        .collect();
    for metric in ALL {
        let is_looked_at =
            ["", "_bucket"].iter().any(|more| looked_at.contains(&format!("{}{more}", metric.name)));
        assert!(is_looked_at, "{} is in no dashboard and no rule", metric.name);
    }
}

#[test]
fn every_panel_has_a_description_and_a_unit() {
    for (file, board) in read_dashboards() {
        assert!(board["id"].is_null(), "{file} has an id, which each server assigns itself");
        let mut ids = BTreeSet::new();
        for panel in list_field(&board, "panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{file}: two panels with the id {}", panel["id"]);
            assert!(!text_field(panel, "title").is_empty(), "{file}: a panel without a title");
        }
        for panel in dashboard_panels(&board) {
            let title = text_field(panel, "title");
            assert!(!text_field(panel, "description").is_empty(), "{file}: {title} has no description");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{file}: {title} has no unit");
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {title} asks a source of its own"
            );
            assert!(!list_field(panel, "targets").is_empty(), "{file}: {title} has no query");
        }
    }
}

#[test]
fn panels_do_not_overlap() {
    for (file, board) in read_dashboards() {
        let mut cells: BTreeMap<(u64, u64), &str> = BTreeMap::new();
        for panel in list_field(&board, "panels") {
            let of = |name: &str| panel["gridPos"][name].as_u64().expect("a place in the grid");
            let title = text_field(panel, "title");
            assert!(of("x") + of("w") <= 24, "{file}: {title} is wider than the page");
            for cell in
                (of("x")..of("x") + of("w")).flat_map(|x| (of("y")..of("y") + of("h")).map(move |y| (x, y)))
            {
                if let Some(other) = cells.insert(cell, title) {
                    panic!("{file}: {title} overlaps {other}");
                }
            }
        }
    }
}

#[test]
fn every_dashboard_is_in_the_kubernetes_manifests() {
    let kustomization = read_yaml("observability/kustomization.yaml");
    let files = list_field(&kustomization["configMapGenerator"][0], "files").iter().filter_map(Value::as_str);
    let handed: BTreeSet<_> = files.map(|file| file.trim_start_matches("grafana/").to_owned()).collect();
    assert_eq!(handed, read_dashboards().into_keys().collect());
}

#[test]
fn every_alert_has_a_severity_and_a_runbook() {
    let names = alert_names();
    assert_eq!(names.len(), read_alerts().len(), "two alerts with one name");
    let sections: BTreeSet<String> = read_deploy_file("README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("### Millrace"))
        .map(|name| format!("Millrace{name}"))
        .collect();
    assert_eq!(
        sections, names,
        "the alerts that deploy/README.md has sections for, and the alerts that there are"
    );
    for alert in read_alerts() {
        let (name, annotations) = (text_field(&alert, "alert"), &alert["annotations"]);
        assert!(["critical", "warning"].contains(&text_field(&alert["labels"], "severity")), "{name}");
        assert!(alert["for"].is_string(), "{name} has no duration");
        for (word, ends) in [("summary", false), ("description", true)] {
            let lines = text_field(annotations, word);
            assert!(!lines.is_empty() && lines.ends_with('.') == ends, "{name}: {lines}");
        }
        assert_eq!(text_field(annotations, "runbook"), format!("deploy/README.md#{}", name.to_lowercase()));
    }
}

#[test]
fn every_alert_is_tested_firing_and_not_firing() {
    let tests = read_yaml("observability/prometheus/alerts.test.yaml");
    let (mut fires, mut is_silent) = (BTreeSet::new(), BTreeSet::new());
    for asked in list_field(&tests, "tests").iter().flat_map(|test| list_field(test, "promql_expr_test")) {
        let name =
            text_field(asked, "expr").split("alertname=\"").nth(1).and_then(|rest| rest.split('"').next());
        let name = name.unwrap_or_else(|| panic!("no alert in {asked}")).to_owned();
        if list_field(asked, "exp_samples").is_empty() {
            is_silent.insert(name)
        } else {
            fires.insert(name)
        };
    }
    assert_eq!(fires, alert_names());
    assert_eq!(is_silent, alert_names());
}

/// The bytes of a size in a manifest or NATS configuration, where MB and GB are powers of two.
fn parse_byte_size(size: &str) -> f64 {
    let at = size.find(|c: char| c.is_ascii_alphabetic()).expect("a size has a unit");
    let unit = match &size[at..] {
        "MB" | "Mi" => 1_048_576.0,
        "GB" | "Gi" => 1_073_741_824.0,
        other => panic!("unknown unit {other}"),
    };
    size[..at].parse::<f64>().expect("a size begins with a number") * unit
}

#[test]
fn nats_volume_alerts_fire_at_80_and_90_percent_of_the_limit() {
    let manifest = read_deploy_file("kubernetes/components/nats/nats.yaml");
    let behind = |mark: &str, nth: usize| {
        let rest = manifest.split(mark).nth(nth).unwrap_or_else(|| panic!("nats.yaml has no {mark}"));
        parse_byte_size(rest.split(['}', '\n']).next().unwrap_or_default().trim())
    };
    let share = behind("NATS_MAX_FILE_STORE, value:", 1) / behind(" storage:", 1);
    for (name, of_that) in [("MillraceNatsVolumeFilling", 0.8), ("MillraceNatsVolumeFull", 0.9)] {
        let alert =
            read_alerts().into_iter().find(|alert| alert["alert"] == name).expect("there is that alert");
        let limit =
            text_field(&alert, "expr").rsplit('>').next().and_then(|limit| limit.trim().parse::<f64>().ok());
        let (limit, expected) = (limit.expect("it ends in its limit"), share * of_that);
        assert!((limit - expected).abs() < 0.01, "{name} fires at {limit}, expected {expected}");
        let lines = format!("no more than {:.0}%", share * 100.0);
        assert!(
            text_field(&alert["annotations"], "description").contains(&lines),
            "the description of {name} lacks: {lines}"
        );
    }
}

/// Client-side apply stores the object in an annotation of at most 256 KiB; accounts with many lanes are larger.
#[test]
fn page_applies_secrets_on_the_server_side() {
    let applied: Vec<String> = extract_code(&read_deploy_file("README.md"))
        .into_iter()
        .filter(|line| line.contains("-k secrets"))
        .collect();
    assert!(applied.len() > 4, "{applied:?}");
    for line in applied {
        assert!(line.contains("kubectl apply --server-side -k secrets"), "{line}");
    }
}

#[test]
fn store_limits_on_the_page_fit_the_production_servers() {
    let nats = read_deploy_file("kubernetes/components/nats/nats.yaml");
    let after = |text: &str, mark: &str| {
        let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no {mark}"));
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).expect("something follows");
        rest[..end].to_owned()
    };
    let servers = after(&nats, "\nspec:\n  replicas: ").parse::<u8>().expect("a number");
    let all = f64::from(servers) * parse_byte_size(&after(&nats, "NATS_MAX_FILE_STORE, value: "));
    let page = read_deploy_file("README.md");
    let set =
        ["add `--max-store ", "--tenant acme --max-store "].map(|mark| parse_byte_size(&after(&page, mark)));
    assert!(set.iter().sum::<f64>() <= all, "{set:?} of {all}");
    assert!(set[0] > all / 2.0, "the limit is for all copies together: {set:?} of {all}");
    let install = page.split("```").nth(1).expect("an example");
    assert!(!install.contains("--max-store"), "a single server would not start with the limit of three");
}

#[test]
fn links_and_paths_on_the_page_exist() {
    let page = read_deploy_file("README.md");
    let sections: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"))
        .collect();
    for target in texts_between(&page, "](", ")") {
        match target.strip_prefix('#') {
            Some(section) => assert!(sections.contains(section), "no section {section}"),
            None if target.contains("://") => {}
            None => {
                let file = target.split_once('#').map_or(target.as_str(), |(file, _)| file);
                assert!(deploy_folder().join(file).exists(), "no {target}");
            }
        }
    }
    let overlays = fs::read_dir(deploy_folder().join("kubernetes/overlays")).expect("there are overlays");
    for overlay in overlays.map(|one| one.expect("a folder that can be read").file_name()) {
        let name = overlay.to_str().expect("a name in letters");
        assert!(page.contains(&format!("| `{name}` |")), "the page does not list the overlay {name}");
    }
    for code in extract_code(&read_deploy_file("README.md")) {
        for path in code
            .split([' ', '"'])
            .filter(|word| word.starts_with("deploy/") || word.starts_with("components/"))
        {
            let below =
                path.strip_prefix("deploy/").map_or_else(|| format!("kubernetes/{path}"), str::to_owned);
            assert!(deploy_folder().join(&below).exists(), "{code}: no {path}");
        }
    }
}

/// The Prometheus operator reads the same groups as Prometheus itself. `MILLRACE_WRITE=1` rewrites its file.
#[test]
fn operator_rules_equal_the_prometheus_rules() {
    let path = "observability/prometheus/prometheusrule.yaml";
    let names = read_deploy_file(path);
    let (head, _) = names.split_once("\nspec:\n").expect("it has a head and a specification");
    let indented = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") };
    let rules: String =
        read_deploy_file("observability/prometheus/alerts.yaml").lines().map(indented).collect();
    let expected = format!("{head}\nspec:\n{rules}");
    if std::env::var_os("MILLRACE_WRITE").is_some() {
        fs::write(deploy_folder().join(path), &expected).expect("it can be written");
    } else {
        assert!(
            names == expected,
            "deploy/{path} is not alerts.yaml any more: run this test with MILLRACE_WRITE=1"
        );
    }
}

#[test]
fn promtool_accepts_rules_and_dashboard_expressions() {
    let Some(promtool) = find_or_download_promtool() else { return };
    run_promtool(&promtool, &["check", "rules", "alerts.yaml"]);
    let from_boards = collect_expressions().into_iter().filter(|query| query.at.contains(".json"));
    let rules: Vec<Value> = from_boards
        .enumerate()
        .map(|(number, query)| json!({"record": format!("panel:{number}"), "expr": query.expr, "labels": {"at": query.at}}))
        .collect();
    assert!(rules.len() > 40, "only {} expressions", rules.len());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboards.rules.json");
    // JSON is valid YAML.
    fs::write(&file, json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string())
        .expect("a temporary file");
    run_promtool(&promtool, &["check", "rules", "--lint=none", file.to_str().expect("a path in letters")]);
}

/// With several tenants on one dashboard, counts cover all selected tenants without double counting, and lanes with the
/// same number are shown separately.
#[test]
fn dashboards_separate_the_lanes_of_several_tenants() {
    let Some(promtool) = find_or_download_promtool() else { return };
    let board = &read_dashboards()["millrace-cluster.json"];
    let all = |label: &str| vec![json!({"labels": format!("{{{label}=\"0\"}}"), "value": 7})];
    let each = |label: &str| -> Vec<Value> {
        let of = [("acme", 3), ("millrace", 4)].into_iter();
        of.map(|(namespace, value)| {
            json!({"labels": format!("{{namespace=\"{namespace}\",{label}=\"0\"}}"), "value": value})
        })
        .collect()
    };
    let expected = [
        ("Orders pending", all("capability")),
        ("Orders in flight", all("capability")),
        ("Processes", all("capability")),
        ("Slots", all("capability")),
        ("Redelivered, unfinished", all("capability")),
        ("Runs by status", all("status")),
        ("Streams", all("stream")),
        ("Processes by role", all("role")),
        ("Lag", each("lane")),
        ("Live runs", each("lane")),
        ("Messages in lanes", each("lane")),
    ];
    let (mut series, mut asked) = (BTreeMap::new(), Vec::new());
    for (title, samples) in expected {
        let panel = dashboard_panels(board)
            .find(|one| text_field(one, "title") == title && one["type"] == "timeseries");
        for target in list_field(panel.expect("it is on the dashboard"), "targets") {
            let expr = replace_variables(text_field(target, "expr"));
            for (metric, _) in parse_expression_names(&expr).metrics {
                let label = ALL.iter().find(|one| one.name == metric).expect("it is one of ours").labels[0];
                for (namespace, instance, value) in [("acme", 1, 3), ("acme", 2, 3), ("millrace", 3, 4)] {
                    let of = format!("namespace=\"{namespace}\",instance=\"{instance}\",{label}=\"0\"");
                    series.insert(format!("{metric}{{{of}}}"), value.to_string());
                }
            }
            asked.push(json!({"expr": expr, "eval_time": "0m", "exp_samples": samples}));
        }
    }
    let series: Vec<Value> =
        series.into_iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let tests = json!({"tests": [{"input_series": series, "promql_expr_test": asked}]});
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboards.test.json");
    fs::write(&file, tests.to_string()).expect("a temporary file");
    run_promtool(&promtool, &["test", "rules", file.to_str().expect("a path in letters")]);
}

#[test]
fn promtool_tests_of_the_alerts_pass() {
    let Some(promtool) = find_or_download_promtool() else { return };
    run_promtool(&promtool, &["test", "rules", "alerts.test.yaml"]);
}

fn run_promtool(promtool: &Path, arguments: &[&str]) {
    let output = Command::new(promtool)
        .args(arguments)
        .current_dir(deploy_folder().join("observability/prometheus"))
        .output()
        .expect("promtool starts");
    let lines = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {}: {}", arguments.join(" "), String::from_utf8_lossy(&lines));
}

/// Prometheus's own checker: the installed one, or the one in the package `prometheus`, which is downloaded only.
fn find_or_download_promtool() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("promtool"));
    let fetched = Path::new(env!("CARGO_TARGET_TMPDIR")).join("promtool");
    let names = on_path.chain([fetched.clone()]).find(|path| path.is_file());
    names.or_else(|| match download_promtool(&fetched) {
        Ok(()) => Some(fetched),
        Err(why) => {
            println!("passed over: no promtool ({why}); the Debian package prometheus has it");
            None
        }
    })
}

fn download_promtool(to: &Path) -> Result<(), String> {
    let place = to.parent().expect("it lies in a folder");
    let lock = File::create(place.join("promtool.lock")).expect("a lock file");
    lock.lock().expect("the lock of the folder");
    if to.is_file() {
        return Ok(());
    }
    let folder = tempfile::tempdir_in(place).expect("a temporary folder");
    // Files are written under temporary names first, so that an existing file is complete.
    let script = "apt-get download -q prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool";
    let output = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let unpacked = folder.path().join("usr/bin/promtool");
    if !output.status.success() || !unpacked.is_file() {
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(lines.lines().last().unwrap_or("there is no apt-get").to_owned());
    }
    fs::rename(unpacked, to).map_err(|error| error.to_string())
}
