use std::path::Path;

use jiff::Timestamp;
use millrace_protocol::plan::EndReason;
use millrace_protocol::result::{StatementVerdict, TaskResult, Usage, VerifiedStatement};
use millrace_views::AnswerState;

use super::input::ItemOrigin;
use super::input::file::{
    EntryName, EvaluationFile, Objective, configurations_of_arguments, load_evaluation_file,
};
use super::item::EvaluationItem;
use super::score::answers::{AnswerKind, AnswerSample, AnswerSums};
use super::score::share::Share;
use super::score::{ConfigurationScores, MethodScore};
use super::selection::select_items;
use super::store::{SampleMethod, SampleRecord};

/// Writes an evaluation file beside a folder with two documents, and loads it.
fn load(text: &str) -> Result<EvaluationFile, String> {
    load_with_web(text, false)
}

fn load_with_web(text: &str, has_web: bool) -> Result<EvaluationFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("docs")).unwrap();
    write("docs/leave.md", "Staff have 28 days of leave.\n");
    write("docs/prices.txt", "A ticket costs 12 euros.\n");
    write(
        "reader.yaml",
        "{name: r, description: d, instructions: i, tools: [think, fetch_url: {ports: [81]}]}",
    );
    write("thinker.yaml", "{name: t, description: d, instructions: i, tools: [think]}");
    let file = folder.path().join("evaluation.yaml");
    std::fs::write(&file, text).unwrap();
    let prefix = format!("{}:", file.display());
    load_evaluation_file(&file, has_web).map_err(|error| error.to_string().replace(&prefix, ""))
}

/// `wrong_fields.txt` has a file in each line, mostly with one wrong field, and below it the messages.
#[test]
fn every_field_reports_its_wrong_values() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/evaluation/input/golden/wrong_fields.txt");
    let golden = std::fs::read_to_string(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evaluation.yaml");
    let mut text = String::new();
    for line in golden.lines().filter(|line| !line.starts_with("=> ")) {
        std::fs::write(&file, line).unwrap();
        let message = match load_evaluation_file(&file, false) {
            Ok(_) => "valid".to_owned(),
            Err(error) => error.to_string().replace(&folder.path().display().to_string(), "DIR"),
        };
        text += &format!("{line}\n=> {}\n", message.replace('\n', "\n=> "));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    for (should, is) in golden.lines().zip(text.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(text, golden);
}

const VALID: &str = r#"
documents: docs
samples: 2
timeout: 90s
budget: {tokens: 20k}
configurations:
  - {name: extractive, models: "builtin:extractive"}
  - {name: script, models: ["planner=script:a.yaml", "script:b.yaml"]}
objectives:
  - id: leave
    objective: How many days of leave do staff have?
    documents: leave.md
    facts: [28 days]
    wrong: [25 days, {any: ["30 days"]}]
  - id: price
    objective: What does a ticket cost?
    documents: [prices.txt]
    facts:
      - {name: price, any: ["€12"], pattern: 'twelve\s+euros?'}
  - {id: parking, objective: Where is the car park?, answerable: false, wrong: [in the yard]}
"#;

#[test]
fn an_evaluation_file_is_read() {
    let file = load(VALID).unwrap();
    assert_eq!((file.name.as_str(), file.samples.map(u32::from)), ("evaluation", Some(2)));
    assert_eq!(file.timeout.unwrap().as_secs(), 90);
    assert_eq!(file.budget.amounts.tokens, Some(20_000));
    assert_eq!(file.configurations[1].models.len(), 2);
    let ids: Vec<&str> = file.objectives.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["leave", "price", "parking"]);
    assert!(file.objectives[0].is_answerable() && !file.objectives[2].is_answerable());
}

#[test]
fn mistakes_are_reported_with_line_column_and_the_most_similar_name() {
    for (from, to, expected) in [
        (
            "documents: docs",
            "document: docs",
            "2:1: there is no field \"document\" in an evaluation; did you mean \"documents\"?",
        ),
        ("documents: docs", "documents: dosc", "2:12: there is no folder"),
        ("samples: 2", "samples: 0", "3:10: \"samples\" must be a whole number from 1 to 1000"),
        ("timeout: 90s", "timeout: soon", "4:10: \"timeout\" must be a duration"),
        (
            "tokens: 20k",
            "tokns: 20k",
            "5:10: there is no field \"tokns\" in a budget; did you mean \"tokens\"?",
        ),
        (
            "documents: leave.md",
            "documents: leaves.md",
            "12:16: there is no document \"leaves.md\" in the documents' folder; did you mean \"leave.md\"?",
        ),
        ("id: price", "id: leave", "15:9: there is already an objective \"leave\""),
        (
            "id: price",
            "id: the price",
            "15:9: \"id\" may have letters, digits, '-', '_' and '.', but \"the price\" has ' '",
        ),
        ("facts: [28 days]", "facts: []", "10:5: this objective has no \"facts\""),
        ("answerable: false,", "", "20:5: this objective has no \"facts\""),
        (
            "wrong: [25 days,",
            "wrong: [28 days,",
            "10:5: the wrong statement \"28 days\" matches \"28 days\", which is an expected fact",
        ),
        (
            r"'twelve\s+euros?'",
            "'twelve('",
            "19:46: \"twelve(\" is not a valid regular expression: unclosed group",
        ),
        (r"'twelve\s+euros?'", "'x*'", "19:46: the pattern \"x*\" matches an empty text"),
        ("any: [\"€12\"], ", "any: [\"…\"], ", "19:29: \"…\" has no word and no number"),
        ("builtin:extractive", "builtn:extractive", "7:32: "),
        ("name: script", "name: extractive", "8:12: there is already a configuration \"extractive\""),
    ] {
        let text = VALID.replace(from, to);
        assert_ne!(text, VALID, "{from}");
        let error = load(&text).map(drop).unwrap_err();
        assert!(error.starts_with(expected), "{to}\nexpected {expected}\nactual   {error}");
    }
    let two = VALID.replace("samples: 2", "samples: 0").replace("id: price", "id: leave");
    let error = load(&two).map(drop).unwrap_err();
    assert_eq!(error.lines().count(), 2, "all mistakes are reported: {error}");
}

#[test]
fn documents_may_be_left_out_if_agents_read_the_web() {
    let bare = VALID.replace("documents: docs\n", "").replace("    documents: leave.md\n", "");
    let bare = bare.replace("    documents: [prices.txt]\n", "");
    let error = load(&bare).map(drop).unwrap_err();
    assert_eq!(
        error,
        "2:1: this evaluation lacks the field \"documents\"; to let agents read the web instead, add \"web: true\" or use --web"
    );
    assert_eq!(load_with_web(&bare, true).unwrap().documents, None);
    let of_file = load(&format!("web: true\n{bare}")).unwrap();
    assert!(of_file.web && of_file.configurations.iter().all(|one| one.web));
    let of_one = load(&bare.replace("models: \"builtin:extractive\"", "web: true")).unwrap();
    assert_eq!(of_one.configurations.iter().map(|one| one.web).collect::<Vec<_>>(), [true, false]);
    let with = |file: &str| bare.replace("models: \"builtin:extractive\"", &format!("capabilities: {file}"));
    let reading = load(&with("reader.yaml")).unwrap();
    assert!(!reading.configurations[0].web && reading.documents.is_none());
    assert!(load(&with("thinker.yaml")).is_err());
    let exception = VALID.replace("models: \"builtin:extractive\"", "web: false");
    let exception = load(&format!("web: true\n{exception}")).unwrap();
    assert_eq!(exception.configurations.iter().map(|one| one.web).collect::<Vec<_>>(), [false, true]);
    let named =
        load(&format!("web: true\n{}", VALID.replace("documents: docs\n", ""))).map(drop).unwrap_err();
    assert!(named.starts_with("12:16: there is no document \"leave.md\""), "{named}");
}

#[test]
fn each_model_of_the_command_line_is_a_configuration() {
    let models = ["builtin:extractive", "critic=openai:gpt-5.2", "ollama:qwen3:4b"].map(str::to_owned);
    let all = configurations_of_arguments(&models, &[], false).unwrap();
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["builtin-extractive", "ollama-qwen3-4b"]);
    assert_eq!(all[1].models, ["critic=openai:gpt-5.2", "ollama:qwen3:4b"]);
    assert_eq!(configurations_of_arguments(&[], &[], false).unwrap()[0].name.as_str(), "default");
}

#[test]
fn a_seeded_part_is_fixed_and_keeps_the_order_of_the_file() {
    let objectives = load_shipped_evaluation().objectives;
    let ids = |seed, limit| -> Vec<String> {
        let selected = select_items(&objectives, &[], Some(limit), seed).unwrap();
        selected.iter().map(|one| one.id.to_string()).collect()
    };
    assert_eq!(ids(1, 6), ids(1, 6));
    assert_ne!(ids(1, 6), ids(2, 6));
    let ten = ids(1, 10);
    assert!(ids(1, 6).iter().all(|id| ten.contains(id)), "a larger part contains the smaller one");
    let all: Vec<String> = objectives.iter().map(|one| one.id.to_string()).collect();
    assert_eq!(ids(1, 1_000), all);
    let unknown = select_items(&objectives, &[format!("{}x", all[0])], None, 1).unwrap_err();
    assert!(unknown.error.to_string().contains("did you mean"), "{}", unknown.error);
}

#[test]
fn a_part_has_as_many_items_of_each_file_and_the_same_ids() {
    let all: Vec<Objective> = [("a", 6), ("b", 6), ("c", 1)]
        .iter()
        .flat_map(|(name, count)| {
            (0..*count).map(move |number| Objective {
                id: EntryName::new(&format!("{name}.{number}")).unwrap(),
                origin: ItemOrigin { file: (*name).to_owned(), id: number.to_string() },
                ..Objective::new("Why?")
            })
        })
        .collect();
    let ids = |limit| -> Vec<String> {
        select_items(&all, &[], Some(limit), 5).unwrap().iter().map(|one| one.id.to_string()).collect()
    };
    let part = ids(7);
    let of = |name: &str| -> Vec<&str> { part.iter().filter_map(|id| id.strip_prefix(name)).collect() };
    assert_eq!((of("a.").len(), of("b.").len(), of("c.").len()), (3, 3, 1));
    assert_eq!(of("a."), of("b."));
    assert_eq!(ids(100).len(), 13);
}

fn record(answer: Option<&str>) -> SampleRecord {
    SampleRecord {
        at: Timestamp::UNIX_EPOCH,
        run: None,
        end: Some(EndReason::Completed),
        detail: String::new(),
        answer: answer.map(str::to_owned),
        state: AnswerState::Answered,
        statements: Vec::new(),
        invented: Vec::new(),
        citations: 2,
        resolved_citations: 1,
        usage: Usage { model_calls: 3, input_tokens: 1_000, output_tokens: 100, ..Usage::default() },
        elapsed_ms: 1_500,
    }
}

fn objective(file: &EvaluationFile, id: &str) -> Objective {
    file.objectives.iter().find(|one| one.id.as_str() == id).unwrap().clone()
}

#[test]
fn samples_are_scored_by_facts_wrong_statements_and_honesty() {
    let file = load(VALID).unwrap();
    let score = |id: &str, answer| {
        let score = AnswerSample::new(&objective(&file, id), &record(answer));
        (score.kind, score.facts_found.len(), score.wrong.len())
    };
    assert_eq!(score("leave", Some("Staff have 28 days [S1].")), (AnswerKind::Answered, 1, 0));
    assert_eq!(score("leave", Some("They have a month and 25 days.")), (AnswerKind::Answered, 0, 1));
    assert_eq!(score("leave", Some("The documents do not say.")), (AnswerKind::NotAnswered, 0, 0));
    assert_eq!(score("leave", None), (AnswerKind::Missing, 0, 0));
    assert_eq!(score("price", Some("It is **twelve euros**.")), (AnswerKind::Answered, 1, 0));
    assert_eq!(score("price", Some("EUR 12 each")), (AnswerKind::Answered, 1, 0));
    assert_eq!(score("parking", Some("It is in the yard.")), (AnswerKind::Answered, 0, 1));
    assert_eq!(score("parking", Some("No document mentions a car park.")), (AnswerKind::NotAnswered, 0, 0));
    let mut gap = record(Some("A passage about something else."));
    gap.state = AnswerState::NotInSources;
    assert_eq!(AnswerSample::new(&objective(&file, "parking"), &gap).kind, AnswerKind::NotAnswered);
}

#[test]
fn sums_and_the_share_of_the_ceiling_are_computed_by_fact() {
    let file = load(VALID).unwrap();
    let mut runs = MethodScore::<AnswerSums> { selected: 4, ..MethodScore::default() };
    objective(&file, "leave").add_to(&mut runs, &record(Some("28 days")));
    objective(&file, "price").add_to(&mut runs, &record(Some("30 euros")));
    objective(&file, "parking").add_to(&mut runs, &record(Some("It is behind the house.")));
    let mut ceiling = MethodScore::<AnswerSums> { selected: 2, ..MethodScore::default() };
    objective(&file, "leave").add_to(&mut ceiling, &record(Some("28 days")));
    objective(&file, "price").add_to(&mut ceiling, &record(Some("no idea")));
    let methods = vec![(SampleMethod::Run, runs), (SampleMethod::Ceiling, ceiling)];
    let scores = ConfigurationScores { name: "small".into(), methods };
    assert_eq!(scores.share_of_ceiling(), Some(Share::new(1, 1)), "the model alone does not know the price");
    let rows = |method: SampleMethod| -> Vec<String> {
        let rows = scores.find(method).unwrap().rows(method);
        rows.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    };
    assert_eq!(
        rows(SampleMethod::Run),
        [
            "samples: 3 of 4",
            "accepted: 3 of 3 (100%, 44–100%)",
            "facts: 1 of 2 (50%, 9–91%)",
            "verified: -",
            "true but marked: -",
            "without an answer: 0 of 2 (0%, 0–66%)",
            "false \"not answered\": 0 of 2 (0%, 0–66%)",
            "wrong: 0",
            "rightly unanswered: 0 of 1 (0%, 0–79%)",
            "unfounded: 1",
            "invented figures: 0",
            "citations: 3 of 6 (50%)",
            "calls: 3.0",
            "tokens: 1100",
            "cost: $0.0000",
            "time: 1.5 s",
        ]
    );
    let alone = rows(SampleMethod::Ceiling);
    assert_eq!(alone[..2], ["samples: 2", "facts: 1 of 2 (50%, 9–91%)"]);
}

fn statement(text: &str, verdict: StatementVerdict) -> VerifiedStatement {
    VerifiedStatement {
        text: text.to_owned(),
        start: 0,
        end: 0,
        verdict,
        lines: Vec::new(),
        found_by: None,
        reason: String::new(),
        probability: None,
        removed: false,
    }
}

#[test]
fn verdicts_tell_verified_facts_from_marked_ones() {
    use StatementVerdict::{Supported, Unsupported, Unverified};
    let file = load(VALID).unwrap();
    let leave = objective(&file, "leave");
    let score = |statements: &[(&str, StatementVerdict)]| {
        let text: Vec<&str> = statements.iter().map(|(text, _)| *text).collect();
        let statements = statements.iter().map(|(text, verdict)| statement(text, *verdict)).collect();
        let result = TaskResult { statements, ..TaskResult::default() };
        let state = AnswerState::of(&result);
        let record = SampleRecord { statements: result.statements, state, ..record(Some(&text.join(" "))) };
        AnswerSample::new(&leave, &record)
    };
    let verified = score(&[("Staff have 28 days.", Supported), ("It is 28 days.", Unverified)]);
    assert_eq!((verified.facts_verified.len(), verified.marked), (1, Share::new(1, 2)));
    let marked = score(&[("Staff have 28 days.", Unsupported), ("There is a mill.", Supported)]);
    assert_eq!((marked.facts_found.len(), marked.facts_verified.len()), (1, 0));
    assert_eq!(marked.kind, AnswerKind::Answered);
    let other = score(&[("Staff have 27 days.", Unverified)]);
    assert_eq!((other.kind, other.marked), (AnswerKind::NotVerified, Share::default()));
    assert_eq!(score(&[("Staff have 27 days.", Supported)]).kind, AnswerKind::Answered);
}

#[test]
fn ends_without_an_answer_are_told_apart() {
    let file = load(VALID).unwrap();
    let kind = |answer| AnswerSample::new(&objective(&file, "leave"), &record(answer)).kind;
    let nothing =
        SampleRecord { state: AnswerState::NothingFound, ..record(Some("Es wurde keine Stelle gefunden.")) };
    assert_eq!(AnswerSample::new(&objective(&file, "leave"), &nothing).kind, AnswerKind::NothingFound);
    assert_eq!(
        kind(Some("# How many days of leave do staff have?\n\n## Sources\n\n- [1] a\n")),
        AnswerKind::Empty
    );
    assert_eq!(kind(Some("The documents do not say.")), AnswerKind::NotAnswered);
    assert_eq!(kind(None), AnswerKind::Missing);
    let mut sums = AnswerSums::default();
    sums.add(&objective(&file, "parking"), &nothing);
    sums.add(&objective(&file, "leave"), &nothing);
    assert_eq!(sums.count_unanswerable(&[AnswerKind::NothingFound]), Share::new(1, 1));
    assert_eq!(sums.count_answerable(&[AnswerKind::NotAnswered]), Share::new(0, 1), "it claims no absence");
}

#[test]
fn facts_are_looked_for_in_the_first_characters() {
    let file = load(VALID).unwrap();
    let leave = Objective { answer_characters: Some(40), ..objective(&file, "leave") };
    let found = |answer: &str| AnswerSample::new(&leave, &record(Some(answer))).facts_found.len();
    assert_eq!(found("Staff have 28 days."), 1);
    assert_eq!(found(&format!("{}28 days.", "x ".repeat(20))), 0);
}

fn load_shipped_evaluation() -> EvaluationFile {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/evaluation/evaluation.yaml");
    load_evaluation_file(&file, false).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_shipped_evaluation_agrees_with_its_documents() {
    use millrace_agent::corpus::{Corpus, list_folder_files};

    use super::wording::Wording;

    let file = load_shipped_evaluation();
    let (files, skipped) = list_folder_files(file.documents.as_ref().unwrap()).unwrap();
    assert!(skipped.is_empty() && files.len() >= 20, "{} documents, {skipped:?}", files.len());
    let files = files.into_iter().map(|file| file.read_file().unwrap()).collect();
    let corpus = Corpus::build_or_load(files, None).unwrap();
    assert!(corpus.skipped_files().is_empty(), "{:?}", corpus.skipped_files());
    assert!(file.objectives.len() >= 30);
    let unanswerable = file.objectives.iter().filter(|one| !one.is_answerable()).count();
    assert!(unanswerable >= 4, "{unanswerable}");
    for objective in &file.objectives {
        let named: Vec<&str> =
            objective.documents.iter().map(|path| corpus.find_document(path).unwrap().text()).collect();
        let text = Wording::read(&named.join("\n"));
        for fact in &objective.facts {
            assert!(fact.is_stated_in(&text), "{}: {} is in none of its documents", objective.id, fact.name);
        }
        assert!(!objective.is_answerable() || !named.is_empty(), "{} names no document", objective.id);
    }
}

#[test]
fn the_schema_accepts_the_shipped_evaluation_and_no_unknown_field() {
    let schema = super::input::file::evaluation_file_schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/evaluation/evaluation.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let mut value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let mistakes: Vec<String> = validator.iter_errors(&value).map(|one| one.to_string()).collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    value["objectives"][0]["fcts"] = "x".into();
    assert!(!validator.is_valid(&value));
}
