//! Answers of small and strong models, by scripted replies: labels of lines, quotations that stand elsewhere, checks of
//! content, bounded forms, and prompts without what the agent can't use.

pub(crate) mod support;

use millrace_agent::model::{Message, Request};
use millrace_agent::session::SessionError;
use millrace_agent::turn::{JournalStep, MemoryHost};
use millrace_protocol::result::{
    Finder, StatementVerdict, TaskResult, VerificationPolicy, VerifiedStatement,
};
use serde_json::{Value, json};

use support::{PRODUCER, RESEARCH, SKUA, ScriptedTask, TARN};

fn last_user_message(request: &Request) -> &str {
    let text = request.messages.iter().rev().find_map(|message| match message {
        Message::User { text } => Some(text.as_str()),
        Message::Assistant { .. } | Message::Tool(_) => None,
    });
    text.unwrap()
}

fn first_message(request: &Request) -> &str {
    let Message::User { text } = &request.messages[0] else { panic!("the task comes first") };
    text
}

fn labelled(output: &str, citations: &[&str]) -> Value {
    json!({"output": output, "citations": citations})
}

fn quoted(output: &str, document: &str, text: &str) -> Value {
    let quotation = json!({"document": document, "first_line": 1, "last_line": 1, "text": text});
    json!({"quotations": [quotation], "output": output, "summary": "s"})
}

#[tokio::test]
async fn a_small_model_cites_lines_by_their_labels() {
    let answer = labelled("The Tarn 20 weighs 1.4 kg [P2:4].", &["P2:4", "P2:3"]);
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", vec![answer]);
    let result = work.run().await.unwrap();
    assert!(result.output.starts_with("The Tarn 20 weighs 1.4 kg [S1]."), "{}", result.output);
    assert_eq!(result.summary, "The Tarn 20 weighs 1.4 kg [S1].");
    assert_eq!(result.quotations[0].text, "It weighs 1.4 kg.");
    assert_eq!((result.sources[0].location.as_str(), result.quotations[0].first_line), ("tarn.md", 4));
    let requests = work.requests();
    assert_eq!(requests.len(), 1);
    let task = first_message(&requests[0]);
    assert!(task.starts_with("Question: How much does the Tarn 20 weigh?\n"), "{task}");
    assert!(task.contains("\nP2: tarn.md\n| [P2:1] # Tarn 20\n"), "{task}");
    assert!(task.contains("| [P2:4] It weighs 1.4 kg.\n"), "{task}");
    assert!(!task.contains('{') && !task.contains("It is part of"), "{task}");
    assert!(!task.contains("Documents (2)"), "it can't read them: {task}");
    assert_eq!(requests[0].tools, vec![], "what it could look up is in the prompt");
}

#[tokio::test]
async fn the_form_of_a_small_model_is_bounded() {
    let answer = labelled("It weighs 1.4 kg [P2:4].", &[]);
    let mut work = ScriptedTask::research("small", "How much does it weigh?", vec![answer]);
    work.run().await.unwrap();
    let request = work.requests().remove(0);
    assert!(request.max_output_tokens <= 1_500);
    let form = &request.answer.unwrap().schema;
    assert_eq!(form["required"], json!(["output"]));
    assert!(form["properties"]["output"]["maxLength"].is_u64());
    let names: Vec<&String> = form["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["output", "notes", "answered", "other_words"], "the answer comes first");
}

#[tokio::test]
async fn the_other_form_is_accepted_from_either_model() {
    let question = "How much does the Tarn 20 weigh?";
    for (ability, answer) in [
        ("small", quoted("It weighs 1.4 kg [1].", "tarn.md", "It weighs 1.4 kg.")),
        ("strong", labelled("It weighs 1.4 kg [tarn.md:4].", &["tarn.md:4"])),
    ] {
        let mut work = ScriptedTask::research(ability, question, vec![answer]);
        assert_eq!(work.run().await.unwrap().quotations[0].text, "It weighs 1.4 kg.", "{ability}");
        assert_eq!(work.requests().len(), 1, "{ability}");
    }
}

#[tokio::test]
async fn words_under_the_wrong_document_are_found_in_the_right_one() {
    let answer = quoted("It weighs 1.4 kg [1].", "skua.md", "It weighs 1.4 kg.");
    let mut work = ScriptedTask::research("strong", "How much does the Tarn 20 weigh?", vec![answer]);
    let result = work.run().await.unwrap();
    assert_eq!((result.sources[0].location.as_str(), result.quotations[0].first_line), ("tarn.md", 4));
    assert_eq!(work.requests().len(), 1, "no correction");
}

#[tokio::test]
async fn a_correction_names_the_nearest_line_only() {
    let wrong = quoted("It weighs 2 kg [1].", "tarn.md", "It weighs 2 kg, they say.");
    let right = quoted("It weighs 1.4 kg [1].", "tarn.md", "It weighs 1.4 kg.");
    let mut work = ScriptedTask::research("strong", "How much does the Tarn 20 weigh?", vec![wrong, right]);
    work.run().await.unwrap();
    let requests = work.requests();
    let correction = last_user_message(&requests[1]);
    assert!(correction.contains("the nearest line is 4: “It weighs 1.4 kg.”"), "{correction}");
    assert!(!correction.contains("steel") && !correction.contains("battery"), "{correction}");
    assert_eq!(requests[1].tools, vec![], "only the answer is possible");
}

#[tokio::test]
async fn statement_gets_the_lines_that_were_found_for_it() {
    let wrong = labelled("It weighs 1.4 kg [P7:1]. The Tarn has a steel case.", &["P7:1"]);
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", vec![wrong]);
    work.verifier = Some(vec![("The Tarn has a steel case.", 0.9)]);
    let result = work.run().await.unwrap();
    assert_eq!(work.requests().len() - work.verifier_requests(), 2);
    assert_eq!(result.output, "It weighs 1.4 kg [S1]. The Tarn has a steel case [S1].");
    let lines: Vec<u32> = result.quotations.iter().map(|quotation| quotation.first_line).collect();
    assert_eq!(lines[0], 4);
    let verdicts: Vec<StatementVerdict> = result.statements.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [StatementVerdict::Supported; 2]);
}

#[tokio::test]
async fn answer_that_cites_nothing_is_sent_back_once_if_it_had_tools() {
    // An answer from passages gets the lines that say it.
    let without = json!({"output": "It weighs 1.4 kg."});
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", vec![without]);
    assert_eq!(work.run().await.unwrap().output, "It weighs 1.4 kg [S1].");
    assert_eq!(work.requests().len(), 1);
}

#[tokio::test]
async fn invented_figure_is_sent_back_once_and_then_marked() {
    let question = "How much does the Tarn 20 weigh?";
    let invented = json!({"output": "It weighs 9.7 kg [P2:4]."});
    let right = json!({"output": "It weighs 1.4 kg."});
    let strong = |output: &str| {
        let quotation = json!({"document": "tarn.md", "first_line": 4, "last_line": 4});
        json!({"quotations": [quotation], "output": output, "summary": "s"})
    };
    let of_strong = vec![strong("It weighs 9.7 kg [1]."), strong("It weighs 1.4 kg [1].")];
    for (ability, replies) in [("small", vec![invented.clone(), right]), ("strong", of_strong)] {
        let mut work = ScriptedTask::research(ability, question, replies);
        let result = work.run().await.unwrap();
        assert_eq!((result.output.as_str(), result.answered), ("It weighs 1.4 kg [S1].", None));
        let correction = last_user_message(&work.requests()[1]).to_owned();
        assert!(correction.contains("“It weighs 9.7 kg.”: No source has “9.7 kg”."), "{correction}");
    }
    let mut work = ScriptedTask::research("small", question, vec![invented]);
    let result = work.run().await.unwrap();
    assert_eq!(work.requests().len(), 2);
    assert_eq!(result.output, "It weighs 9.7 kg [S1].");
    let one = &result.statements[0];
    assert_eq!((one.verdict, &one.found_by), (StatementVerdict::Unsupported, &Some(Finder::Figure)));
    // The one that is delivered has the verdict as a footnote.
    let invented = json!({"output": "It weighs 9.7 kg [P2:4]."});
    let mut work =
        ScriptedTask { is_final: true, ..ScriptedTask::research("small", question, vec![invented]) };
    let output = work.run().await.unwrap().output;
    assert_eq!(output, "It weighs 9.7 kg [S1].[^v1]\n\n[^v1]: not supported: No source has “9.7 kg”.\n");
}

#[tokio::test]
async fn footnotes_are_in_the_language_of_the_question() {
    for (question, invented, footnote) in [
        ("Wie schwer ist der Tarn 20?", "Er wiegt 9,7 kg", "nicht belegt: Keine Quelle enthält „9,7 kg“."),
        ("Tarn 20 有多重？", "它重 9.7 kg", "无依据: 没有来源包含“9.7 kg”。"),
    ] {
        let answer = json!({"output": format!("{invented} [P2:4].")});
        let mut work =
            ScriptedTask { is_final: true, ..ScriptedTask::research("small", question, vec![answer]) };
        let result = work.run().await.unwrap();
        assert_eq!(result.output, format!("{invented} [S1].[^v1]\n\n[^v1]: {footnote}\n"));
        assert!(footnote.ends_with(&result.statements[0].reason), "{}", result.statements[0].reason);
    }
}

#[tokio::test]
async fn policy_decides_what_becomes_of_statements_without_support() {
    let question = "What is the Tarn 20 like?";
    let answer =
        json!({"output": "It weighs 9.7 kg [P2:4]. The Tarn has a steel case [P2:3]. It is light [P2:4]."});
    let verdicts = [("The Tarn has a steel case.", 0.9), ("It is light.", 0.2)];
    let task = |policy, capability, is_final| ScriptedTask {
        capability,
        is_final,
        policy,
        verifier: Some(verdicts.to_vec()),
        ..ScriptedTask::research("small", question, vec![answer.clone()])
    };
    let marked = task(None, RESEARCH, true).run().await.unwrap();
    assert!(marked.output.starts_with("It weighs 9.7 kg [S1].[^v1] The Tarn has"), "{}", marked.output);

    // What the sources refute is taken out, of the summary too; what they do not say is marked.
    let removed = task(Some(VerificationPolicy::Remove), RESEARCH, true).run().await.unwrap();
    assert!(
        removed.output.starts_with("The Tarn has a steel case [S1]. It is light [S1].[^v1]\n"),
        "{}",
        removed.output
    );
    assert_eq!(removed.summary, "The Tarn has a steel case [S1]. It is light [S1].");
    let outcomes: Vec<bool> = removed.statements.iter().map(|one| one.removed).collect();
    assert_eq!((outcomes, removed.answered), (vec![true, false, false], None));

    let mut nothing = task(Some(VerificationPolicy::Remove), RESEARCH, true);
    nothing.replies = vec![json!({"output": "It weighs 9.7 kg [P2:4]."})];
    let nothing = nothing.run().await.unwrap();
    assert_eq!(nothing.output, "Nothing is left of the answer: the sources refute all of its statements.");
    assert_eq!(nothing.answered, Some(false));

    // The file of the capability decides if the run does not; the run takes precedence.
    let strict = format!("{RESEARCH}verification: require\n");
    let mut required = task(None, &strict, false);
    let SessionError::Task(error) = required.run().await.unwrap_err() else {
        panic!("it is an error of the task")
    };
    assert!(error.message.contains("2 of 3 statements are not supported"), "{error:?}");
    let correction =
        last_user_message(required.requests().iter().rfind(|one| one.answer.is_some()).unwrap()).to_owned();
    assert!(correction.contains("It is light."), "{correction}");
    assert!(task(Some(VerificationPolicy::Mark), &strict, false).run().await.is_ok());
}

#[tokio::test]
async fn date_whose_parts_only_stand_somewhere_is_invented() {
    let log = "# Log\n\nOctober 2031: lamp 30 broke, and 12 others.\nIt was mended on 2 May 2033.\n";
    let answer =
        json!({"output": "The lamp broke on October 30, 2031 [P1:3]. It was mended on 2 May 2033 [P1:4]."});
    let mut work =
        ScriptedTask::research("small", "When did the lamp break, and when was it mended?", vec![answer]);
    work.documents = vec![("log.md", log)];
    let result = work.run().await.unwrap();
    let found: Vec<_> = result.statements.iter().map(|one| (one.verdict, one.found_by.clone())).collect();
    assert_eq!(found[0], (StatementVerdict::Unsupported, Some(Finder::Figure)));
    assert_eq!(found[1], (StatementVerdict::Supported, Some(Finder::Quotation)));
}

#[tokio::test]
async fn right_answer_with_a_word_that_no_document_has_is_delivered() {
    let answer = json!({"output": "The mass rating of the Tarn 20 is 1.4 kg [P2:4]."});
    let mut work = ScriptedTask::research("small", "What is the mass rating of the Tarn 20?", vec![answer]);
    work.verifier = Some(vec![("is 1.4 kg", 0.95)]);
    let result = work.run().await.unwrap();
    assert_eq!(result.output, "The mass rating of the Tarn 20 is 1.4 kg [S1].");
    assert_eq!((result.answered, work.requests().len()), (None, 1 + work.verifier_requests()));
    let one = &result.statements[0];
    assert_eq!((one.verdict, one.probability), (StatementVerdict::Supported, Some(0.95)));
}

#[tokio::test]
async fn resumed_verification_asks_nothing_again() {
    let answer = json!({"output": "The Tarn has a steel case [P2:3]. Its battery is good [P2:5]. It is light [P2:4]."});
    let question = "What is the Tarn 20 like?";
    let verdicts = || Some(vec![("It is light", 0.2), ("battery is good", 0.8), ("steel case", 0.9)]);
    let mut whole = ScriptedTask::research("small", question, vec![answer.clone()]);
    whole.verifier = verdicts();
    let expected = whole.run().await.unwrap();
    let found: Vec<StatementVerdict> = expected.statements.iter().map(|one| one.verdict).collect();
    use StatementVerdict::{Supported, Unsupported};
    assert_eq!(found, [Supported, Supported, Unsupported]);
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names[..2], ["model.0", "verifier"], "{names:?}");
    // Three statements and the question with their cited lines; with all lines again the one that these do not support.
    assert!(names.contains(&"verdict.1.7") && !names.contains(&"verdict.1.8"), "{names:?}");
    for taken in 0..=steps.len() {
        let mut work = ScriptedTask::research("small", question, vec![answer.clone()]);
        work.verifier = verdicts();
        work.journal = MemoryHost::with_steps(steps[..taken].to_vec());
        let result = work.run().await.unwrap();
        let told = |result: &TaskResult| {
            let told =
                |one: &VerifiedStatement| (one.text.clone(), one.verdict, one.probability, one.lines.clone());
            result.statements.iter().map(told).collect::<Vec<_>>()
        };
        assert_eq!(told(&result), told(&expected), "after {taken} steps");
        assert_eq!(result.usage, expected.usage, "after {taken} steps");
        let verdicts_left = names[taken..].iter().filter(|name| name.starts_with("verdict.")).count();
        let asked = if taken < 2 { 32 + verdicts_left } else { verdicts_left };
        assert_eq!(work.verifier_requests(), asked, "after {taken} steps");
    }
}

#[tokio::test]
async fn verifier_that_is_refused_is_named_and_nothing_is_lost() {
    let answer = json!({"output": "The Tarn has a steel case [P2:3]."});
    let mut work = ScriptedTask::research("small", "What is the Tarn 20 like?", vec![answer]);
    work.verifier = Some(Vec::new());
    work.verifier_error = Some("authentication");
    let result = work.run().await.unwrap();
    assert_eq!(result.output, "The Tarn has a steel case [S1].");
    let one = &result.statements[0];
    assert_eq!((one.verdict, &one.found_by), (StatementVerdict::Unverified, &None));
    assert!(one.reason.contains("rejected the API key"), "{}", one.reason);
}

#[tokio::test]
async fn absence_is_said_only_after_a_second_search() {
    let none =
        json!({"output": "The passages do not say it.", "answered": false, "other_words": "firmware probe"});
    let filler = "# Lakes\n\n".to_owned() + &"Lakes are deep and cold in winter.\n\n".repeat(400);
    let mut work = ScriptedTask::research("small", "Are lakes cold?", vec![none.clone()]);
    work.documents = vec![("filler.md", &filler), ("skua.md", SKUA)];
    let result = work.run().await.unwrap();
    assert_eq!((result.output.as_str(), result.answered), ("The passages do not say it.", Some(false)));
    let requests = work.requests();
    assert_eq!(requests.len(), 2);
    let again = last_user_message(&requests[1]);
    assert!(
        again.contains("A second search with other words") && again.contains("needs firmware 4.2"),
        "{again}"
    );
    // The quotations of such an answer are checked like all others.
    let quotation = json!({"document": "tarn.md", "first_line": 99, "last_line": 99});
    let wrong =
        json!({"quotations": [quotation], "output": "It is not said.", "summary": "s", "answered": false});
    let mut work = ScriptedTask::research("strong", "Are lakes cold?", vec![wrong]);
    let error = work.run().await.unwrap_err().to_string();
    assert!(error.contains("there is no line 99") && error.contains("after 2 corrections"), "{error}");
    // A statement that says so is not taken for the end.
    let claims = json!({"output": "The passages do not say it."});
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 cost?", vec![claims]);
    let result = work.run().await.unwrap();
    assert_eq!((result.answered, result.statements[0].verdict), (None, StatementVerdict::Unverified));
}

#[tokio::test]
async fn figure_that_no_source_has_is_marked_in_a_report() {
    let invented = json!({"output": "The Tarn weighs 1.4 kg [1]. The Skua costs 25 euros [1]."});
    let mut work = ScriptedTask {
        capability: PRODUCER,
        is_final: true,
        ..ScriptedTask::research("small", "What does it weigh?", vec![invented])
    };
    work.inputs = vec![("research-1", finding())];
    let result = work.run().await.unwrap();
    assert!(result.output.contains("25 euros [1].[^v2]"), "{}", result.output);
    let requests = work.requests();
    assert_eq!(requests.len(), 2);
    assert!(last_user_message(&requests[1]).contains("No source has “25 euros”."));
}

#[tokio::test]
async fn a_result_that_repeats_its_input_is_sent_back() {
    let earlier = TaskResult { output: "The Tarn 20 weighs 1.4 kg [S1].".into(), ..TaskResult::default() };
    let repeated = labelled("The Tarn 20 weighs 1.4 kg [P2:4].", &["P2:4"]);
    let own = labelled("Its battery lasts nine hours [P2:5].", &["P2:5"]);
    let question = "How long does the battery of the Tarn 20 last?";
    let mut work = ScriptedTask::research("small", question, vec![repeated, own]);
    work.inputs = vec![("research-1", earlier)];
    let result = work.run().await.unwrap();
    assert_eq!(result.output, "Its battery lasts nine hours [S1].");
    let correction = last_user_message(&work.requests()[1]).to_owned();
    assert!(correction.contains("Your answer repeats the result of research-1."), "{correction}");
}

/// A finding on the Tarn and the Skua, as an input of a report.
fn finding() -> TaskResult {
    let source = json!({"id": "S1", "kind": "document", "title": "t", "location": "tarn.md"});
    TaskResult {
        output: "The Tarn weighs 1.4 kg [S1]. The Skua needs firmware 4.2 [S1].".into(),
        sources: vec![serde_json::from_value(source).unwrap()],
        ..TaskResult::default()
    }
}

#[tokio::test]
async fn a_report_without_marks_is_accepted_with_its_sources_after_a_correction() {
    let bare = json!({"output": "The Tarn weighs 1.4 kg [9]."});
    let mut work = ScriptedTask {
        capability: PRODUCER,
        ..ScriptedTask::research("small", "What does it weigh?", vec![bare])
    };
    work.inputs = vec![("research-1", finding())];
    let result = work.run().await.unwrap();
    assert!(result.output.contains("Sources of the results: [1]"), "{}", result.output);
    assert!(result.notes.unwrap().contains("does not mark which source supports which statement"));
    let requests = work.requests();
    assert_eq!((requests.len(), requests[0].tools.len()), (2, 0), "all results are in the prompt");
    assert!(first_message(&requests[0]).contains("| The Tarn weighs 1.4 kg [1]."));
}

#[tokio::test]
async fn a_resumed_conversation_has_the_prompt_that_was_recorded() {
    let replies =
        vec![labelled("It is made of steel [P9:1].", &[]), labelled("It weighs 1.4 kg [P1:4].", &["P1:4"])];
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", replies);
    work.documents = vec![("tarn.md", TARN)];
    let result = work.run().await.unwrap();
    let first = work.requests().remove(0);
    // Another worker resumes after the first reply; its program would choose other passages.
    let held: Vec<JournalStep> = work.journal.steps()[..1].to_vec();
    work.journal = MemoryHost::with_steps(held);
    work.documents = vec![("skua.md", SKUA), ("tarn.md", TARN)];
    work.ability = "strong";
    std::fs::remove_file(work.cassette()).unwrap();
    let resumed = work.run().await.unwrap();
    assert_eq!((resumed.output, resumed.quotations), (result.output, result.quotations));
    let second = work.requests().remove(0);
    assert_eq!((second.system, &second.messages[0]), (first.system, &first.messages[0]));
}

const COUNTER: &str = "\
name: counter
description: Counts.
instructions: The phase is {{ phase }}, the count {{ state.count }}.
state:
  count: {schema: {type: integer}, default: 0, access: readwrite, policies: [{on: set, max: 5}]}
phases:
  - {from: low, to: high, when: state.count > 2}
";

#[tokio::test]
async fn a_resumed_conversation_has_the_state_and_the_rules_that_were_recorded() {
    let set = |count: u32| json!({"calls": [{"set_count": {"value": count}}]});
    let replies = vec![set(3), set(9), json!({"text": "done"})];
    let mut work = ScriptedTask::research("strong", "Count.", replies);
    work.capability = COUNTER;
    let result = work.run().await.unwrap();
    let systems = |work: &ScriptedTask<'_>| -> Vec<String> {
        work.requests().into_iter().map(|request| request.system).collect()
    };
    let shown = [
        "The phase is low, the count 0.",
        "The phase is high, the count 3.",
        "The phase is high, the count 3.",
    ];
    assert_eq!(systems(&work), shown, "the second write is vetoed");
    let whole = work.journal.steps().to_vec();
    // Another worker resumes with another capability file.
    let changed =
        COUNTER.replace("max: 5", "max: 1").replace("count > 2", "count > 8").replace("phase is", "stage is");
    for prefix in 1..whole.len() {
        std::fs::remove_file(work.cassette()).unwrap();
        work.journal = MemoryHost::with_steps(whole[..prefix].to_vec());
        work.capability = &changed;
        let resumed = work.run().await.unwrap();
        assert_eq!(
            (resumed.output, systems(&work)),
            (result.output.clone(), shown[prefix..].iter().map(ToString::to_string).collect())
        );
    }
}

/// Research of a small model whose question matches no document, so that it has tools in place of passages.
fn searching_task<'a>(filler: &'a str, replies: Vec<Value>) -> ScriptedTask<'a> {
    let documents = vec![("filler.md", filler), ("tarn.md", TARN)];
    ScriptedTask { documents, ..ScriptedTask::research("small", "How heavy?", replies) }
}

#[tokio::test]
async fn small_model_that_searches_is_cited_by_the_lines_that_it_saw() {
    let filler = "Lakes are deep.\n".repeat(500);
    let search = json!({"calls": [{"search_documents": {"query": "weighs"}}]});
    let answer = json!({"output": "It weighs 1.4 kg."});
    let mut work = searching_task(&filler, vec![search, answer]);
    let result = work.run().await.unwrap();
    assert_eq!(result.output, "It weighs 1.4 kg [S1].");
    assert_eq!(
        (result.quotations[0].text.as_str(), result.quotations[0].first_line),
        ("It weighs 1.4 kg.", 4)
    );
    assert_eq!(work.requests().len(), 2);
}

#[tokio::test]
async fn small_model_with_tools_gets_one_form_of_its_reply() {
    let filler = "Lakes are deep.\n".repeat(500);
    let mut work =
        searching_task(&filler, vec![json!({"output": "The documents do not say it.", "answered": false})]);
    work.run().await.unwrap();
    let request = work.requests().remove(0);
    assert!(request.tools.len() == 2 && !request.system.contains("Answer with JSON"), "{}", request.system);
    let answer = json!({"output": "It weighs 1.4 kg."});
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", vec![answer]);
    work.run().await.unwrap();
    let request = work.requests().remove(0);
    assert!(request.system.contains("\n\nAnswer with JSON: {\"output\": \"…\""), "{}", request.system);
}

#[tokio::test]
async fn result_of_data_has_a_summary() {
    let capability =
        "name: facts\ndescription: Facts.\ninstructions: Find it.\nanswer: data\noutput: {type: object}\n";
    let reply = json!({"text": r#"{"answer": "It weighs 1.4 kg."}"#});
    let mut work = ScriptedTask::research("small", "How much does the Tarn 20 weigh?", vec![reply]);
    work.capability = capability;
    let result = work.run().await.unwrap();
    assert_eq!(result.summary, "It weighs 1.4 kg.");
    assert!(result.output.starts_with("```json\n{"), "{}", result.output);
}

#[tokio::test]
async fn research_without_sources_says_so_and_asks_no_model() {
    let answer = labelled("It weighs 1.4 kg.", &[]);
    let mut work = ScriptedTask::research("strong", "How much does the Tarn 20 weigh?", vec![answer]);
    work.documents.clear();
    let result = work.run().await.unwrap();
    assert!(result.output.starts_with("No sources: "), "{}", result.output);
    assert_eq!((result.answered, work.requests().len()), (Some(false), 0));
    (work.journal, work.objective) = (MemoryHost::default(), "Wie schwer ist der Tarn 20?");
    let result = work.run().await.unwrap();
    assert!(result.output.starts_with("Keine Quellen: "), "{}", result.output);
}
