//! Good plans and bad ones. What is said of each bad one stands in `bad_plans.txt`, behind it; `UPDATE_GOLDEN=1`
//! rewrites what is said.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_protocol::plan::{
    Amounts, Budget, Consult, Limits, MAX_PARAMETER_DEPTH, Mode, OnFailedDependency, Plan, Review, WhenSpent,
};
use serde_json::{Value, json};

use super::{Fault, Mistake, PlanFile, load, parse, schema, tasks};

/// What is said of a text that is no plan.
fn says(text: impl AsRef<[u8]>) -> String {
    match parse(text.as_ref()) {
        Ok(plan) => format!("nothing: it is a plan of {} tasks", plan.tasks.len()),
        Err(mistake) => mistake.to_string(),
    }
}

fn of_one_task(more: &str) -> Result<PlanFile, Mistake> {
    parse(format!("tasks:\n  - id: a\n    objective: do it\n    capability: echo\n{more}").as_bytes())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/plans")
}

#[test]
fn every_bad_plan_is_told_with_its_line_and_what_was_expected() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plan_file/bad_plans.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut text = String::new();
    let cases: Vec<&str> = golden.split("### ").filter(|case| !case.trim().is_empty()).collect();
    for case in &cases {
        let (name, body) = case.split_once('\n').unwrap();
        let (plan, _) = body.split_once("=> ").unwrap_or((body, ""));
        let plan = format!("{}\n", plan.trim_end());
        let said = says(&plan);
        assert!(!said.starts_with("nothing: "), "{name}: {said}");
        write!(text, "### {name}\n{plan}=> {said}\n\n").unwrap();
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

#[test]
fn what_is_no_text_or_no_yaml_is_told_with_its_line() {
    assert_eq!(says(""), "1:1: there is nothing in the file; a plan has tasks");
    assert_eq!(
        says(b"tasks:\n  - id: \xff\n"),
        "2:9: the byte 0xff is no UTF-8; a plan file must be UTF-8 text"
    );
    assert_eq!(says(b"t\xc3\xa4sks: \xe4"), "1:8: the byte 0xe4 is no UTF-8; a plan file must be UTF-8 text");
    assert_eq!(
        says("tasks:\n\t- id: a\n"),
        "2:2: this can't be read as YAML: tabs disallowed within this context (block indentation)"
    );
    assert!(says("tasks: \u{0}\n").starts_with("1:"), "{}", says("tasks: \u{0}\n"));
}

#[test]
fn nests_without_end_are_refused() {
    for depth in [100, 1_000, 100_000] {
        let nested = format!("tasks: {}{}\n", "[".repeat(depth), "]".repeat(depth));
        assert!(says(&nested).starts_with("1:"), "{}", says(&nested));
        let maps = format!("tasks: {}1{}\n", "{a: ".repeat(depth), "}".repeat(depth));
        assert!(says(&maps).starts_with("1:"), "{}", says(&maps));
        let lists: String = (0..depth.min(1_000)).map(|at| format!("{}-\n", " ".repeat(at))).collect();
        assert!(says(format!("tasks:\n{lists}")).contains("nested") || depth > 1_000, "{}", says(lists));
    }
    let nested = |depth| format!("    parameters: {{p: {}1{}}}\n", "[".repeat(depth), "]".repeat(depth));
    assert!(of_one_task(&nested(MAX_PARAMETER_DEPTH)).is_ok());
    assert_eq!(
        of_one_task(&nested(MAX_PARAMETER_DEPTH + 1)).unwrap_err().to_string(),
        "5:17: task a: parameters must be nested at most 64 deep"
    );
}

#[test]
fn aliases_may_spare_words_but_not_grow_without_end() {
    let plan = parse(
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
    let said = says(&bomb);
    assert!(said.contains("aliases stand for more than 100000 values"), "{said}");
}

#[test]
fn a_plan_says_what_it_says_in_yaml_and_in_json() {
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
    let plan = parse(yaml.as_bytes()).unwrap();
    assert_eq!(parse(json.to_string().as_bytes()).unwrap(), plan);
    assert_eq!(parse(format!("{json:#}").replace("  ", "\t").as_bytes()).unwrap(), plan, "tabs between JSON");
    assert_eq!(parse(format!("\u{feff}{yaml}").as_bytes()).unwrap(), plan, "a byte order mark");

    assert_eq!((plan.objective.as_deref(), plan.fail_fast), (Some("find out"), true));
    let [gather, check, write] = plan.tasks.as_slice() else { panic!("{plan:?}") };
    assert_eq!(gather.parameters["terms"], json!(["patent", 2, 2.5, true, null]));
    let criteria = vec!["It cites.".to_owned(), "It is short.".to_owned()];
    assert_eq!(gather.review, Review::critic(criteria));
    let limits = Limits {
        max_attempts: 5,
        backoff: Duration::from_millis(250),
        queue_wait: Duration::from_secs(5400),
        run_time: Duration::from_secs(90),
        silence: Duration::from_secs(45),
    };
    assert_eq!(gather.limits, limits);
    assert_eq!(check.review, Review::critic(Vec::new()));
    assert_eq!(check.on_failed_dependency, OnFailedDependency::Ask);
    assert_eq!(write.on_failed_dependency, OnFailedDependency::Skip);
    assert_eq!((write.review.is_none(), write.is_final, write.depends_on.len()), (true, true, 2));
}

#[test]
fn a_plan_says_who_makes_it_and_what_it_may_use() {
    let plan = parse(
        b"mode: hybrid\nconsult: every_result\n\
          budget:\n  tokens: 200k\n  in: 1.5M\n  calls: 100\n  cost: 2.00\n  time: 30m\n  steps: 20\n  tasks: 50\n  depth: 10\n  \
          attempt: {tokens: 20k}\n  capabilities: {research: {tokens: 50000, cost: $0.5}}\n  soft: 70\n  final: 20%\n  \
          when_spent: cancel\n\
          tasks:\n  - {id: a, objective: x, capability: echo, budget: {calls: 3, out: 5k}, on_failed_dependency: ask}\n",
    )
    .unwrap();
    let tokens = |tokens| Amounts { tokens: Some(tokens), ..Amounts::default() };
    let research = Amounts { cost_micros: Some(500_000), ..tokens(50_000) };
    let budget = Budget {
        amounts: Amounts {
            input_tokens: Some(1_500_000),
            model_calls: Some(100),
            cost_micros: Some(2_000_000),
            ..tokens(200_000)
        },
        attempt: tokens(20_000),
        capabilities: [("research".parse().unwrap(), research)].into(),
        wall_time: Some(Duration::from_secs(1800)),
        steps: Some(20),
        tasks: Some(50),
        depth: Some(10),
        soft_percent: 70,
        final_percent: 20,
        when_spent: WhenSpent::Cancel,
    };
    assert_eq!(
        (plan.mode, plan.consult, plan.budget),
        (Some(Mode::Hybrid), Some(Consult::EveryResult), budget)
    );
    let task = &plan.tasks[0];
    assert_eq!((task.budget.model_calls, task.budget.output_tokens), (Some(3), Some(5_000)));
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Ask);
}

#[test]
fn tasks_for_a_run_under_way_may_depend_on_those_that_it_has() {
    let mut plan = Plan::default();
    let there = parse(b"tasks:\n  - {id: gather, objective: x, capability: echo, final: true}\n").unwrap();
    for spec in there.tasks {
        let added = millrace_protocol::plan::Event::TaskAdded { spec, ready: true };
        millrace_protocol::plan::apply(&mut plan, &added, jiff::Timestamp::UNIX_EPOCH);
    }
    let says = |text: &str| match super::more(text.as_bytes(), &plan) {
        Ok(tasks) => format!("{} tasks", tasks.len()),
        Err(mistake) => mistake.to_string(),
    };
    let task = |more: &str| format!("tasks:\n  - {{id: b, objective: x, capability: echo{more}}}\n");
    assert_eq!(says(&task(", depends_on: [gather]")), "1 tasks");
    assert_eq!(
        says(&task(", depends_on: [gahter]")),
        "2:58: task b depends on gahter, which is not in the plan; did you mean \"gather\"?"
    );
    assert_eq!(
        says(&task("").replace("b,", "gather,")),
        "2:10: task gather is there twice; every task needs an id of its own"
    );
    assert_eq!(says(&task(", final: true")), "2:52: tasks gather and b are both final; at most one may be");
    let of_run = "is said when a run begins; only tasks can be added to one that is under way";
    assert_eq!(says(&format!("budget: {{tokens: 5}}\n{}", task(""))), format!("1:9: \"budget\" {of_run}"));
    assert_eq!(
        says(&format!("objective: more of it\n{}", task(""))),
        "1 tasks",
        "what it is for may be said"
    );
}

#[test]
fn what_is_left_away_has_its_default() {
    let plan = of_one_task("").unwrap();
    let task = &plan.tasks[0];
    assert_eq!((plan.objective, plan.fail_fast), (None, false));
    assert!(
        task.review.is_none() && task.limits.is_default() && task.parameters.is_empty() && !task.is_final
    );
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Cancel);
}

#[test]
fn numbers_in_parameters_stay_what_they_are() {
    let plan = of_one_task(
        "    parameters: {i: 7, n: -7, big: 18446744073709551615, f: 1.0, s: \"7\", d: 2026-11-21}\n",
    );
    let parameters = plan.unwrap().tasks.swap_remove(0).parameters;
    let expected = json!({ "i": 7, "n": -7, "big": u64::MAX, "f": 1.0, "s": "7", "d": "2026-11-21" });
    assert_eq!(serde_json::to_value(parameters).unwrap(), expected);
}

#[test]
fn the_file_is_named_in_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.yaml");
    let fault = load(&path).unwrap_err();
    assert!(matches!(&fault, Fault::Unreadable { .. }) && fault.to_string().contains("plan.yaml"), "{fault}");
    std::fs::write(&path, "tasks: []\n").unwrap();
    let expected = format!("{}:1:8: the plan has no tasks", path.display());
    assert_eq!(load(&path).unwrap_err().to_string(), expected);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(super::MAX_BYTES + 1).unwrap();
    assert!(matches!(load(&path).unwrap_err(), Fault::TooLarge { bytes: 33_554_433, .. }));
}

#[test]
fn the_examples_are_plans_and_fit_the_schema() {
    let schema = schema();
    let mut count = 0;
    for entry in std::fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let plan = load(&path).unwrap_or_else(|fault| panic!("{fault}"));
        let has_end = plan.mode == Some(Mode::Hybrid) || plan.tasks.iter().any(|task| task.is_final);
        assert!(plan.objective.is_some() && has_end, "{}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(misfit(&schema, &schema, &value), None, "{}", path.display());
        count += 1;
    }
    assert!(count >= 3);
}

#[test]
fn the_schema_knows_the_fields_that_the_reader_knows() {
    let schema = schema();
    let names = |of: &Value| -> Vec<String> {
        let mut names: Vec<_> = of["properties"].as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    };
    let sorted = |known: &[&str]| {
        let mut known: Vec<_> = known.iter().map(|name| (*name).to_owned()).collect();
        known.sort();
        known
    };
    assert_eq!(names(&schema), sorted(&super::FIELDS));
    assert_eq!(names(&schema["$defs"]["TaskSpec"]), sorted(&tasks::FIELDS));
    assert_eq!(names(&schema["$defs"]["Limits"]), sorted(&tasks::LIMITS));
    assert_eq!(names(&schema["properties"]["budget"]), sorted(&super::budget::FIELDS));
    assert_eq!(names(&schema["$defs"]["Amounts"]), sorted(&crate::budget::AMOUNTS));
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema = schema();
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
        assert_eq!(misfit(&schema, &schema, &plan), None, "{plan}");
        assert!(parse(plan.to_string().as_bytes()).is_ok(), "{plan}");
    }
    for plan in bad {
        assert!(misfit(&schema, &schema, &plan).is_some(), "{plan}");
        assert!(parse(plan.to_string().as_bytes()).is_err(), "{plan}");
    }
}

/// Where a value does not fit a schema, by the few keywords that ours uses. `None`: it fits.
fn misfit(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let fails = |why: &str| Some(format!("{value} {why} {schema}"));
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        if let Some(why) = misfit(root, target, value) {
            return Some(why);
        }
    }
    for keyword in ["oneOf", "anyOf"] {
        if let Some(options) = schema[keyword].as_array()
            && !options.iter().any(|option| misfit(root, option, value).is_none())
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
        return items.iter().find_map(|item| misfit(root, schema.get("items")?, item));
    }
    let fields = value.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name)) {
        return fails(&format!("lacks {missing} of"));
    }
    fields.iter().find_map(|(name, value)| match schema["properties"].get(name) {
        Some(schema) => misfit(root, schema, value),
        None if schema["additionalProperties"] == json!(false) => fails(&format!("has {name} besides")),
        None => None,
    })
}
