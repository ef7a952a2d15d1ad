//! What watches a cluster in `deploy/observability` says what is so: dashboards and alert rules name metrics that the
//! programs have, every alert is tried and has a section in `deploy/README.md`, and Prometheus can read all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_runtime::metrics::names::{ALL, Kind};
use millrace_tests::program::millrace;
use serde_json::{Value, json};

/// Metrics of others, with the labels that are used of them: of Prometheus itself, kube-state-metrics and the kubelet.
const FOREIGN: [(&str, &[&str]); 5] = [
    ("ALERTS", &["alertname", "alertstate"]),
    ("kube_statefulset_replicas", &["statefulset"]),
    ("kube_statefulset_status_replicas_ready", &["statefulset"]),
    ("kubelet_volume_stats_available_bytes", &["persistentvolumeclaim"]),
    ("kubelet_volume_stats_capacity_bytes", &["persistentvolumeclaim"]),
];
/// The labels that Prometheus gives to whatever it scrapes.
const TARGET: [&str; 2] = ["namespace", "instance"];
/// What stands in dashboards for a time or a choice of whoever looks.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "5m"), ("$__range", "6h"), ("$namespace", ".*")];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").join("deploy")
}

fn read(path: &str) -> String {
    fs::read_to_string(folder().join(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("deploy/{path}: {error}"))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// The dashboards, by file name.
fn dashboards() -> BTreeMap<String, Value> {
    let files = fs::read_dir(folder().join("observability/grafana")).expect("there are dashboards");
    files
        .map(|file| {
            file.expect("a folder that can be read").file_name().into_string().expect("a name in letters")
        })
        .filter(|name| name.ends_with(".json"))
        .map(|name| {
            let content = read(&format!("observability/grafana/{name}"));
            let board = serde_json::from_str(&content).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, board)
        })
        .collect()
}

/// The panels of a dashboard that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(board, "panels").iter().filter(|panel| text(panel, "type") != "row")
}

/// Every alert of the rules.
fn alerts() -> Vec<Value> {
    let rules = yaml("observability/prometheus/alerts.yaml");
    list(&rules, "groups").iter().flat_map(|group| list(group, "rules")).cloned().collect()
}

fn alert_names() -> BTreeSet<String> {
    alerts().iter().map(|alert| text(alert, "alert").to_owned()).collect()
}

/// An expression of PromQL and where it stands.
struct Query {
    at: String,
    expr: String,
    /// Texts with labels in them that are made of its answer.
    labels_shown: BTreeSet<String>,
}

/// What all dashboards, rules and tests of rules ask for.
fn queries() -> Vec<Query> {
    let mut all = Vec::new();
    for (file, board) in dashboards() {
        for panel in panels(&board) {
            for target in list(panel, "targets") {
                let at = format!("{file}, {}", text(panel, "title"));
                let labels_shown = between(text(target, "legendFormat"), "{{", "}}");
                all.push(Query { at, expr: resolved(text(target, "expr")), labels_shown });
            }
        }
        for annotation in list(&board["annotations"], "list") {
            let at = format!("{file}, {}", text(annotation, "name"));
            all.push(Query { at, expr: resolved(text(annotation, "expr")), labels_shown: BTreeSet::new() });
        }
        for variable in list(&board["templating"], "list") {
            if let Some(asked) = variable["query"]["query"].as_str() {
                let expr =
                    asked.trim_start_matches("label_values(").split(',').next().expect("a part").to_owned();
                let at = format!("{file}, the variable {}", text(variable, "name"));
                all.push(Query { at, expr, labels_shown: BTreeSet::new() });
            }
        }
    }
    for alert in alerts() {
        let words = format!(
            "{} {}",
            text(&alert["annotations"], "summary"),
            text(&alert["annotations"], "description")
        );
        let used = between(&words, "{{", "}}").into_iter();
        let labels_shown = used.filter_map(|one| Some(one.strip_prefix("$labels.")?.to_owned())).collect();
        all.push(Query { at: text(&alert, "alert").into(), expr: text(&alert, "expr").into(), labels_shown });
    }
    for test in list(&yaml("observability/prometheus/alerts.test.yaml"), "tests") {
        let asked = list(test, "promql_expr_test").iter().map(|one| text(one, "expr"));
        let given = list(test, "input_series").iter().map(|one| text(one, "series"));
        for expr in asked.chain(given) {
            let at = format!("the test {}", text(test, "name"));
            all.push(Query { at, expr: expr.into(), labels_shown: BTreeSet::new() });
        }
    }
    all
}

fn resolved(expr: &str) -> String {
    VARIABLES.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value))
}

/// What stands between these marks, without the space around it.
fn between(text: &str, open: &str, close: &str) -> BTreeSet<String> {
    text.split(open)
        .skip(1)
        .filter_map(|rest| rest.split(close).next())
        .map(|one| one.trim().to_owned())
        .collect()
}

/// The metrics of an expression, each with the labels that are asked of it, and the labels by which is grouped.
#[derive(Debug, Default, PartialEq)]
struct Named {
    metrics: Vec<(String, Vec<String>)>,
    grouped: Vec<String>,
}

/// What an expression names. It is enough of PromQL for that: words, texts in quotes, and what stands around them.
fn named(expr: &str) -> Named {
    const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];
    let tokens = tokens(expr);
    let mut found = Named::default();
    let mut at = 0;
    while at < tokens.len() {
        let (word, next) = (tokens[at].as_str(), tokens.get(at + 1).map(String::as_str));
        at += 1;
        if !word.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_') {
            continue;
        }
        if GROUPING.contains(&word) {
            let until = at + tokens[at..].iter().position(|token| token == ")").expect("a list has an end");
            found.grouped.extend(words(&tokens[at..until]));
            at = until;
        } else if next == Some("{") {
            let until =
                at + tokens[at..].iter().position(|token| token == "}").expect("a selector has an end");
            found.metrics.push((word.into(), words(&tokens[at..until])));
            at = until;
        } else if next != Some("(")
            && !OPERATORS.contains(&word)
            && !GROUPING.contains(&next.unwrap_or_default())
        {
            found.metrics.push((word.into(), Vec::new()));
        }
    }
    found
}

/// Words, numbers with their units, and single signs; texts in quotes and ranges in brackets are left out.
fn tokens(expr: &str) -> Vec<String> {
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

fn words(tokens: &[String]) -> Vec<String> {
    let is_word =
        |token: &&String| token.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    tokens.iter().filter(is_word).cloned().collect()
}

/// The labels of every series that there can be, those of targets left out.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let own = |labels: &[&str]| labels.iter().map(|&label| label.to_owned()).collect::<BTreeSet<_>>();
    let mut known: BTreeMap<_, _> =
        FOREIGN.iter().map(|&(name, labels)| (name.to_owned(), own(labels))).collect();
    for metric in ALL {
        let labels = own(metric.labels);
        match metric.kind {
            Kind::Counter | Kind::Gauge => drop(known.insert(metric.name.to_owned(), labels)),
            Kind::Histogram(_) => {
                let bucket = labels.iter().cloned().chain(["le".to_owned()]).collect();
                known.insert(format!("{}_bucket", metric.name), bucket);
            }
        }
    }
    known
}

#[test]
fn what_an_expression_names_is_found() {
    let of = |pairs: &[(&str, &[&str])], grouped: &[&str]| Named {
        metrics: pairs
            .iter()
            .map(|(name, labels)| ((*name).to_owned(), labels.iter().map(|&one| one.to_owned()).collect()))
            .collect(),
        grouped: grouped.iter().map(|&one| one.to_owned()).collect(),
    };
    assert_eq!(named("a"), of(&[("a", &[])], &[]));
    assert_eq!(
        named("sum by (x, y) (rate(a_total{z=\"b{c\",w=~\"d\"}[5m])) > 1e3"),
        of(&[("a_total", &["z", "w"])], &["x", "y"])
    );
    assert_eq!(
        named("max by (x) (a) > 0 unless on (y) max(b offset 5m) / (c > 2)"),
        of(&[("a", &[]), ("b", &[]), ("c", &[])], &["x", "y"])
    );
}

#[test]
fn dashboards_rules_and_their_tests_name_metrics_and_labels_that_there_are() {
    let known = known();
    for Query { at, expr, labels_shown } in queries() {
        let Named { metrics, grouped } = named(&expr);
        assert!(!metrics.is_empty(), "{at}: no metric in {expr}");
        let mut there: BTreeSet<&str> = TARGET.into();
        for (metric, asked) in &metrics {
            let labels = known.get(metric).unwrap_or_else(|| panic!("{at}: there is no metric {metric}"));
            for label in asked {
                let is_there = labels.contains(label) || TARGET.contains(&label.as_str());
                assert!(is_there, "{at}: {metric} has no label {label}");
            }
            there.extend(labels.iter().map(String::as_str));
        }
        // What the tests of rules ask of ALERTS is whatever the alert was grouped by.
        let is_of_alerts = metrics.iter().any(|(metric, _)| metric == "ALERTS");
        for label in grouped.iter().filter(|_| !is_of_alerts) {
            assert!(there.contains(label.as_str()), "{at}: nothing in it has a label {label}");
        }
        for label in &labels_shown {
            let is_left = grouped.contains(label) || metrics.iter().all(|(_, asked)| asked.contains(label));
            assert!(is_left, "{at}: {label} is shown, and not what it is grouped by");
        }
    }
}

#[test]
fn every_metric_is_looked_at_somewhere() {
    let looked_at: BTreeSet<String> =
        queries().iter().flat_map(|query| named(&query.expr).metrics).map(|(name, _)| name).collect();
    for metric in ALL {
        let is_looked_at =
            ["", "_bucket"].iter().any(|more| looked_at.contains(&format!("{}{more}", metric.name)));
        assert!(is_looked_at, "{} is on no dashboard and in no rule", metric.name);
    }
}

#[test]
fn every_panel_says_what_it_shows_in_which_unit() {
    for (file, board) in dashboards() {
        assert!(board["id"].is_null(), "{file} has an id, which is a server's own");
        let mut ids = BTreeSet::new();
        for panel in list(&board, "panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{file}: two panels with the id {}", panel["id"]);
            assert!(!text(panel, "title").is_empty(), "{file}: a panel without a title");
        }
        for panel in panels(&board) {
            let title = text(panel, "title");
            assert!(!text(panel, "description").is_empty(), "{file}: {title} is not described");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{file}: {title} has no unit");
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {title} asks a source of its own"
            );
            assert!(!list(panel, "targets").is_empty(), "{file}: {title} asks for nothing");
        }
    }
}

#[test]
fn no_panel_lies_on_another() {
    for (file, board) in dashboards() {
        let mut taken: BTreeMap<(u64, u64), &str> = BTreeMap::new();
        for panel in list(&board, "panels") {
            let of = |name: &str| panel["gridPos"][name].as_u64().expect("a place in the grid");
            let title = text(panel, "title");
            assert!(of("x") + of("w") <= 24, "{file}: {title} is wider than the page");
            for cell in
                (of("x")..of("x") + of("w")).flat_map(|x| (of("y")..of("y") + of("h")).map(move |y| (x, y)))
            {
                if let Some(other) = taken.insert(cell, title) {
                    panic!("{file}: {title} lies on {other}");
                }
            }
        }
    }
}

#[test]
fn every_dashboard_is_handed_to_kubernetes() {
    let kustomization = yaml("observability/kustomization.yaml");
    let files = list(&kustomization["configMapGenerator"][0], "files").iter().filter_map(Value::as_str);
    let handed: BTreeSet<_> = files.map(|file| file.trim_start_matches("grafana/").to_owned()).collect();
    assert_eq!(handed, dashboards().into_keys().collect());
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let names = alert_names();
    assert_eq!(names.len(), alerts().len(), "two alerts with one name");
    let sections: BTreeSet<String> = read("README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("### Millrace"))
        .map(|name| format!("Millrace{name}"))
        .collect();
    assert_eq!(
        sections, names,
        "the alerts that deploy/README.md has sections for, and the alerts that there are"
    );
    for alert in alerts() {
        let (name, annotations) = (text(&alert, "alert"), &alert["annotations"]);
        assert!(["critical", "warning"].contains(&text(&alert["labels"], "severity")), "{name}");
        assert!(alert["for"].is_string(), "{name} does not say for how long");
        for (word, ends) in [("summary", false), ("description", true)] {
            let said = text(annotations, word);
            assert!(!said.is_empty() && said.ends_with('.') == ends, "{name}: {said}");
        }
        assert_eq!(text(annotations, "runbook"), format!("deploy/README.md#{}", name.to_lowercase()));
    }
}

#[test]
fn every_alert_is_tried_where_it_must_fire_and_where_it_must_not() {
    let tests = yaml("observability/prometheus/alerts.test.yaml");
    let (mut fires, mut is_silent) = (BTreeSet::new(), BTreeSet::new());
    for asked in list(&tests, "tests").iter().flat_map(|test| list(test, "promql_expr_test")) {
        let name = text(asked, "expr").split("alertname=\"").nth(1).and_then(|rest| rest.split('"').next());
        let name = name.unwrap_or_else(|| panic!("no alert in {asked}")).to_owned();
        if list(asked, "exp_samples").is_empty() {
            is_silent.insert(name)
        } else {
            fires.insert(name)
        };
    }
    assert_eq!(fires, alert_names());
    assert_eq!(is_silent, alert_names());
}

/// How many bytes a size is, in a manifest or as NATS reads it: its MB and GB are powers of two.
fn bytes(size: &str) -> f64 {
    let at = size.find(|c: char| c.is_ascii_alphabetic()).expect("a size has a unit");
    let unit = match &size[at..] {
        "MB" | "Mi" => 1_048_576.0,
        "GB" | "Gi" => 1_073_741_824.0,
        other => panic!("{other} is no unit that is used here"),
    };
    size[..at].parse::<f64>().expect("a size begins with a number") * unit
}

#[test]
fn the_volumes_of_nats_alarm_at_80_and_90_percent_of_what_it_may_put_there() {
    let manifest = read("kubernetes/components/nats/nats.yaml");
    let behind = |mark: &str, nth: usize| {
        let rest = manifest.split(mark).nth(nth).unwrap_or_else(|| panic!("nats.yaml has no {mark}"));
        bytes(rest.split(['}', '\n']).next().unwrap_or_default().trim())
    };
    let share = behind("NATS_MAX_FILE_STORE, value:", 1) / behind(" storage:", 1);
    for (name, of_that) in [("MillraceNatsVolumeFilling", 0.8), ("MillraceNatsVolumeFull", 0.9)] {
        let alert = alerts().into_iter().find(|alert| alert["alert"] == name).expect("there is that alert");
        let limit =
            text(&alert, "expr").rsplit('>').next().and_then(|limit| limit.trim().parse::<f64>().ok());
        let (limit, wanted) = (limit.expect("it ends in its limit"), share * of_that);
        assert!((limit - wanted).abs() < 0.01, "{name} alarms at {limit}, and {wanted} is right");
        let said = format!("no more than {:.0}%", share * 100.0);
        assert!(text(&alert["annotations"], "description").contains(&said), "{name} does not say: {said}");
    }
}

/// What the page says between backticks, and line by line in its examples of commands.
fn said_as_code() -> Vec<String> {
    let page = read("README.md");
    let mut said = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 1 {
            said.extend(part.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned));
        } else {
            said.extend(part.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")));
        }
    }
    said
}

fn help(command: &str) -> Option<String> {
    let done = Command::new(millrace()).args([command, "--help"]).output().expect("the program starts");
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The calls of our command in a line: what it is told to do, and the options of that.
fn calls(line: &str) -> Vec<(&str, Vec<&str>)> {
    let words: Vec<&str> = line.split([' ', '(', ')', '"']).filter(|word| !word.is_empty()).collect();
    let is_name = |word: &&&str| word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    // `-n millrace` is a namespace.
    let is_call =
        |at: &usize| words[*at] == "millrace" && (*at == 0 || !words[at - 1].starts_with(['-', 'n']));
    let starts = (0..words.len()).filter(is_call);
    let call = |at: usize| {
        let command = words.get(at + 1).filter(is_name)?;
        let own = words[at + 2..].iter().take_while(|word| !["millrace", "|", "&&", "#"].contains(word));
        Some((*command, own.filter(|word| word.starts_with("--")).copied().collect()))
    };
    starts.filter_map(call).collect()
}

#[test]
fn the_commands_of_the_page_are_commands_with_these_options() {
    let mut tried = 0;
    for line in said_as_code() {
        for (command, options) in calls(&line) {
            let known = help(command).unwrap_or_else(|| panic!("{line}: there is no `millrace {command}`"));
            for option in options.iter().filter_map(|option| option.split('=').next()) {
                let is_known = known.split([' ', ',', '\n']).any(|word| word == option);
                assert!(is_known, "{line}: `millrace {command}` has no {option}");
                tried += 1;
            }
        }
    }
    assert!(tried > 10, "{tried} options only");
}

/// An annotation that kubectl makes of what it applies holds 256 KiB, and accounts of many lanes are larger.
#[test]
fn the_page_applies_secrets_in_the_way_that_has_no_limit() {
    let applied: Vec<String> =
        said_as_code().into_iter().filter(|line| line.contains("-k secrets")).collect();
    assert!(applied.len() > 4, "{applied:?}");
    for line in applied {
        assert!(line.contains("kubectl apply --server-side -k secrets"), "{line}");
    }
}

#[test]
fn the_limits_that_the_page_sets_are_no_more_than_all_servers_of_production_have() {
    let nats = read("kubernetes/components/nats/nats.yaml");
    let after = |text: &str, mark: &str| {
        let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no {mark}"));
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).expect("something follows");
        rest[..end].to_owned()
    };
    let servers = after(&nats, "\nspec:\n  replicas: ").parse::<u8>().expect("a number");
    let all = f64::from(servers) * bytes(&after(&nats, "NATS_MAX_FILE_STORE, value: "));
    let page = read("README.md");
    let set = ["add `--max-store ", "--tenant acme --max-store "].map(|mark| bytes(&after(&page, mark)));
    assert!(set.iter().sum::<f64>() <= all, "{set:?} of {all}");
    assert!(set[0] > all / 2.0, "it is of all copies together: {set:?} of {all}");
    let install = page.split("```").nth(1).expect("an example");
    assert!(!install.contains("--max-store"), "a single server does not start with the limit of three");
}

#[test]
fn what_the_page_refers_to_is_there() {
    let page = read("README.md");
    let sections: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"))
        .collect();
    for target in between(&page, "](", ")") {
        match target.strip_prefix('#') {
            Some(section) => assert!(sections.contains(section), "no section {section}"),
            None if target.contains("://") => {}
            None => assert!(folder().join(&target).exists(), "no {target}"),
        }
    }
    let overlays = fs::read_dir(folder().join("kubernetes/overlays")).expect("there are overlays");
    for overlay in overlays.map(|one| one.expect("a folder that can be read").file_name()) {
        let name = overlay.to_str().expect("a name in letters");
        assert!(page.contains(&format!("| `{name}` |")), "the page does not tell of the overlay {name}");
    }
    for code in said_as_code() {
        for path in code
            .split([' ', '"'])
            .filter(|word| word.starts_with("deploy/") || word.starts_with("components/"))
        {
            let below =
                path.strip_prefix("deploy/").map_or_else(|| format!("kubernetes/{path}"), str::to_owned);
            assert!(folder().join(&below).exists(), "{code}: no {path}");
        }
    }
}

/// The Prometheus operator reads the same groups as Prometheus itself. `MILLRACE_WRITE=1` writes its file anew.
#[test]
fn the_operator_has_the_same_rules() {
    let path = "observability/prometheus/prometheusrule.yaml";
    let found = read(path);
    let (head, _) = found.split_once("\nspec:\n").expect("it has a head and a specification");
    let indented = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") };
    let rules: String = read("observability/prometheus/alerts.yaml").lines().map(indented).collect();
    let wanted = format!("{head}\nspec:\n{rules}");
    if std::env::var_os("MILLRACE_WRITE").is_some() {
        fs::write(folder().join(path), &wanted).expect("it can be written");
    } else {
        assert!(
            found == wanted,
            "deploy/{path} is not alerts.yaml any more: run this test with MILLRACE_WRITE=1"
        );
    }
}

#[test]
fn prometheus_reads_the_rules_and_every_expression_of_the_dashboards() {
    let Some(promtool) = promtool() else { return };
    check(&promtool, &["check", "rules", "alerts.yaml"]);
    let from_boards = queries().into_iter().filter(|query| query.at.contains(".json"));
    let rules: Vec<Value> = from_boards
        .enumerate()
        .map(|(number, query)| json!({"record": format!("panel:{number}"), "expr": query.expr, "labels": {"at": query.at}}))
        .collect();
    assert!(rules.len() > 40, "{} expressions only", rules.len());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboards.rules.json");
    // What is JSON is YAML.
    fs::write(&file, json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string())
        .expect("a temporary file");
    check(&promtool, &["check", "rules", "--lint=none", file.to_str().expect("a path in letters")]);
}

/// Several tenants are on one dashboard: a count is that of all who are chosen, whoever counts it twice, and what has a
/// number in each of them is told apart.
#[test]
fn a_count_is_of_all_that_are_chosen_and_a_lane_of_one_is_not_that_of_another() {
    let Some(promtool) = promtool() else { return };
    let board = &dashboards()["millrace-cluster.json"];
    let all = |label: &str| vec![json!({"labels": format!("{{{label}=\"0\"}}"), "value": 7})];
    let each = |label: &str| -> Vec<Value> {
        let of = [("acme", 3), ("millrace", 4)].into_iter();
        of.map(|(namespace, value)| {
            json!({"labels": format!("{{namespace=\"{namespace}\",{label}=\"0\"}}"), "value": value})
        })
        .collect()
    };
    let wanted = [
        ("Orders waiting", all("capability")),
        ("Orders in hand", all("capability")),
        ("Processes", all("capability")),
        ("Slots", all("capability")),
        ("Redelivered and still there", all("capability")),
        ("Runs by status", all("status")),
        ("Streams", all("stream")),
        ("Processes by role", all("role")),
        ("Lag", each("lane")),
        ("Live runs", each("lane")),
        ("Messages in lanes", each("lane")),
    ];
    let (mut series, mut asked) = (BTreeMap::new(), Vec::new());
    for (title, samples) in wanted {
        let panel = panels(board).find(|one| text(one, "title") == title && one["type"] == "timeseries");
        for target in list(panel.expect("it is on the dashboard"), "targets") {
            let expr = resolved(text(target, "expr"));
            for (metric, _) in named(&expr).metrics {
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
    check(&promtool, &["test", "rules", file.to_str().expect("a path in letters")]);
}

#[test]
fn every_alert_fires_when_it_must_and_only_then() {
    let Some(promtool) = promtool() else { return };
    check(&promtool, &["test", "rules", "alerts.test.yaml"]);
}

fn check(promtool: &Path, arguments: &[&str]) {
    let done = Command::new(promtool)
        .args(arguments)
        .current_dir(folder().join("observability/prometheus"))
        .output()
        .expect("promtool starts");
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "promtool {}: {}", arguments.join(" "), String::from_utf8_lossy(&said));
}

/// Prometheus's own checker: the machine's, or that of the package `prometheus`, which is fetched and not installed.
fn promtool() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("promtool"));
    let fetched = Path::new(env!("CARGO_TARGET_TMPDIR")).join("promtool");
    let found = on_path.chain([fetched.clone()]).find(|path| path.is_file());
    found.or_else(|| match fetch(&fetched) {
        Ok(()) => Some(fetched),
        Err(why) => {
            println!("passed over: no promtool ({why}); the Debian package prometheus has it");
            None
        }
    })
}

fn fetch(to: &Path) -> Result<(), String> {
    let place = to.parent().expect("it lies in a folder");
    let lock = File::create(place.join("promtool.lock")).expect("a lock file");
    lock.lock().expect("the lock of the folder");
    if to.is_file() {
        return Ok(());
    }
    let folder = tempfile::tempdir_in(place).expect("a temporary folder");
    // The archive's pieces are written beside their names first, so that a file that is there is whole.
    let script = "apt-get download -q prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool";
    let done = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let unpacked = folder.path().join("usr/bin/promtool");
    if !done.status.success() || !unpacked.is_file() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(said.lines().last().unwrap_or("there is no apt-get").to_owned());
    }
    fs::rename(unpacked, to).map_err(|error| error.to_string())
}
