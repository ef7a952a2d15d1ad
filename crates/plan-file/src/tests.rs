//! Valid and invalid plan files. `bad_plans.txt` has invalid plans with their error messages; `UPDATE_GOLDEN=1` rewrites
//! the messages.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::plan::{
    Budget, BudgetExhaustionPolicy, MAX_PARAMETER_DEPTH, OnFailedDependency, Plan, PlannerConsultMode,
    PlanningMode, ResourceAmounts, ReviewPolicy, TaskLimits,
};
use serde_json::{Value, json};

use super::{LoadError, PlanFile, YamlMistakes, load_plan_file, parse_plan_file, plan_file_schema};

/// Returns the error message for an invalid plan.
fn plan_error_message(text: impl AsRef<[u8]>) -> String {
    match parse_plan_file(text.as_ref()) {
        Ok(plan) => format!("nothing: valid plan with {} tasks", plan.tasks.len()),
        Err(mistake) => mistake.to_string(),
    }
}

fn parse_plan_with_one_task(more: &str) -> Result<PlanFile, YamlMistakes> {
    parse_plan_file(
        format!("tasks:\n  - id: a\n    objective: do it\n    capability: echo\n{more}").as_bytes(),
    )
}

fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plans")
}

#[test]
fn every_bad_plan_is_reported_with_line_and_expectation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bad_plans.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut text = String::new();
    let cases: Vec<&str> = golden.split("### ").filter(|case| !case.trim().is_empty()).collect();
    for case in &cases {
        let (name, body) = case.split_once('\n').unwrap();
        let (plan, _) = body.split_once("=> ").unwrap_or((body, ""));
        let plan = format!("{}\n", plan.trim_end());
        let error = plan_error_message(&plan);
        assert!(!error.starts_with("nothing: "), "{name}: {error}");
        write!(text, "### {name}\n{plan}=> {error}\n\n").unwrap();
    }
    assert!(cases.len() > 50);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    for (should, is) in golden.lines().zip(text.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(text, golden);
}

/// `wrong_fields.txt` has a plan in each line, mostly with one wrong field, and below it the messages.
#[test]
fn every_field_reports_its_wrong_values() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wrong_fields.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut text = String::new();
    for plan in golden.lines().filter(|line| !line.starts_with("=> ")) {
        let message = plan_error_message(plan);
        writeln!(text, "{plan}\n=> {}", message.replace('\n', "\n=> ")).unwrap();
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    for (should, is) in golden.lines().zip(text.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(text, golden);
}

#[test]
fn all_mistakes_of_a_plan_are_reported_at_once() {
    let plan = "taks: 1\nmode: quick\ntasks:\n  - {id: a b, objetive: x, capability: echo}\n  - id: b\n    objective: y\n    \
                capability: echo\n    limits: {run_time: soon}\n    final: perhaps\n    depends_on: [zebra]\n";
    let message = plan_error_message(plan);
    let places: Vec<&str> = message.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["1:1", "2:7", "4:10", "4:15", "8:24", "9:12"], "{message}");
    let many = format!("tasks:\n{}", "  - {id: a, objective: x, capability: echo, colour: red}\n".repeat(30));
    let message = plan_error_message(&many);
    assert!(message.lines().count() == 21 && message.ends_with("and 10 more mistakes"), "{message}");
}

#[test]
fn invalid_utf8_and_yaml_are_reported_with_their_line() {
    assert_eq!(plan_error_message(""), "1:1: there is nothing in the file; a plan has tasks");
    assert_eq!(
        plan_error_message(b"tasks:\n  - id: \xff\n"),
        "2:9: the byte 0xff is not UTF-8; a plan file must be UTF-8 text"
    );
    assert_eq!(
        plan_error_message(b"t\xc3\xa4sks: \xe4"),
        "1:8: the byte 0xe4 is not UTF-8; a plan file must be UTF-8 text"
    );
    assert_eq!(
        plan_error_message("tasks:\n\t- id: a\n"),
        "2:2: invalid YAML: tabs disallowed within this context (block indentation)"
    );
    assert!(
        plan_error_message("tasks: \u{0}\n").starts_with("1:"),
        "{}",
        plan_error_message("tasks: \u{0}\n")
    );
}

#[test]
fn deep_nesting_is_refused() {
    for depth in [100, 1_000, 100_000] {
        let nested = format!("tasks: {}{}\n", "[".repeat(depth), "]".repeat(depth));
        assert!(plan_error_message(&nested).starts_with("1:"), "{}", plan_error_message(&nested));
        let maps = format!("tasks: {}1{}\n", "{a: ".repeat(depth), "}".repeat(depth));
        assert!(plan_error_message(&maps).starts_with("1:"), "{}", plan_error_message(&maps));
        let lists: String = (0..depth.min(1_000)).map(|at| format!("{}-\n", " ".repeat(at))).collect();
        assert!(
            plan_error_message(format!("tasks:\n{lists}")).contains("nested") || depth > 1_000,
            "{}",
            plan_error_message(lists)
        );
    }
    let nested = |depth| format!("    parameters: {{p: {}1{}}}\n", "[".repeat(depth), "]".repeat(depth));
    assert!(parse_plan_with_one_task(&nested(MAX_PARAMETER_DEPTH)).is_ok());
    assert_eq!(
        parse_plan_with_one_task(&nested(MAX_PARAMETER_DEPTH + 1)).unwrap_err().to_string(),
        "5:17: task a: parameters must be nested at most 64 deep"
    );
}

#[test]
fn aliases_are_expanded_up_to_a_limit() {
    let plan = parse_plan_file(
        b"tasks:\n  - {id: a, objective: x, capability: echo, limits: &usual {max_attempts: 2}}\n  \
          - {id: b, objective: x, capability: echo, limits: *usual}\n",
    )
    .unwrap();
    assert_eq!(plan.tasks[1].limits.max_attempts, 2);

    let mut bomb =
        String::from("tasks:\n  - id: a\n    objective: x\n    capability: echo\n    parameters:\n");
    bomb.push_str("      l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let below = vec![format!("*l{}", level - 1); 10].join(", ");
        writeln!(bomb, "      l{level}: &l{level} [{below}]").unwrap();
    }
    let error = plan_error_message(&bomb);
    assert!(error.contains("aliases expand to more than 100000 values"), "{error}");
}

#[test]
fn yaml_and_json_plans_are_equivalent() {
    let yaml = r#"
objective: find out
fail_fast: true
tasks:
  - id: gather
    objective: |
      Read all,
      twice.
    capability: research
    parameters: {terms: [patent, 2, 2.5, true, null], nested: {5: "5"}}
    review: {criteria: [It cites., It is short.]}
    limits: {max_attempts: 5, backoff: 0.25, queue_wait: 1h 30m, run_time: 90s, silence: 45}
  - {id: check, objective: look, capability: echo, review: critic, on_failed_dependency: block}
  - id: write
    objective: write
    capability: producer
    depends_on: [gather, check]
    review: none
    on_failed_dependency: skip
    final: true
"#;
    let json = json!({
        "objective": "find out",
        "fail_fast": true,
        "tasks": [
            {
                "id": "gather",
                "objective": "Read all,\ntwice.\n",
                "capability": "research",
                "parameters": { "terms": ["patent", 2, 2.5, true, null], "nested": { "5": "5" } },
                "review": { "criteria": ["It cites.", "It is short."] },
                "limits": {
                    "max_attempts": 5, "backoff": 0.25, "queue_wait": 5400, "run_time": "1m30s", "silence": 45.0
                },
            },
            {
                "id": "check", "objective": "look", "capability": "echo", "review": "critic",
                "on_failed_dependency": "block"
            },
            {
                "id": "write", "objective": "write", "capability": "producer", "depends_on": ["gather", "check"],
                "review": "none", "on_failed_dependency": "skip", "final": true
            },
        ],
    });
    // The positions differ with the notation.
    let parse = |text: &str| PlanFile { positions: Vec::new(), ..parse_plan_file(text.as_bytes()).unwrap() };
    let plan = parse(yaml);
    assert_eq!(parse(&json.to_string()), plan);
    assert_eq!(parse(&format!("{json:#}").replace("  ", "\t")), plan, "tabs between JSON");
    assert_eq!(parse(&format!("\u{feff}{yaml}")), plan, "a byte order mark");

    assert_eq!((plan.objective.as_deref(), plan.fail_fast), (Some("find out"), true));
    let [gather, check, write] = plan.tasks.as_slice() else { panic!("{plan:?}") };
    assert_eq!(gather.parameters["terms"], json!(["patent", 2, 2.5, true, null]));
    let criteria = vec!["It cites.".to_owned(), "It is short.".to_owned()];
    assert_eq!(gather.review, ReviewPolicy::critic(criteria));
    let limits = TaskLimits {
        max_attempts: 5,
        backoff: Duration::from_millis(250),
        queue_wait: Duration::from_secs(5400),
        run_time: Duration::from_secs(90),
        silence: Duration::from_secs(45),
    };
    assert_eq!(gather.limits, limits);
    assert_eq!(check.review, ReviewPolicy::critic(Vec::new()));
    assert_eq!(check.on_failed_dependency, OnFailedDependency::Ask);
    assert_eq!(write.on_failed_dependency, OnFailedDependency::Skip);
    assert_eq!((write.review.is_none(), write.is_final, write.depends_on.len()), (true, true, 2));
}

#[test]
fn mode_consult_and_budget_are_parsed() {
    let plan = parse_plan_file(
        b"mode: hybrid\nconsult: every_result\n\
          budget:\n  tokens: 200k\n  in: 1.5M\n  calls: 100\n  cost: 2.00\n  time: 30m\n  provider_timeout: 10m\n  steps: 20\n  tasks: 50\n  depth: 10\n  \
          attempt: {tokens: 20k}\n  capabilities: {research: {tokens: 50000, cost: $0.5}}\n  soft: 70\n  final: 20%\n  \
          when_spent: cancel\n\
          tasks:\n  - {id: a, objective: x, capability: echo, budget: {calls: 3, out: 5k}, on_failed_dependency: ask}\n",
    )
    .unwrap();
    let tokens = |tokens| ResourceAmounts { tokens: Some(tokens), ..ResourceAmounts::default() };
    let research = ResourceAmounts { cost_micros: Some(500_000), ..tokens(50_000) };
    let budget = Budget {
        amounts: ResourceAmounts {
            input_tokens: Some(1_500_000),
            model_calls: Some(100),
            cost_micros: Some(2_000_000),
            ..tokens(200_000)
        },
        attempt: tokens(20_000),
        capabilities: [("research".parse().unwrap(), research)].into(),
        wall_time: Some(Duration::from_secs(1800)),
        provider_timeout: Some(Duration::from_secs(600)),
        steps: Some(20),
        tasks: Some(50),
        depth: Some(10),
        soft_percent: 70,
        final_percent: 20,
        when_spent: BudgetExhaustionPolicy::Cancel,
    };
    assert_eq!(
        (plan.mode, plan.consult, plan.budget),
        (Some(PlanningMode::Hybrid), Some(PlannerConsultMode::EveryResult), budget)
    );
    let task = &plan.tasks[0];
    assert_eq!((task.budget.model_calls, task.budget.output_tokens), (Some(3), Some(5_000)));
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Ask);
}

#[test]
fn added_tasks_may_depend_on_existing_ones() {
    let mut plan = Plan::default();
    let existing =
        parse_plan_file(b"tasks:\n  - {id: gather, objective: x, capability: echo, final: true}\n").unwrap();
    for spec in existing.tasks {
        let added = millrace_protocol::plan::Event::Graph(millrace_protocol::plan::GraphEvent::TaskAdded {
            spec: Arc::new(spec),
            ready: true,
        });
        millrace_protocol::plan::apply(&mut plan, &added, jiff::Timestamp::UNIX_EPOCH);
    }
    let message = |text: &str| match super::parse_additional_tasks(text.as_bytes(), &plan) {
        Ok(added) => format!("{} tasks", added.tasks.len()),
        Err(mistake) => mistake.to_string(),
    };
    let task = |more: &str| format!("tasks:\n  - {{id: b, objective: x, capability: echo{more}}}\n");
    assert_eq!(message(&task(", depends_on: [gather]")), "1 tasks");
    assert_eq!(
        message(&task(", depends_on: [gahter]")),
        "2:58: task b depends on gahter, which is not in the plan; did you mean \"gather\"?"
    );
    assert_eq!(
        message(&task("").replace("b,", "gather,")),
        "2:10: duplicate task id gather; every task needs a unique id"
    );
    assert_eq!(
        message(&task(", final: true")),
        "2:52: tasks gather and b are both final; at most one may be"
    );
    let of_run = "can only be set when a run is submitted; only tasks can be added to an existing run";
    assert_eq!(message(&format!("budget: {{tokens: 5}}\n{}", task(""))), format!("1:9: \"budget\" {of_run}"));
    assert_eq!(
        message(&format!("objective: more of it\n{}", task(""))),
        "1 tasks",
        "an objective is allowed"
    );
}

#[test]
fn omitted_fields_have_defaults() {
    let plan = parse_plan_with_one_task("").unwrap();
    let task = &plan.tasks[0];
    assert_eq!((plan.objective, plan.fail_fast), (None, false));
    assert!(
        task.review.is_none() && task.limits.is_default() && task.parameters.is_empty() && !task.is_final
    );
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Cancel);
}

#[test]
fn numbers_in_parameters_are_preserved() {
    let plan = parse_plan_with_one_task(
        "    parameters: {i: 7, n: -7, big: 18446744073709551615, f: 1.0, s: \"7\", d: 2026-11-21}\n",
    );
    let parameters = plan.unwrap().tasks.swap_remove(0).parameters;
    let expected = json!({ "i": 7, "n": -7, "big": u64::MAX, "f": 1.0, "s": "7", "d": "2026-11-21" });
    assert_eq!(serde_json::to_value(parameters).unwrap(), expected);
}

#[test]
fn every_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.yaml");
    let fault = load_plan_file(&path).unwrap_err();
    assert!(
        matches!(&fault, LoadError::Unreadable { .. }) && fault.to_string().contains("plan.yaml"),
        "{fault}"
    );
    std::fs::write(&path, "tasks: []\n").unwrap();
    let expected = format!("{}:1:8: the plan has no tasks", path.display());
    assert_eq!(load_plan_file(&path).unwrap_err().to_string(), expected);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(super::MAX_BYTES + 1).unwrap();
    assert!(matches!(load_plan_file(&path).unwrap_err(), LoadError::TooLarge { bytes: 33_554_433, .. }));
}

#[test]
fn the_examples_are_valid_and_match_the_schema() {
    let schema = plan_file_schema();
    let mut count = 0;
    for entry in std::fs::read_dir(examples_folder()).unwrap() {
        let path = entry.unwrap().path();
        let plan = load_plan_file(&path).unwrap_or_else(|fault| panic!("{fault}"));
        let has_end = plan.mode == Some(PlanningMode::Hybrid) || plan.tasks.iter().any(|task| task.is_final);
        assert!(plan.objective.is_some() && has_end, "{}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(find_schema_violation(&schema, &schema, &value), None, "{}", path.display());
        count += 1;
    }
    assert!(count >= 3);
}

#[test]
fn the_schema_refuses_what_the_parser_refuses() {
    let schema = plan_file_schema();
    let task = json!({ "id": "a", "objective": "x", "capability": "echo" });
    let with = |name: &str, value: Value| {
        let mut task = task.clone();
        task[name] = value;
        json!({ "tasks": [task] })
    };
    let of_run = |name: &str, value: Value| {
        let mut plan = json!({ "tasks": [task] });
        plan[name] = value;
        plan
    };
    let good = [
        with("review", json!("critic")),
        with("review", json!({ "criteria": ["x"] })),
        with(
            "review",
            json!({ "checks": ["citations", { "matches": "^#" }], "models": ["ollama:a"], "sample": 20 }),
        ),
        with("limits", json!({ "run_time": "5m", "backoff": 0 })),
        with("on_failed_dependency", json!("skip")),
        with("on_failed_dependency", json!("ask")),
        with("budget", json!({ "tokens": "20k", "cost": 0.5 })),
        of_run("mode", json!("hybrid")),
        of_run("consult", json!("never")),
        of_run(
            "budget",
            json!({ "tokens": 5, "time": "5m", "attempt": { "in": 1 }, "capabilities": { "x": { "out": 2 } } }),
        ),
        with("parameters", json!({ "any": [1] })),
    ];
    let bad = [
        json!({}),
        json!({ "tasks": [] }),
        json!({ "tasks": [{ "id": "a" }] }),
        with("colour", json!("red")),
        with("id", json!("a b")),
        with("review", json!("citic")),
        with("review", json!({ "critera": [] })),
        with("review", json!({ "checks": ["citation"] })),
        with("limits", json!({ "run_time": true })),
        with("limits", json!({ "max_attempts": 0 })),
        with("on_failed_dependency", json!("skipp")),
        with("final", json!("yes")),
        with("budget", json!({ "time": "5m" })),
        with("budget", json!({ "tokens": 0 })),
        of_run("mode", json!("llm")),
        of_run("consult", json!("always")),
        of_run("budget", json!({ "token": 5 })),
        of_run("budget", json!({ "soft": 0 })),
        of_run("budget", json!({ "steps": 0 })),
        of_run("budget", json!({ "attempt": { "time": "5m" } })),
    ];
    for plan in good {
        assert_eq!(find_schema_violation(&schema, &schema, &plan), None, "{plan}");
        assert!(parse_plan_file(plan.to_string().as_bytes()).is_ok(), "{plan}");
    }
    for plan in bad {
        assert!(find_schema_violation(&schema, &schema, &plan).is_some(), "{plan}");
        assert!(parse_plan_file(plan.to_string().as_bytes()).is_err(), "{plan}");
    }
}

/// Returns where a value violates a schema, for the few keywords that ours uses; `None` if it is valid.
fn find_schema_violation(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let fails = |why: &str| Some(format!("{value} {why} {schema}"));
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        if let Some(why) = find_schema_violation(root, target, value) {
            return Some(why);
        }
    }
    for keyword in ["oneOf", "anyOf"] {
        if let Some(options) = schema[keyword].as_array()
            && !options.iter().any(|option| find_schema_violation(root, option, value).is_none())
        {
            return fails("fits none of");
        }
    }
    let is_of_type = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("the type {other} is new here"),
        None => true,
    };
    let is_named = schema["enum"].as_array().is_none_or(|names| names.contains(value))
        && schema.get("const").is_none_or(|only| only == value);
    let is_in_range =
        schema["minimum"].as_f64().is_none_or(|least| value.as_f64().is_none_or(|n| n >= least))
            && schema["maximum"].as_f64().is_none_or(|most| value.as_f64().is_none_or(|n| n <= most));
    let is_name = schema["pattern"].as_str().is_none_or(|pattern| match pattern {
        r"\S" => value.as_str().is_some_and(|text| !text.trim().is_empty()),
        _ => millrace_protocol::ids::TaskId::new(value.as_str().unwrap_or_default()).is_ok(),
    });
    if !(is_of_type && is_named && is_in_range && is_name) {
        return fails("is not");
    }
    if let Some(items) = value.as_array() {
        if (items.len() as u64) < schema["minItems"].as_u64().unwrap_or(0) {
            return fails("has fewer items than");
        }
        return items.iter().find_map(|item| find_schema_violation(root, schema.get("items")?, item));
    }
    let fields = value.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name)) {
        return fails(&format!("lacks {missing} of"));
    }
    fields.iter().find_map(|(name, value)| match schema["properties"].get(name) {
        Some(schema) => find_schema_violation(root, schema, value),
        None if schema["additionalProperties"] == json!(false) => fails(&format!("has {name} besides")),
        None => None,
    })
}

#[test]
fn times_and_durations_have_one_grammar_and_bounds() {
    for text in ["364d", "2h 30m", "2w", "2020-12-01T09:00:00+14:00"] {
        crate::parse_not_before(text).unwrap();
    }
    for (text, mistake) in [
        ("2026-12-01T09:00:00+25:00", "more than 14 hours"),
        ("9999-12-31T23:59:59Z", "out of range"),
        ("9999-12-01T00:00:00Z", "more than a year away"),
        ("soon", "a time with its offset"),
    ] {
        let error = crate::parse_not_before(text).unwrap_err().to_string();
        assert!(error.contains(mistake), "{text}: {error}");
    }
}
