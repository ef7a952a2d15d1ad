//! The verification of a given text as a task: its verdicts, its journal and its limits.

use millrace_agent::turn::{JournalStep, MemoryHost};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{ErrorKind, Finder, StatementVerdict, TaskResult};

use crate::answers::support::ScriptedTask;

const TEXT: &str = "# The Tarn\n\nThe Tarn has a steel case [tarn.md:3]. It weighs 9.7 kg. Its battery is [good](tarn.md#L5). It is light.\n";

fn task() -> ScriptedTask<'static> {
    let mut task = ScriptedTask::research("small", "Verify it", Vec::new());
    task.verifier = Some(vec![("It is light", 0.2), ("battery is good", 0.8), ("steel case", 0.9)]);
    task
}

fn verdicts(result: &TaskResult) -> Vec<StatementVerdict> {
    result.statements.iter().map(|one| one.verdict).collect()
}

#[tokio::test]
async fn given_text_gets_verdicts_and_footnotes() {
    use StatementVerdict::{Supported, Unsupported};
    let mut work = task();
    let result = work.verify(TEXT).await.unwrap();
    assert_eq!(verdicts(&result), [Supported, Unsupported, Supported, Unsupported]);
    assert_eq!(result.statements[1].found_by, Some(Finder::Figure));
    assert_eq!(result.statements[2].lines[0].first_line, 5);
    assert!(result.summary.starts_with("2 of 4 statements verified (2 by model"), "{}", result.summary);
    let marked =
        TEXT.trim_end().replace("9.7 kg.", "9.7 kg.[^v1]").replace("It is light.", "It is light.[^v2]");
    assert!(result.output.starts_with(&marked), "{}", result.output);
    assert!(result.output.contains("\n[^v1]: not supported: No source has “9.7 kg”.\n"), "{}", result.output);
    // 32 claims of the probe and three statements: no request for an answer.
    assert_eq!((result.usage.model_calls, work.verifier_requests()), (32 + 3, 32 + 3));
    assert_eq!(work.requests().len(), work.verifier_requests());
}

#[tokio::test]
async fn takeover_after_any_verdict_asks_nothing_again() {
    let mut whole = task();
    let expected = whole.verify(TEXT).await.unwrap();
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!((names.len(), names[0]), (4, "verifier"), "{names:?}");
    assert!(names[1..].iter().all(|name| name.starts_with("verdict.0.")), "{names:?}");
    for taken in 0..=steps.len() {
        let mut work = task();
        work.journal = MemoryHost::with_steps(steps[..taken].to_vec());
        let result = work.verify(TEXT).await.unwrap();
        // The name of the script's file differs.
        let found = |result: &TaskResult| -> Vec<_> {
            let statements = result.statements.iter();
            statements.map(|one| (one.start, one.verdict, one.probability, one.lines.clone())).collect()
        };
        assert_eq!(found(&result), found(&expected), "after {taken} steps");
        assert_eq!(result.usage, expected.usage, "after {taken} steps");
        let asked = if taken == 0 { 32 + 3 } else { 4 - taken };
        assert_eq!(work.verifier_requests(), asked, "after {taken} steps");
    }
}

#[tokio::test]
async fn verification_keeps_within_its_reservation() {
    let mut work = task();
    work.allowance = ResourceAmounts { model_calls: Some(20), ..ResourceAmounts::default() };
    let result = work.verify(TEXT).await.unwrap();
    assert_eq!((result.usage.model_calls, work.verifier_requests()), (0, 0));
    let open = &result.statements[0];
    assert_eq!(open.verdict, StatementVerdict::Unverified);
    assert!(open.reason.contains("does not pay for its verdict"), "{}", open.reason);
    assert_eq!(result.statements[1].verdict, StatementVerdict::Unsupported, "code needs no budget");
}

#[tokio::test]
async fn text_without_documents_or_statements_asks_no_model() {
    let mut work = task();
    assert_eq!(work.verify("# A title\n").await.unwrap().summary, "no statements to verify");
    work.documents = Vec::new();
    let error = work.verify(TEXT).await.unwrap_err();
    let millrace_agent::session::SessionError::Task(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, ErrorKind::InvalidTask);
    assert!(error.message.contains("submit the text with its documents"), "{}", error.message);
    assert_eq!(work.verifier_requests(), 0);
}
