//! Reviews by checks and by panels against a real NATS server, with real documents, real programs and killed critics.
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Cluster, PATIENCE, await_verdict, count_entries, review_order_for_new_result, start_critic, start_worker,
    with_review_brief,
};
use millrace_protocol::plan::{DocumentSet, ReviewCheck};
use millrace_protocol::result::{ErrorKind, Quotation, Source, SourceKind, TaskError, TaskResult};
use millrace_protocol::work::{JournalEntry, JudgePanel, Order, ReviewBrief, WorkOutcome};
use serde_json::{Value, json};

/// Returns the text of a licence in the repository.
fn read_licence(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences").join(name);
    std::fs::read_to_string(path).unwrap()
}

async fn store_licences(cluster: &Cluster) -> DocumentSet {
    cluster
        .store_documents(&[("MIT.txt", &read_licence("MIT.txt")), ("ISC.txt", &read_licence("ISC.txt"))])
        .await
}

/// A result that quotes a licence correctly.
fn valid_result() -> TaskResult {
    let source = Source {
        id: "S1".into(),
        kind: SourceKind::Document,
        title: "MIT License".into(),
        location: "MIT.txt".into(),
        sha256: None,
        accessed_at: None,
    };
    let text = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and \
                associated documentation files";
    let quotation =
        Quotation { source: "S1".into(), text: text.into(), first_line: 5, last_line: 6, place: None };
    TaskResult {
        summary: "It is free.".into(),
        output: "# MIT\n\nAnybody may use it [S1].".into(),
        sources: vec![source],
        quotations: vec![quotation],
        data: Some(json!({"free": true})),
        ..TaskResult::default()
    }
}

fn command_check(words: &[&str], timeout_s: Option<u32>) -> ReviewCheck {
    ReviewCheck::Command { command: words.iter().map(|word| (*word).into()).collect(), timeout_s }
}

fn shell_check(script: &str) -> ReviewCheck {
    command_check(&["sh", "-c", script], None)
}

async fn await_error(cluster: &Cluster, order: &Order) -> TaskError {
    match cluster.await_outcome(order).await.1 {
        WorkOutcome::Errored(error) => error,
        other @ (WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) | WorkOutcome::Proposed { .. }) => {
            panic!("{other:?}")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_checks_name_the_fault() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
    let documents = store_licences(&cluster).await;
    let checks = vec![
        ReviewCheck::Citations,
        ReviewCheck::Quotations,
        ReviewCheck::Schema(json!({"type": "object", "required": ["free"]})),
        ReviewCheck::Matches("(?m)^# ".into()),
        ReviewCheck::MatchesNot("(?i)draft".into()),
        shell_check("grep -q Anybody"),
    ];
    type ResultMutation = fn(&mut TaskResult);
    let table: [(&str, Option<usize>, &str, ResultMutation); 7] = [
        ("good", None, "", |_| ()),
        ("citations", Some(0), "[S2] names no listed source.", |result| result.output.push_str(" [S2]")),
        ("quotations", Some(1), "is not in MIT.txt, lines 5–6", |result| {
            result.quotations[0].text = "Permission is hereby denied".into();
        }),
        ("schema", Some(2), "It does not fit its schema", |result| result.data = Some(json!({}))),
        ("matches", Some(3), "has no match", |result| result.output = result.output.replace("# ", "")),
        ("matches-not", Some(4), "in line 3 of the output: “DRAFT”", |result| {
            result.output.push_str(" DRAFT")
        }),
        ("command", Some(5), "exit code 1", |result| result.output = result.output.replace("Any", "Some")),
    ];
    for (task, failed, gap_text, spoil) in table {
        let mut result = valid_result();
        spoil(&mut result);
        let brief = ReviewBrief { checks: checks.clone(), ..ReviewBrief::default() };
        let order = with_review_brief(review_order_for_new_result(&cluster, task, &result).await, brief);
        let order = Order { documents: Some(documents.clone()), ..order };
        cluster.publish_order(&order).await;
        let verdict = await_verdict(&cluster, &order).await;
        let failing = verdict.criteria.iter().position(|outcome| !outcome.met);
        assert_eq!((verdict.passed, failing), (failed.is_none(), failed), "{task}: {verdict:#?}");
        assert!(verdict.feedback.unwrap_or_default().contains(gap_text), "{task}");
        assert_eq!(verdict.usage.model_calls, 0);
        assert_eq!(count_entries(&cluster.read_journal(&order).await), (1, checks.len(), 1), "{task}");
    }
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_program_decides_by_exit_code_and_its_output_is_the_reason() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
    let table = [
        (shell_check("cat > /dev/null"), None),
        (shell_check("true"), None),
        (
            shell_check("grep -o '\"summary\":\"It is free.\"' >&2; echo so much; exit 3"),
            Some("\"summary\":\"It is free.\"\nso much (exit code 3)"),
        ),
        (shell_check("exit 1"), Some("It failed with exit code 1 and no output.")),
        (shell_check("kill -KILL $$"), Some("It failed with exit code 137 and no output.")),
        (shell_check("ls /home /root 2>/dev/null; touch /tmp/x && echo x > /usr/x"), Some("exit code")),
        (
            command_check(&["sh", "-c", "echo begun; sleep 60"], Some(1)),
            Some("It timed out after 1 s. begun"),
        ),
    ];
    for (number, (check, gap_text)) in table.into_iter().enumerate() {
        let review = review_order_for_new_result(&cluster, &format!("t{number}"), &valid_result()).await;
        let brief = ReviewBrief { checks: vec![check.clone()], ..ReviewBrief::default() };
        let order = with_review_brief(review, brief);
        let began = Instant::now();
        cluster.publish_order(&order).await;
        let verdict = await_verdict(&cluster, &order).await;
        assert_eq!(verdict.passed, gap_text.is_none(), "{check:?}: {verdict:?}");
        let gap = verdict.criteria[0].gap.clone().unwrap_or_default();
        assert!(gap.contains(gap_text.unwrap_or_default()), "{check:?}: {gap}");
        assert!(began.elapsed() < PATIENCE);
    }
    let review = review_order_for_new_result(&cluster, "missing", &valid_result()).await;
    let checks = vec![command_check(&["no-such-program"], None)];
    let order = with_review_brief(review, ReviewBrief { checks, ..ReviewBrief::default() });
    cluster.publish_order(&order).await;
    let error = await_error(&cluster, &order).await;
    assert_eq!(error.kind, ErrorKind::Tool, "{error}");
    assert!(error.message.contains("no-such-program") && error.message.contains("--check-folder"), "{error}");
    worker.stop().await;
    critic.stop().await;
}

/// A critic in its own process.
struct CriticProcess(Child);

impl CriticProcess {
    fn start(cluster: &Cluster, id: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-critic"));
        command.args(["--nats", &cluster.server.url, "--id", id]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for CriticProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_before_a_crash_is_not_repeated() {
    let cluster = Cluster::start_with_lease(Duration::from_secs(2)).await;
    let worker = start_worker(&cluster);
    let review = review_order_for_new_result(&cluster, "t", &valid_result()).await;
    // A second run of this check would have another output.
    let once = shell_check("od -An -N16 -tx1 /dev/urandom; exit 1");
    let checks = vec![once, shell_check("sleep 3"), shell_check("exit 0")];
    let order = with_review_brief(review, ReviewBrief { checks, ..ReviewBrief::default() });
    cluster.publish_order(&order).await;
    let killed = CriticProcess::start(&cluster, "killed");
    let first = millrace_tests::wait_for_value(PATIENCE, "the outcome of the first check", async || {
        let journal = cluster.read_journal(&order).await;
        journal.into_iter().find_map(|(_, entry)| match entry {
            JournalEntry::Step { number: 1, value, .. } => Some(value),
            JournalEntry::Step { .. }
            | JournalEntry::Claimed { .. }
            | JournalEntry::Parked { .. }
            | JournalEntry::Delegated { .. }
            | JournalEntry::Released { .. }
            | JournalEntry::Note { .. }
            | JournalEntry::Outcome { .. } => None,
        })
    })
    .await;
    drop(killed);
    let other = CriticProcess::start(&cluster, "other");
    let verdict = await_verdict(&cluster, &order).await;
    let value: Value =
        serde_json::from_slice(&cluster.bus.blobs().read_inline_or_stored(&first).await.unwrap()).unwrap();
    assert_eq!(verdict.criteria[0].gap.as_deref(), value["gap"].as_str());
    assert!(!verdict.passed && verdict.criteria[1].met && verdict.criteria[2].met);
    assert_eq!(count_entries(&cluster.read_journal(&order).await), (2, 3, 1));
    drop(other);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panel_is_asked_only_about_results_that_pass_the_checks() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
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
    let were_asked = || ["a", "b", "c"].map(|name| folder.path().join(format!("{name}.ledger")).exists());
    for (task, heading, passes) in [("bad", "^## ", false), ("good", "^# ", true)] {
        let brief = ReviewBrief {
            criteria: vec!["It is short.".into()],
            checks: vec![ReviewCheck::Matches(heading.into())],
            panel: Some(JudgePanel { models: models.clone(), quorum: 2 }),
            evidence: Vec::new(),
        };
        let order =
            with_review_brief(review_order_for_new_result(&cluster, task, &valid_result()).await, brief);
        cluster.publish_order(&order).await;
        let verdict = await_verdict(&cluster, &order).await;
        assert!(!verdict.passed);
        assert_eq!(verdict.criteria[0].met, passes);
        assert_eq!(
            (verdict.opinions.len(), were_asked()),
            if passes { (3, [true; 3]) } else { (0, [false; 3]) }
        );
        assert_eq!(verdict.usage.model_calls, verdict.opinions.len() as u64);
    }
    worker.stop().await;
    critic.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_result_fails_and_an_invalid_check_is_an_error() {
    let cluster = Cluster::start().await;
    let (worker, critic) = (start_worker(&cluster), start_critic(&cluster, "judge"));
    let blank = TaskResult { output: " \n".into(), summary: "all is well".into(), ..TaskResult::default() };
    let brief = ReviewBrief { panel: Some(JudgePanel::default()), ..ReviewBrief::default() };
    let order = with_review_brief(review_order_for_new_result(&cluster, "empty", &blank).await, brief);
    cluster.publish_order(&order).await;
    let verdict = await_verdict(&cluster, &order).await;
    assert!(!verdict.passed && verdict.feedback.is_some() && verdict.usage.model_calls == 0);

    let senseless = vec![ReviewCheck::Matches("(".into())];
    let brief = ReviewBrief { checks: senseless, ..ReviewBrief::default() };
    let order =
        with_review_brief(review_order_for_new_result(&cluster, "senseless", &valid_result()).await, brief);
    cluster.publish_order(&order).await;
    let error = await_error(&cluster, &order).await;
    assert_eq!(error.kind, ErrorKind::InvalidTask, "{error}");
    assert!(
        error.message.contains("the check matches ( can't run: it is not a valid regular expression"),
        "{error}"
    );
    worker.stop().await;
    critic.stop().await;
}
