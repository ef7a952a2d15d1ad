//! Reviews by checks and by panels, against a real NATS server: real documents, real programs, and critics that are killed.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_protocol::plan::{DocumentSet, ReviewCheck};
use millrace_protocol::result::{ErrorKind, Quotation, Source, SourceKind, TaskError, TaskResult};
use millrace_protocol::work::{Entry, Order, Outcome, Panel};
use serde_json::{Value, json};
use support::{Cluster, PATIENCE, counts, critic, review_of, verdict, worker};

/// The text of a licence that comes with the repository.
fn licence(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences").join(name);
    std::fs::read_to_string(path).unwrap()
}

async fn licences(cluster: &Cluster) -> DocumentSet {
    cluster.documents(&[("MIT.txt", &licence("MIT.txt")), ("ISC.txt", &licence("ISC.txt"))]).await
}

/// A result that quotes a licence as it stands.
fn good() -> TaskResult {
    let source = Source {
        id: "S1".into(),
        kind: SourceKind::Document,
        title: "MIT License".into(),
        location: "MIT.txt".into(),
        sha256: None,
    };
    let text = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and \
                associated documentation files";
    let quotation = Quotation { source: "S1".into(), text: text.into(), first_line: 5, last_line: 6 };
    TaskResult {
        summary: "It is free.".into(),
        output: "# MIT\n\nAnybody may use it [S1].".into(),
        sources: vec![source],
        quotations: vec![quotation],
        data: Some(json!({"free": true})),
        ..TaskResult::default()
    }
}

fn command(words: &[&str], timeout_s: Option<u32>) -> ReviewCheck {
    ReviewCheck::Command { command: words.iter().map(|word| (*word).into()).collect(), timeout_s }
}

fn sh(script: &str) -> ReviewCheck {
    command(&["sh", "-c", script], None)
}

async fn error(cluster: &Cluster, order: &Order) -> TaskError {
    match cluster.outcome(order).await.1 {
        Outcome::Errored(error) => error,
        other @ (Outcome::Finished { .. } | Outcome::Judged(_) | Outcome::Proposed { .. }) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_judge_by_themselves_and_name_what_is_wrong() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    let documents = licences(&cluster).await;
    let checks = vec![
        ReviewCheck::Citations,
        ReviewCheck::Quotations,
        ReviewCheck::Schema(json!({"type": "object", "required": ["free"]})),
        ReviewCheck::Matches("(?m)^# ".into()),
        ReviewCheck::MatchesNot("(?i)draft".into()),
        sh("grep -q Anybody"),
    ];
    type Spoil = fn(&mut TaskResult);
    let table: [(&str, Option<usize>, &str, Spoil); 7] = [
        ("good", None, "", |_| ()),
        ("citations", Some(0), "[S2] names no listed source.", |result| result.output.push_str(" [S2]")),
        ("quotations", Some(1), "does not stand in MIT.txt, lines 5–6", |result| {
            result.quotations[0].text = "Permission is hereby denied".into();
        }),
        ("schema", Some(2), "It does not fit its schema", |result| result.data = Some(json!({}))),
        ("matches", Some(3), "has no place", |result| result.output = result.output.replace("# ", "")),
        ("matches-not", Some(4), "in line 3 of the output: “DRAFT”", |result| {
            result.output.push_str(" DRAFT")
        }),
        ("command", Some(5), "exit code 1", |result| result.output = result.output.replace("Any", "Some")),
    ];
    for (task, failed, told, spoil) in table {
        let mut result = good();
        spoil(&mut result);
        let order = Order {
            checks: checks.clone(),
            documents: Some(documents.clone()),
            ..review_of(&cluster, task, &result).await
        };
        cluster.offer(&order).await;
        let verdict = verdict(&cluster, &order).await;
        let failing = verdict.criteria.iter().position(|outcome| !outcome.met);
        assert_eq!((verdict.passed, failing), (failed.is_none(), failed), "{task}: {verdict:#?}");
        assert!(verdict.feedback.unwrap_or_default().contains(told), "{task}");
        assert_eq!(verdict.usage.model_calls, 0);
        assert_eq!(counts(&cluster.journal(&order).await), (1, checks.len(), 1), "{task}");
    }
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_judges_by_how_it_ends_and_what_it_says_is_the_reason() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    let table = [
        (sh("cat > /dev/null"), None),
        (sh("true"), None),
        (
            sh("grep -o '\"summary\":\"It is free.\"' >&2; echo so much; exit 3"),
            Some("\"summary\":\"It is free.\"\nso much (exit code 3)"),
        ),
        (sh("exit 1"), Some("It ended with exit code 1 and said nothing.")),
        (sh("kill -KILL $$"), Some("It ended with exit code 137 and said nothing.")),
        (sh("ls /home /root 2>/dev/null; touch /tmp/x && echo x > /usr/x"), Some("exit code")),
        (command(&["sh", "-c", "echo begun; sleep 60"], Some(1)), Some("It did not end within 1 s. begun")),
    ];
    for (number, (check, told)) in table.into_iter().enumerate() {
        let review = review_of(&cluster, &format!("t{number}"), &good()).await;
        let order = Order { checks: vec![check.clone()], ..review };
        let began = Instant::now();
        cluster.offer(&order).await;
        let verdict = verdict(&cluster, &order).await;
        assert_eq!(verdict.passed, told.is_none(), "{check:?}: {verdict:?}");
        let gap = verdict.criteria[0].gap.clone().unwrap_or_default();
        assert!(gap.contains(told.unwrap_or_default()), "{check:?}: {gap}");
        assert!(began.elapsed() < PATIENCE);
    }
    let review = review_of(&cluster, "missing", &good()).await;
    let order = Order { checks: vec![command(&["no-such-program"], None)], ..review };
    cluster.offer(&order).await;
    let error = error(&cluster, &order).await;
    assert_eq!(error.kind, ErrorKind::Tool, "{error}");
    assert!(error.message.contains("no-such-program") && error.message.contains("--check-folder"), "{error}");
    worker.stop().await;
    critic.stop().await;
}

/// A critic in a process of its own.
struct Apart(Child);

impl Apart {
    fn start(cluster: &Cluster, id: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-critic"));
        command.args(["--nats", &cluster.server.url, "--id", id]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_critic_that_is_killed_behind_a_check_leaves_its_outcome_and_it_is_not_made_twice() {
    let cluster = Cluster::with_lease(Duration::from_secs(2)).await;
    let worker = worker(&cluster);
    let review = review_of(&cluster, "t", &good()).await;
    // Whoever runs it again finds something else.
    let once = sh("od -An -N16 -tx1 /dev/urandom; exit 1");
    let order = Order { checks: vec![once, sh("sleep 3"), sh("exit 0")], ..review };
    cluster.offer(&order).await;
    let killed = Apart::start(&cluster, "killed");
    let first = millrace_tests::eventually(PATIENCE, "the outcome of the first check", async || {
        let journal = cluster.journal(&order).await;
        journal.into_iter().find_map(|(_, entry)| match entry {
            Entry::Step { number: 1, value, .. } => Some(value),
            Entry::Step { .. }
            | Entry::Claimed { .. }
            | Entry::Released { .. }
            | Entry::Note { .. }
            | Entry::Outcome { .. } => None,
        })
    })
    .await;
    drop(killed);
    let other = Apart::start(&cluster, "other");
    let verdict = verdict(&cluster, &order).await;
    let value: Value = serde_json::from_slice(&cluster.bus.blobs().resolve(&first).await.unwrap()).unwrap();
    assert_eq!(verdict.criteria[0].gap.as_deref(), value["gap"].as_str());
    assert!(!verdict.passed && verdict.criteria[1].met && verdict.criteria[2].met);
    assert_eq!(counts(&cluster.journal(&order).await), (2, 3, 1));
    drop(other);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panel_judges_what_stands_the_checks_and_nobody_is_asked_about_the_rest() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    let folder = tempfile::tempdir().unwrap();
    let model = |name: &str, passed: bool| {
        let answer = json!({
            "task_id": "good",
            "criteria": [{"criterion": "C1", "met": passed}],
            "reasoning": name,
            "feedback": (!passed).then_some("shorter"),
            "passed": passed,
        });
        let path = folder.path().join(format!("{name}.yaml"));
        let script = json!({"rules": [{"reply": {"answer": answer}}], "ledger": format!("{name}.ledger")});
        std::fs::write(&path, script.to_string()).unwrap();
        format!("script:{}", path.display())
    };
    let models = vec![model("a", true), model("b", false), model("c", false)];
    let asked = || ["a", "b", "c"].map(|name| folder.path().join(format!("{name}.ledger")).exists());
    for (task, heading, passes) in [("bad", "^## ", false), ("good", "^# ", true)] {
        let order = Order {
            criteria: vec!["It is short.".into()],
            checks: vec![ReviewCheck::Matches(heading.into())],
            panel: Some(Panel { models: models.clone(), quorum: 2 }),
            ..review_of(&cluster, task, &good()).await
        };
        cluster.offer(&order).await;
        let verdict = verdict(&cluster, &order).await;
        assert!(!verdict.passed);
        assert_eq!(verdict.criteria[0].met, passes);
        assert_eq!((verdict.opinions.len(), asked()), if passes { (3, [true; 3]) } else { (0, [false; 3]) });
        assert_eq!(verdict.usage.model_calls, verdict.opinions.len() as u64);
    }
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_result_never_passes_and_a_check_that_makes_no_sense_is_no_rejection() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (worker(&cluster), critic(&cluster, "judge"));
    let blank = TaskResult { output: " \n".into(), summary: "all is well".into(), ..TaskResult::default() };
    let order = Order { panel: Some(Panel::default()), ..review_of(&cluster, "empty", &blank).await };
    cluster.offer(&order).await;
    let verdict = verdict(&cluster, &order).await;
    assert!(!verdict.passed && verdict.feedback.is_some() && verdict.usage.model_calls == 0);

    let senseless = vec![ReviewCheck::Matches("(".into())];
    let order = Order { checks: senseless, ..review_of(&cluster, "senseless", &good()).await };
    cluster.offer(&order).await;
    let error = error(&cluster, &order).await;
    assert_eq!(error.kind, ErrorKind::InvalidTask, "{error}");
    assert!(
        error.message.contains("the check matches ( can't be made: it is no regular expression"),
        "{error}"
    );
    worker.stop().await;
    critic.stop().await;
}
